"""The learning rate of every step."""

import math

import pytest
import torch

from transnet.runs.config import TrainConfig
from transnet.runs.recipes import settings as recipe
from transnet.train.optim import learning_rates


def rates(steps: int = 10, **changes: object) -> torch.Tensor:
    return learning_rates(TrainConfig(**{"data": "digits", "out": "x", "lr": 0.4, **changes}), steps)  # type: ignore[arg-type]


def test_one_rate_a_step() -> None:
    assert rates(7, epochs=5).shape == (35,)


@pytest.mark.parametrize("warmup", [0.0, 0.1, 0.2, 0.5, 0.9])
def test_onecycle_rises_in_a_line_to_the_highest_and_falls_as_a_cosine_to_nearly_zero(warmup: float) -> None:
    table = rates(10, epochs=10, warmup=warmup)
    top = int(table.argmax())
    assert table[top].item() == pytest.approx(0.4)
    assert top == max(round(warmup * 100) - 1, 0)
    rising = table[: top + 1]
    torch.testing.assert_close(rising, 0.4 * torch.arange(1, top + 2) / (top + 1))
    assert (table[top:].diff() < 0).all()
    assert 0 < table[-1] < 0.4 * 0.03
    middle = top + (100 - top) / 2
    assert table[int(middle)].item() == pytest.approx(0.2, rel=0.2)


@pytest.mark.parametrize(("epochs", "steps"), [(1, 1), (1, 2), (2, 1), (1, 3)])
def test_the_shortest_runs_have_usable_rates(epochs: int, steps: int) -> None:
    table = rates(steps, epochs=epochs)
    assert table.isfinite().all()
    assert (table > 0).all()
    assert table.max() <= 0.4


def test_steps_divide_by_ten_at_each_milestone() -> None:
    table = rates(3, epochs=8, schedule="steps", milestones="0.5,0.75")
    expected = [0.4] * 12 + [0.04] * 6 + [0.004] * 6
    torch.testing.assert_close(table, torch.tensor(expected))


def test_the_first_epoch_always_has_the_full_rate() -> None:
    assert (rates(3, epochs=1, schedule="steps", milestones="0.5,0.75") == torch.tensor(0.4)).all()


def test_no_milestone_is_a_constant_rate() -> None:
    assert (rates(3, epochs=4, schedule="steps", milestones="") == torch.tensor(0.4)).all()


@pytest.mark.parametrize(
    ("data", "falls"), [("cifar100", {0: 0.1, 149: 0.1, 150: 0.01, 224: 0.01, 225: 0.001, 299: 0.001}),
                        ("imagenet200", {0: 0.1, 39: 0.1, 40: 0.01, 79: 0.01, 80: 0.001, 119: 0.001})],
)  # fmt: skip
def test_the_paper_divides_where_its_appendix_says(data: str, falls: dict[int, float]) -> None:
    steps = 4
    table = learning_rates(TrainConfig(data=data, out="x", **recipe("paper", data)), steps)
    assert len(table) == steps * (max(falls) + 1)
    for epoch, rate in falls.items():
        for step in (0, steps - 1):
            assert math.isclose(table[epoch * steps + step].item(), rate, rel_tol=1e-6)
