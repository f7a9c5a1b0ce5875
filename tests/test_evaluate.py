"""Evaluation of a network over a split, against direct computation."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from small_runs import images_file, run
from transnet import TransNet, d4, load
from transnet.backbones import create
from transnet.data import open_data
from transnet.data.augment import View
from transnet.data.pixels import Geometry
from transnet.runs.records import encode
from transnet.train.distributed import World
from transnet.train.evaluate import (
    ClassScore,
    class_scores,
    ensemble_scores,
    logits_of,
    score_totals,
    scores,
    scores_of_logits,
    scores_with_classes,
)  # fmt: skip
from transnet.train.feed import eval_batches

N, CLASSES = 37, 4


def network(transforms: str = "r0,r1,m2", **options: str) -> TransNet:
    torch.manual_seed(0)
    net = TransNet(create("resnet8-small", num_classes=CLASSES, in_channels=1), transforms, **options)  # type: ignore[arg-type]
    with torch.no_grad():
        net.train()(torch.randn(64, 1, 8, 8) * 2 + 1)  # statistics that are not the initial ones
    return net


def split() -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(2)
    return torch.randn(N, 1, 8, 8, generator=random), torch.randint(CLASSES, (N,), generator=random)


def batches(size: int = 10) -> list[tuple[Tensor, Tensor]]:
    x, y = split()
    return list(zip(x.split(size), y.split(size), strict=True))


def counted(net: TransNet, *, flip: bool = False, size: int = 10) -> Tensor:
    return score_totals(net, batches(size), CLASSES, flip=flip)


def direct(net: TransNet, logits: Tensor) -> list[tuple[float, float]]:
    """(accuracy, loss) of every head and of their mean."""
    _, y = split()
    rows = [*logits.unbind(1), logits.mean(1)]
    return [((row.argmax(1) == y).double().mean().item(), F.cross_entropy(row, y).item()) for row in rows]


@pytest.mark.parametrize("bn", ["joint", "separate"])
def test_every_head_and_the_full_model_equal_direct_computation(bn: str) -> None:
    net = network(bn=bn)
    got = scores(counted(net)[0], net.transforms)
    net.eval()
    x, _ = split()
    with torch.no_grad():
        logits = torch.stack([net._head(i)(net.backbone(d4.apply(t, x))) for i, t in enumerate(net.transforms)], 1)
    *heads, full = direct(net, logits)
    for entry, name, (accuracy, loss) in zip(got.heads, net.transforms, heads, strict=True):
        assert entry.name == name
        assert entry.accuracy == pytest.approx(accuracy)
        assert entry.loss == pytest.approx(loss, rel=1e-5)
        assert (entry.n, entry.passes) == (N, 1)
    assert got.full.accuracy == pytest.approx(full[0])
    assert got.full.loss == pytest.approx(full[1], rel=1e-5)
    assert got.full.passes == 3


def test_flip_averages_outputs_on_x_and_on_the_flipped_image_transformed() -> None:
    net = network()
    got = scores(counted(net, flip=True)[1], net.transforms, passes=2)
    net.eval()
    x, _ = split()
    with torch.no_grad():
        h = [lambda z, i=i: net._head(i)(net.backbone(z)) for i in range(3)]
        views = [(h[i](d4.apply(t, x)) + h[i](d4.apply(t, x.flip(-1)))) / 2 for i, t in enumerate(net.transforms)]
        wrong = (h[1](d4.apply("r1", x)) + h[1](d4.apply("r1", x).flip(-1))) / 2
    expected = direct(net, torch.stack(views, 1))
    for entry, (accuracy, loss) in zip([*got.heads, got.full], expected, strict=True):
        assert entry.accuracy == pytest.approx(accuracy)
        assert entry.loss == pytest.approx(loss, rel=1e-5)
    assert got.heads[1].loss != pytest.approx(direct(net, wrong[:, None])[0][1], rel=1e-4)
    assert (got.pruned.passes, got.full.passes) == (2, 6)


def test_pruned_is_the_pruned_network_at_one_pass_of_the_untransformed_image() -> None:
    net = network("r1,r0")
    got = scores(counted(net)[0], net.transforms).pruned
    model = net.prune().eval()
    x, y = split()
    with torch.no_grad():
        logits = model(x)
    assert got.accuracy == pytest.approx((logits.argmax(1) == y).double().mean().item())
    assert got.loss == pytest.approx(F.cross_entropy(logits, y).item(), rel=1e-5)
    assert got.passes == 1


def test_of_repeated_heads_the_first_is_the_pruned_one() -> None:
    net = network("r0,r0")
    got = scores(counted(net)[0], net.transforms)
    first = got.heads[0]
    assert encode(got.pruned) == {key: value for key, value in encode(first).items() if key != "name"}
    assert got.heads[0].loss != got.heads[1].loss


def test_without_the_identity_there_is_no_pruned_score() -> None:
    net = network("r1,r2")
    found = scores(counted(net)[0], net.transforms)
    assert found.pruned is None
    assert found.full.n == N


@pytest.mark.parametrize("size", [1, 7, 37, 100])
def test_batches_do_not_matter(size: int) -> None:
    torch.testing.assert_close(counted(network(), flip=True, size=size), counted(network(), flip=True))


def test_counting_leaves_the_network_as_it_was() -> None:
    net = network().train()
    frozen = next(layer for layer in net.modules() if isinstance(layer, nn.BatchNorm2d)).eval()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    counted(net, flip=True)
    assert net.training
    assert [layer for layer in net.modules() if not layer.training] == [frozen]
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert not any(p.grad is not None for p in net.parameters())


@pytest.mark.parametrize("processes", [2, 3, 7, 50])
@pytest.mark.parametrize("resident", [True, False])
def test_the_sums_of_the_shares_are_those_of_the_whole(tmp_path: Path, processes: int, resident: bool) -> None:
    data = open_data(str(images_file(tmp_path / "x.npz", test=40)))
    view = View.create(Geometry.square(8), mean=data.mean, std=data.std)
    torch.manual_seed(0)
    net = TransNet(create("resnet8-small", num_classes=3, in_channels=1), "r0,r1")

    def sums(world: World) -> Tensor:
        images = data.test.resident((8, 8), progress=False) if resident else None
        return score_totals(net, eval_batches(data.test, images, view, world, 0), 3, flip=True)

    whole = sums(World())
    assert whole[0, 0, -3:].tolist() == data.test.labels.bincount(minlength=3).tolist()
    shares = [sums(World(rank, processes)) for rank in range(processes)]
    torch.testing.assert_close(torch.stack(shares).sum(0), whole)


def test_logits_give_the_scores_that_sums_give() -> None:
    net = network()
    views = logits_of(net, batches(), flip=True)
    sums = counted(net, flip=True)
    _, y = split()
    for i in range(2):
        from_logits, from_sums = scores_of_logits(views[i], y, net.transforms), scores(sums[i], net.transforms)
        for got, expected in zip(
            (from_logits.full, *from_logits.heads), (from_sums.full, *from_sums.heads), strict=True
        ):
            assert got.loss == pytest.approx(expected.loss)
            assert replace(got, loss=0.0, uncertainty=None) == replace(expected, loss=0.0)


def test_the_balanced_accuracy_is_the_mean_recall_of_the_classes_that_are_present() -> None:
    y = torch.tensor([0] * 8 + [1] * 2 + [3])  # of class 2 there is no image
    predicted = torch.tensor([0] * 6 + [1] * 2 + [1, 0] + [0])
    logits = F.one_hot(predicted, 4).float()[:, None]
    score = scores_of_logits(logits, y, ("r0",)).pruned
    assert score.accuracy == pytest.approx(7 / 11)
    assert score.balanced_accuracy == pytest.approx((6 / 8 + 1 / 2 + 0) / 3)
    assert (score.present_classes, score.zero_recall_classes) == (3, 1)


@pytest.mark.parametrize(("transforms", "row"), [("r1,r0", 1), ("r1,r2", 2)])
def test_a_results_classes_have_the_recall_of_the_pruned_classifier_or_else_of_the_full_model(
    transforms: str, row: int
) -> None:
    net = network(transforms)
    _, y = split()
    logits = logits_of(net, batches(), flip=False)[0]
    predicted = torch.cat([logits, logits.mean(1, keepdim=True)], 1)[:, row].argmax(-1)
    found = scores_with_classes(counted(net)[0], net.transforms, "abcd", [5, 6, 7, 8])
    for label, entry in enumerate((found.pruned or found.full).classes):
        images = y == label
        assert (entry.name, entry.n_train, entry.n) == ("abcd"[label], 5 + label, images.sum())
        assert entry.recall == pytest.approx((predicted[images] == label).double().mean().item())


def test_a_class_has_its_recall_and_the_class_that_it_is_taken_for() -> None:
    y = torch.tensor([0, 0, 0, 0, 1, 1, 3])
    logits = F.one_hot(torch.tensor([0, 1, 3, 3, 1, 1, 0]), 4).float()
    assert class_scores(logits, y, ("a", "b", "c", "d"), (9, 8, 7, 6)) == (
        ClassScore(name="a", n_train=9, n=4, recall=0.25, taken_for="d", mistakes=2),
        ClassScore(name="b", n_train=8, n=2, recall=1.0, taken_for=None, mistakes=0),
        ClassScore(name="c", n_train=7, n=0, recall=None, taken_for=None, mistakes=0),
        ClassScore(name="d", n_train=6, n=1, recall=0.0, taken_for="a", mistakes=1),
    )
    assert class_scores(logits, y, ("a", "b", "c", "d"))[0].n_train is None


def test_an_ensemble_is_the_mean_of_its_members_outputs() -> None:
    one, other = network("r0,r1"), network("r2,r0")
    with torch.no_grad():
        other.heads[1].weight.neg_()
    _, y = split()
    views = [tuple(logits_of(net, batches(), flip=True)) for net in (one, other)]
    for i, passes in enumerate((1, 2)):
        got = ensemble_scores([run[i] for run in views], y, [one.transforms, other.transforms], passes=passes)
        pruned = (views[0][i][:, 0] + views[1][i][:, 1]) / 2
        full = (views[0][i].mean(1) + views[1][i].mean(1)) / 2
        assert got.pruned.loss == pytest.approx(F.cross_entropy(pruned, y).item(), rel=1e-5)
        assert got.full.loss == pytest.approx(F.cross_entropy(full, y).item(), rel=1e-5)
        assert (got.pruned.passes, got.full.passes) == (2 * passes, 4 * passes)


def test_the_generalisation_score_is_test_over_train_loss_of_the_identity_head_on_images_without_augmentation(
    tmp_path: Path,
) -> None:
    file = images_file(tmp_path / "x.npz", channels=3)
    result = run(file, tmp_path / "run", label_smoothing=0.2, mixup=0.5, flip=True)
    data, model = open_data(str(file)), load(tmp_path / "run").prune().eval()
    view = View.create(Geometry.square(8), mean=data.mean, std=data.std)
    losses = {}
    for name, part in (("train", data.train), ("test", data.test)):
        with torch.no_grad():
            losses[name] = F.cross_entropy(
                model(view.centre(part.resident((8, 8), progress=False))), part.labels
            ).item()
    assert result["train"]["loss"] == pytest.approx(losses["train"], rel=1e-5)
    assert result["generalization"] == pytest.approx(losses["test"] / losses["train"], rel=1e-5)


def test_without_the_identity_there_is_no_generalisation_score(tmp_path: Path) -> None:
    result = run(images_file(tmp_path / "x.npz"), tmp_path / "run", transforms="r1,r2", epochs=1)
    assert result["train"] is None
    assert result["generalization"] is None
