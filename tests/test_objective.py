"""The terms of the loss, by hand."""

from pathlib import Path

import pytest
import torch

from small_runs import images_file, plain, run
from transnet import TransNet
from transnet.train.config import ConfigError, TrainConfig
from transnet.train.objective import cross_entropy, distillation, objective_of


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(5, 3, 4, generator=generator).requires_grad_(), torch.tensor([0, 1, 2, 3, 0])


def test_distillation_is_the_divergence_from_the_mean_of_all_heads() -> None:
    logits, y = batch()
    found = distillation(1)(plain(), logits, y)
    together, own = logits.mean(1).softmax(-1), logits[:, 1].softmax(-1)
    by_hand = (together * (together / own).log()).sum(1).mean()
    assert found.item() == pytest.approx(by_hand.item(), rel=1e-5)
    found.backward()
    assert logits.grad is not None
    assert logits.grad[:, 1].abs().min() > 0
    assert logits.grad[:, [0, 2]].count_nonzero() == 0  # the others learn nothing from it


def test_heads_that_agree_teach_nothing() -> None:
    logits, y = batch()
    alike = logits[:, :1].expand(-1, 3, -1)
    assert distillation(0)(plain(), alike, y).item() == pytest.approx(0, abs=1e-6)


def test_the_settings_choose_the_terms() -> None:
    net = TransNet(plain(), "r1,r0,r2")
    logits, y = batch()
    plainly = cross_entropy()(net, logits, y)
    config = TrainConfig(data="digits", out="x", transforms="r1,r0,r2", distillation=0.5)
    taught = objective_of(config)(net, logits, y)
    assert taught.item() == pytest.approx((plainly + 0.5 * distillation(1)(net, logits, y)).item(), rel=1e-6)


@pytest.mark.parametrize("transforms", ["r0", "r1,r2"])
def test_without_two_heads_or_the_identity_s_there_is_nothing_to_teach(tmp_path: Path, transforms: str) -> None:
    data = images_file(tmp_path / "x.npz")
    with pytest.raises(ConfigError, match="--distillation: the identity head r0 learns from others"):
        run(data, tmp_path / "run", transforms=transforms, distillation=1.0)
    assert not (tmp_path / "run").exists()


def test_taught_the_identity_s_head_comes_closer_to_the_others(tmp_path: Path) -> None:
    data = images_file(tmp_path / "x.npz")

    def apart(weight: float) -> float:
        result = run(data, tmp_path / f"run{weight}", transforms="r0,r1", epochs=8, distillation=weight)
        heads = result["test"]["heads"]
        return abs(heads[0]["loss"] - result["test"]["full"]["loss"])

    assert apart(4.0) < apart(0.0)
