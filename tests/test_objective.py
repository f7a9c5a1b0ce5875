"""The terms of the loss, by hand."""

from pathlib import Path

import numpy as np
import pytest
import torch

from small_runs import images_file, plain, run
from transnet import TransNet, heads_loss, invariance_penalty, load
from transnet.distillation import distillation_loss
from transnet.errors import ConfigError
from transnet.runs.config import TrainConfig
from transnet.train.objective import BatchOutputs, build_objective, joint_label


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(5, 3, 4, generator=generator).requires_grad_(), torch.tensor([0, 1, 2, 3, 0])


def test_the_settings_choose_the_terms_and_their_weights() -> None:
    net = TransNet(plain(), "r1,r0,r2")
    logits, y = batch()
    config = TrainConfig(
        data="digits", out="x", transforms="r1,r0,r2", distillation=0.5, label_smoothing=0.1, invariance_weight=3.0
    )
    objective = build_objective(config)
    assert objective.names == ("cross_entropy", "invariance", "distillation")
    assert not any(term.needs_across for term in objective.terms)
    expected = [
        heads_loss(logits, y, label_smoothing=0.1), 3 * invariance_penalty(net), 0.5 * distillation_loss(logits, 1),
    ]  # fmt: skip
    torch.testing.assert_close(objective(BatchOutputs(net, logits), y), torch.stack(expected))


@pytest.mark.parametrize("transforms", ["r0", "r1,r2"])
def test_distillation_needs_the_identity_head_and_another(tmp_path: Path, transforms: str) -> None:
    data = images_file(tmp_path / "x.npz")
    with pytest.raises(ConfigError, match="r0") as caught:
        run(data, tmp_path / "run", transforms=transforms, distillation=1.0)
    assert caught.value.field == "distillation"
    assert not (tmp_path / "run").exists()


def test_distillation_brings_the_identity_head_closer_to_the_mean(tmp_path: Path) -> None:
    data = images_file(tmp_path / "x.npz")

    def distance(weight: float) -> float:
        result = run(data, tmp_path / f"run{weight}", transforms="r0,r1", epochs=8, distillation=weight)
        heads = result["test"]["heads"]
        return abs(heads[0]["loss"] - result["test"]["full"]["loss"])

    assert distance(4.0) < distance(0.0)


def test_every_head_on_every_copy_includes_each_head_on_its_own_copy() -> None:
    net = TransNet(plain(), "r0,r1,r2").eval()
    x = torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    across = net.logits(x, across=True)
    assert across.shape == (4, 3, 3, 3)
    torch.testing.assert_close(across.diagonal(dim1=1, dim2=2).mT, net.logits(x))
    rotated = torch.rot90(x, 1, (-2, -1))
    torch.testing.assert_close(across[:, 1, 2], net.heads[2](net.backbone(rotated)))


def test_joint_labels_of_weight_one_are_one_softmax_over_all_pairs_of_class_and_transform() -> None:
    net = TransNet(plain(), "r0,r1,r2").eval()
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(6, 1, 8, 8, generator=generator), torch.tensor([0, 1, 2, 0, 1, 2])
    across = net.logits(x, across=True)
    outputs = BatchOutputs(net, across.diagonal(dim1=1, dim2=2).mT, across)
    config = TrainConfig(data="digits", out="x", transforms="r0,r1,r2", label_augmentation=1.0)
    objective = build_objective(config)
    assert objective.terms[1].needs_across
    # One linear layer of K·m outputs, ordered by head.
    copies = torch.cat([torch.rot90(x, k, (-2, -1)) for k in range(3)])
    weight = torch.cat([head.weight for head in net.heads])
    bias = torch.cat([head.bias for head in net.heads])
    pairs = torch.cat([k * 3 + y for k in range(3)])
    joint = torch.nn.functional.cross_entropy(net.backbone(copies) @ weight.T + bias, pairs)
    terms = dict(zip(objective.names, objective(outputs, y).tolist(), strict=True))
    assert sum(terms.values()) == pytest.approx(joint.item(), rel=1e-5)
    assert terms["joint_label"] == pytest.approx((joint - heads_loss(outputs.logits, y)).item(), rel=1e-4)


@pytest.mark.parametrize("changes", [{"transforms": "r0"}, {"transforms": "r0,r0"}, {"heads": "shared"}])
def test_joint_labels_need_separate_heads_of_different_transforms(tmp_path: Path, changes: dict[str, str]) -> None:
    data = images_file(tmp_path / "x.npz")
    with pytest.raises(ConfigError, match="separate") as caught:
        run(data, tmp_path / "run", label_augmentation=1.0, **{"transforms": "r0,r1", **changes})
    assert caught.value.field == "label_augmentation"
    assert not (tmp_path / "run").exists()


def test_joint_labels_are_learned(tmp_path: Path) -> None:
    data = images_file(tmp_path / "x.npz")
    images = torch.from_numpy(np.load(data)["x_test"]).movedim(-1, 1)

    def loss(weight: float) -> float:
        out = tmp_path / f"run{weight}"
        run(data, out, transforms="r0,r1", epochs=8, label_augmentation=weight)
        x = (images.float() / 255 - 0.3) / 0.2
        with torch.no_grad():
            across = load(out).logits(x, across=True)
        return joint_label(BatchOutputs(torch.nn.Identity(), across[:, 0], across), torch.zeros(0)).item()

    assert loss(1.0) < loss(0.0) / 5
