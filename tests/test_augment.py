"""Plans of epochs, and the pixels that they give."""

import numpy as np
import pytest
import torch
from torch import Tensor

from small_runs import plain
from transnet import TransNet, d4, heads_loss
from transnet.data.augment import CUTMIX, MIXUP, Plan, View, mix, plan_epoch, seed_for
from transnet.data.pixels import Geometry
from transnet.model import TransNet as Model

MEAN, STD = (0.2, 0.5, 0.7), (0.3, 0.25, 0.2)


def view(size: int = 8, stored: int = 8, pad: int = 0) -> View:
    return View.create(Geometry.square(size, stored=stored, pad=pad), mean=MEAN, std=STD)


def stored(n: int = 12, size: int = 8) -> Tensor:
    return torch.randint(0, 256, (n, size, size, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def drawn(seed: int = 0, epoch: int = 0, **options: object) -> Plan:
    return plan_epoch(200, **{"seed": seed, "epoch": epoch, "batches": 7, "flip": True, **options})  # type: ignore[arg-type]


def same(a: Plan, b: Plan) -> list[bool]:
    return [torch.equal(getattr(a, name), getattr(b, name)) for name in ("order", "crop", "flip", "rotate", "mix")]


# ------------------------------------------------------------------------------------------------------------ the plan


def test_a_plan_depends_only_on_seed_and_epoch() -> None:
    first = drawn(3, 5, mixup=0.2, cutmix=1.0)
    torch.manual_seed(17)
    torch.rand(10)
    np.random.seed(1)  # noqa: NPY002
    assert all(same(first, drawn(3, 5, mixup=0.2, cutmix=1.0)))


@pytest.mark.parametrize("other", [(4, 5), (3, 6)])
def test_another_seed_or_epoch_changes_everything(other: tuple[int, int]) -> None:
    options = {"rotate": d4.NAMES, "mixup": 1.0}
    assert not any(same(drawn(3, 5, **options), drawn(*other, **options)))


def test_the_order_is_a_permutation() -> None:
    assert sorted(drawn().order.tolist()) == list(range(200))


def test_order_augmentation_and_mixing_have_separate_seeds() -> None:
    seeds = {seed_for(0, purpose, 0) for purpose in ("order", "augment", "rotate", "mix")}
    assert len(seeds) == 4
    without, with_all = drawn(flip=False), drawn(flip=True, rotate=d4.NAMES, mixup=1.0, cutmix=1.0)
    assert torch.equal(without.order, with_all.order)
    assert torch.equal(without.crop, with_all.crop)
    assert not without.flip.any()


def test_half_of_the_images_are_flipped_and_crops_fill_the_range() -> None:
    big = plan_epoch(20_000, seed=0, epoch=0, batches=1, flip=True)
    assert abs(big.flip.float().mean() - 0.5) < 0.02
    assert big.crop.min() >= 0
    assert big.crop.max() < 1
    assert (big.crop.mean(0) - 0.5).abs().max() < 0.02


# ---------------------------------------------------------------------------------------------------------- the pixels


def by_hand(image: Tensor, geometry: Geometry, crop: Tensor, flip: bool) -> Tensor:
    """One image the plain way: normalise, pad with zeros (the mean colour), crop, flip."""
    x = (image.double() / 255 - torch.tensor(MEAN, dtype=torch.double)) / torch.tensor(STD, dtype=torch.double)
    x = torch.nn.functional.pad(x.permute(2, 0, 1), (geometry.pad,) * 4)
    (height, width), (h, w) = x.shape[-2:], geometry.size
    top, left = int(crop[0] * (height - h + 1)), int(crop[1] * (width - w + 1))
    x = x[:, top : top + h, left : left + w]
    return x.flip(-1) if flip else x


@pytest.mark.parametrize(
    "geometry",
    [
        Geometry.square(8),
        Geometry.square(8, pad=1),
        Geometry.square(8, pad=4),
        Geometry.square(5, stored=8),
        Geometry.square(5, stored=8, pad=2),
        Geometry.square(12, stored=8, pad=3),
        Geometry((3, 7), (6, 8)),
        Geometry((8, 6), (6, 8), pad=1),
    ],
    ids=lambda g: f"{g.stored}+{g.pad}→{g.size}",
)
def test_training_images_equal_a_plain_implementation(geometry: Geometry) -> None:
    images, order = stored()[:, : geometry.stored[0]], torch.tensor([3, 0, 3, 11, 7, 5])
    crop = torch.tensor([[0.0, 0.0], [0.999, 0.999], [0.5, 0.1], [0.3, 0.7], [0.0, 0.999], [0.6, 0.6]])
    flip = torch.tensor([False, True, True, False, True, False])
    got = View.create(geometry, mean=MEAN, std=STD).train(images, order, crop, flip)
    for k, i in enumerate(order.tolist()):
        expected = by_hand(images[i], geometry, crop[k], bool(flip[k]))
        torch.testing.assert_close(got[k].double(), expected, atol=2e-6, rtol=0)


@pytest.mark.parametrize("rotate", [d4.NAMES, ("r0", "r1"), ("m1", "r3", "m3"), ("r2",)], ids=",".join)
@pytest.mark.parametrize(
    "geometry", [Geometry.square(8), Geometry.square(8, pad=3), Geometry.square(5, stored=8, pad=1)], ids=str
)
def test_rotation_applies_the_plans_transform_to_each_flipped_crop(geometry: Geometry, rotate: tuple[str, ...]) -> None:
    images, view = stored(200), View.create(geometry, mean=MEAN, std=STD)
    p = drawn(rotate=rotate)
    upright, got = (view.train(images, p.order, p.crop, p.flip, *choice) for choice in ((), (p.rotate,)))
    names = [d4.NAMES[choice] for choice in p.rotate.tolist()]
    assert set(names) == set(rotate)
    for name, x, y in zip(names, upright, got, strict=True):
        assert torch.equal(d4.apply(name, x), y)
    assert got.is_contiguous(memory_format=torch.channels_last)


def test_images_that_are_not_square_can_be_turned_over() -> None:
    images, view = stored(200)[:, :, :6], View.create(Geometry((5, 4), (8, 6), pad=1), mean=MEAN, std=STD)
    p = drawn(rotate=("r0", "r2", "m0", "m2"))
    got = view.train(images, p.order, p.crop, p.flip, p.rotate)
    for choice, x, y in zip(p.rotate.tolist(), view.train(images, p.order, p.crop, p.flip), got, strict=True):
        assert torch.equal(d4.apply(d4.NAMES[choice], x), y)


def test_a_repeated_transform_is_chosen_more_often() -> None:
    counts = torch.bincount(plan_epoch(9000, seed=0, epoch=0, batches=1, flip=False, rotate=("r3", "r0", "r3")).rotate)
    assert counts[[1, 2]].sum() == 0
    assert abs(counts[3] / 9000 - 2 / 3) < 0.02


def test_every_crop_position_is_reached_and_equally_often() -> None:
    # Each pixel's first channel is its row times eight plus its column: the crop's corner can be read off.
    image = torch.arange(64, dtype=torch.uint8).view(1, 8, 8, 1).expand(1, 8, 8, 3)
    n = 8000
    crop = plan_epoch(n, seed=0, epoch=0, batches=1, flip=False).crop
    x = view(size=5).train(image, torch.zeros(n, dtype=torch.long), crop, torch.zeros(n, dtype=torch.bool))
    corner = ((x[:, 0, 0, 0] * STD[0] + MEAN[0]) * 255).round().long()
    counts = torch.bincount(corner, minlength=64).view(8, 8)
    assert (counts[:4, :4] > 0.8 * n / 16).all()
    assert counts[4:].sum() == counts[:, 4:].sum() == 0


def test_the_largest_number_below_one_gives_the_last_position() -> None:
    below = 1 - 2.0**-24
    for places in range(1, 70):
        image = torch.zeros(1, places, places, 3, dtype=torch.uint8)
        image[0, -1, -1] = 255
        x = view(size=1, stored=places).train(
            image, torch.zeros(1, dtype=torch.long), torch.full((1, 2), below), torch.tensor([False])
        )
        assert x[0, 0, 0, 0] > 0, places


@pytest.mark.parametrize(("size", "first"), [(8, 0), (6, 1), (5, 1)])
def test_centre_is_the_middle_square_without_flip(size: int, first: int) -> None:
    images = stored()
    got = view(size=size, stored=8, pad=3).centre(images)
    crop = images[:, first : first + size, first : first + size].double() / 255
    expected = (crop - torch.tensor(MEAN)) / torch.tensor(STD)
    torch.testing.assert_close(got.double(), expected.permute(0, 3, 1, 2), atol=1e-5, rtol=0)


# -------------------------------------------------------------------------------------------------------------- mixing


def batch(n: int = 6, classes: int = 4) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(1)
    return torch.rand(n, 3, 8, 8, generator=random), torch.randint(classes, (n,), generator=random)


def test_without_mixing_nothing_changes() -> None:
    x, y = batch()
    mixed, target = mix(x, y, drawn().mix[0], 4)
    assert torch.equal(mixed, x)
    assert torch.equal(target, torch.nn.functional.one_hot(y, 4).float())


def test_mixup_blends_images_and_targets_alike() -> None:
    x, y = batch()
    for row in drawn(mixup=1.0).mix:
        assert row[0] == MIXUP
        own = row[1].item()
        mixed, target = mix(x, y, row, 4)
        torch.testing.assert_close(mixed, own * x + (1 - own) * x.roll(1, 0))
        one_hot = torch.nn.functional.one_hot(y, 4).float()
        torch.testing.assert_close(target, own * one_hot + (1 - own) * one_hot.roll(1, 0))


def test_cutmix_targets_are_the_shares_of_pixels() -> None:
    n, classes = 6, 6
    x = torch.arange(n).float().view(n, 1, 1, 1).expand(n, 3, 8, 8)  # an image's pixels are its number
    shares = []
    for row in plan_epoch(10, seed=0, epoch=0, batches=50, flip=False, cutmix=1.0).mix:
        assert row[0] == CUTMIX
        mixed, target = mix(x, torch.arange(n), row, classes)
        for i in range(n):
            counts = torch.bincount(mixed[i, 0].flatten().long(), minlength=classes) / 64
            torch.testing.assert_close(target[i], counts)
        foreign = (mixed[1, 0] == 0).nonzero()
        if len(foreign):  # one whole box
            (top, left), (bottom, right) = foreign.min(0).values.tolist(), foreign.max(0).values.tolist()
            assert len(foreign) == (bottom - top + 1) * (right - left + 1)
        shares.append(target[1, 1].item())
        assert abs(target[1, 1].item() - row[1].item()) < 0.25  # what was drawn, to the pixel
    assert 0.35 < sum(shares) / len(shares) < 0.65


def test_with_mixup_and_cutmix_each_batch_uses_one() -> None:
    kinds = plan_epoch(10, seed=0, epoch=0, batches=100, flip=False, mixup=0.2, cutmix=1.0).mix[:, 0]
    assert set(kinds.tolist()) == {MIXUP, CUTMIX}
    assert 30 < (kinds == MIXUP).sum() < 70


@pytest.mark.parametrize("kind", ["mixup", "cutmix"])
def test_soft_targets_are_every_heads_loss(kind: str) -> None:
    net = TransNet(plain(classes=4, channels=3), "r0,r1,m2")
    assert isinstance(net, Model)
    x, target = mix(*batch(), drawn(**{kind: 1.0}).mix[0], 4)
    logits = net(x)
    got = heads_loss(logits, target, reduction="none")
    expected = [-(logits[:, i].log_softmax(-1) * target).sum(-1).mean() for i in range(3)]
    torch.testing.assert_close(got, torch.stack(expected))
