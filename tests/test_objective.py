"""The terms of the loss, by hand."""

from pathlib import Path

import numpy as np
import pytest
import torch

from small_runs import images_file, plain, run
from transnet import TransNet, heads_loss, load
from transnet.errors import ConfigError
from transnet.runs.config import TrainConfig
from transnet.train.objective import Said, cross_entropy, distillation, objective_of, transforms_told


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(5, 3, 4, generator=generator).requires_grad_(), torch.tensor([0, 1, 2, 3, 0])


def test_the_settings_choose_the_terms() -> None:
    net = TransNet(plain(), "r1,r0,r2")
    logits, y = batch()
    said = Said(net, logits)
    plainly = cross_entropy()(said, y)
    config = TrainConfig(data="digits", out="x", transforms="r1,r0,r2", distillation=0.5)
    taught = objective_of(config)(said, y)
    assert taught.item() == pytest.approx((plainly + 0.5 * distillation(1)(said, y)).item(), rel=1e-6)


@pytest.mark.parametrize("transforms", ["r0", "r1,r2"])
def test_without_two_heads_or_the_identity_s_there_is_nothing_to_teach(tmp_path: Path, transforms: str) -> None:
    data = images_file(tmp_path / "x.npz")
    with pytest.raises(ConfigError, match="distillation"):
        run(data, tmp_path / "run", transforms=transforms, distillation=1.0)
    assert not (tmp_path / "run").exists()


def test_taught_the_identity_s_head_comes_closer_to_the_others(tmp_path: Path) -> None:
    data = images_file(tmp_path / "x.npz")

    def apart(weight: float) -> float:
        result = run(data, tmp_path / f"run{weight}", transforms="r0,r1", epochs=8, distillation=weight)
        heads = result["test"]["heads"]
        return abs(heads[0]["loss"] - result["test"]["full"]["loss"])

    assert apart(4.0) < apart(0.0)


def test_every_head_on_every_copy_holds_each_head_on_its_own() -> None:
    net = TransNet(plain(), "r0,r1,r2").eval()
    x = torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    across = net.logits(x, across=True)
    assert across.shape == (4, 3, 3, 3)
    torch.testing.assert_close(across.diagonal(dim1=1, dim2=2).mT, net.logits(x))
    rotated = torch.rot90(x, 1, (-2, -1))
    torch.testing.assert_close(across[:, 1, 2], net.heads[2](net.backbone(rotated)))


def test_with_weight_one_it_is_one_softmax_over_all_pairs_of_class_and_transform() -> None:
    net = TransNet(plain(), "r0,r1,r2").eval()
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(6, 1, 8, 8, generator=generator), torch.tensor([0, 1, 2, 0, 1, 2])
    across = net.logits(x, across=True)
    said = Said(net, across.diagonal(dim1=1, dim2=2).mT, across)
    config = TrainConfig(data="digits", out="x", transforms="r0,r1,r2", label_augmentation=1.0)
    objective = objective_of(config)
    assert objective.across
    # One linear layer of K·m outputs, pairs numbered by head first.
    copies = torch.cat([torch.rot90(x, k, (-2, -1)) for k in range(3)])
    weight = torch.cat([head.weight for head in net.heads])
    bias = torch.cat([head.bias for head in net.heads])
    pairs = torch.cat([k * 3 + y for k in range(3)])
    joint = torch.nn.functional.cross_entropy(net.backbone(copies) @ weight.T + bias, pairs)
    assert objective(said, y).item() == pytest.approx(joint.item(), rel=1e-5)
    assert transforms_told(said, y).item() == pytest.approx((joint - heads_loss(said.logits, y)).item(), rel=1e-4)


@pytest.mark.parametrize("changes", [{"transforms": "r0"}, {"transforms": "r0,r0"}, {"heads": "shared"}])
def test_a_transform_is_told_by_heads_of_different_ones(tmp_path: Path, changes: dict[str, str]) -> None:
    data = images_file(tmp_path / "x.npz")
    with pytest.raises(ConfigError, match="label_augmentation: a copy's transform is told by its head"):
        run(data, tmp_path / "run", label_augmentation=1.0, **{"transforms": "r0,r1", **changes})
    assert not (tmp_path / "run").exists()


def test_told_transforms_are_learnt(tmp_path: Path) -> None:
    data = images_file(tmp_path / "x.npz")
    images = torch.from_numpy(np.load(data)["x_test"]).movedim(-1, 1)

    def missed(weight: float) -> float:
        out = tmp_path / f"run{weight}"
        run(data, out, transforms="r0,r1", epochs=8, label_augmentation=weight)
        x = (images.float() / 255 - 0.3) / 0.2
        with torch.no_grad():
            across = load(out).logits(x, across=True)
        return transforms_told(Said(torch.nn.Identity(), across[:, 0], across), torch.zeros(0)).item()

    assert missed(1.0) < missed(0.0) / 5
