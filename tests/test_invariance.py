"""The invariance score, its penalty, and what random kernels score."""

import math

import pytest
import torch
import torchvision
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from transnet import d4
from transnet.invariance import (
    group_mean,
    invariance_penalty,
    invariance_score,
    layer_invariance,
    random_kernel_score,
)

GROUPS = ["r0", "r2", "r0,r1,r2,r3", "m0", "m1", "r1,m0"]


def weights(*shape):
    return torch.randn(*shape, dtype=torch.float64)


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("side", [2, 3, 5])
def test_lemma_3_the_group_mean_is_the_nearest_invariant_kernel(group, side):
    weight = weights(4, 3, side, side)
    # Invariant kernels are those that are constant on the orbits of positions: minimise over these constants.
    positions = torch.arange(side * side).reshape(side, side)
    orbit = torch.stack([d4.apply(t, positions) for t in d4.generate(group)]).amin(0).flatten()
    basis = torch.stack([(orbit == o).double() for o in orbit.unique()], 1)
    solution = torch.linalg.lstsq(basis, weight.reshape(12, -1).T).solution
    nearest = (basis @ solution).T.reshape(weight.shape)
    torch.testing.assert_close(group_mean(weight, group), nearest)
    torch.testing.assert_close(invariance_score(weight, group), (weight - nearest).flatten(1).norm(dim=1))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(d4.NAMES), min_size=1, max_size=3), st.integers(0, 10**6))
def test_a_set_is_completed_to_its_group_and_invariant_kernels_score_zero(names, seed):
    torch.manual_seed(seed)
    weight = weights(3, 2, 3, 3)
    group = d4.generate(names)
    for measure in ("l2", "relative", "cosine", "pearson"):
        completed = invariance_score(weight, group, measure)
        torch.testing.assert_close(invariance_score(weight, names, measure), completed)
    invariant = group_mean(weight, names)
    for t in group:
        torch.testing.assert_close(d4.apply(t, invariant), invariant)
    torch.testing.assert_close(invariance_score(invariant, names), torch.zeros(3).double(), rtol=0, atol=1e-12)
    torch.testing.assert_close(invariance_score(invariant, names, "pearson"), torch.ones(3).double())


def test_cosine_and_relative_are_the_cosine_and_sine_of_one_angle():
    weight = weights(6, 4, 3, 3)
    cosine, relative = (invariance_score(weight, measure=m) for m in ("cosine", "relative"))
    torch.testing.assert_close(cosine**2 + relative**2, torch.ones(6).double())
    mean = group_mean(weight).flatten(1)
    torch.testing.assert_close(cosine, torch.cosine_similarity(weight.flatten(1), mean))
    torch.testing.assert_close(relative, invariance_score(weight) / weight.flatten(1).norm(dim=1))
    rows = [torch.corrcoef(torch.stack(pair))[0, 1] for pair in zip(weight.flatten(1), mean, strict=True)]
    torch.testing.assert_close(invariance_score(weight, measure="pearson"), torch.stack(rows))


def test_zero_kernels_are_invariant_and_anti_invariant_ones_are_not():
    zeros = torch.zeros(1, 2, 3, 3)
    assert [invariance_score(zeros, measure=m).item() for m in ("l2", "relative", "cosine")] == [0, 0, 1]
    edge = torch.tensor([[[[-1.0, 0.0, 1.0]] * 3]])
    assert invariance_score(edge, "r2", "cosine").item() == 0
    assert invariance_score(edge, "m2", "relative").item() == 0


@pytest.mark.parametrize("measure", ["l2", "relative", "cosine", "pearson"])
@pytest.mark.parametrize("group", ["r0,r1,r2,r3", "m0", "r1,m0"])
def test_random_kernels_score_as_predicted(measure, group):
    values = invariance_score(weights(4000, 3, 3, 3), group, measure)
    expected = random_kernel_score((3, 3, 3), group, measure)
    assert abs(values.mean() - expected) < 4 * values.std() / math.sqrt(4000)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_constant_kernels_are_invariant_despite_rounding(dtype):
    values = torch.linspace(-1, 1, 101, dtype=dtype)
    for side in (2, 3, 5, 7):
        weight = values[:, None, None, None].expand(-1, 4, side, side)
        for group in ("r0,r1,r2,r3", "m0,r1", "r2,m0"):
            assert torch.equal(invariance_score(weight, group, "pearson"), torch.ones(101, dtype=dtype))


def test_every_kernel_is_invariant_under_the_trivial_group():
    assert random_kernel_score((3, 3, 3), "r0") == 0
    assert random_kernel_score((3, 3, 3), "r0", "cosine") == 1
    assert random_kernel_score((512, 3, 3)) == pytest.approx(math.sqrt(1 - 3 / 9), rel=1e-3)


def test_resnet18_has_the_papers_17_layers_and_is_not_changed():
    model = torchvision.models.resnet18()
    scores = layer_invariance(model)
    assert len(scores) == 17
    assert "layer2.0.downsample.0" not in scores
    assert scores["conv1"].shape == (64,)
    assert not scores["conv1"].requires_grad
    torch.testing.assert_close(scores["conv1"], invariance_score(model.conv1.weight.detach()))


def test_kernels_that_no_quarter_turn_maps_to_themselves_are_left_out():
    model = nn.Sequential(nn.Conv2d(2, 2, 1), nn.Conv2d(2, 2, (1, 3)), nn.Conv2d(2, 2, 3))
    assert list(layer_invariance(model)) == ["2"]
    with pytest.raises(ValueError, match=r"layers: unknown '0'; .* are in 2"):
        invariance_penalty(model, layers=["0"])
    with pytest.raises(ValueError, match="layers: none given"):
        invariance_penalty(model[:2])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((torch.zeros(2, 2, 3),), r"shape \(2, 2, 3\)"),
        ((torch.zeros(2, 2, 3, 1),), "must be square"),
        ((torch.zeros(2, 2, 3, 3), "r7"), "unknown 'r7'"),
        ((torch.zeros(2, 2, 3, 3), "r1", "l1"), "unknown 'l1'; known are l2 relative cosine pearson"),
    ],
)
def test_invalid_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        invariance_score(*arguments)


def test_the_penaltys_gradient_is_right_and_independent_of_scale():
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Conv2d(3, 2, 5)).double()

    def penalty(first, second):
        named = {"0.weight": first, "1.weight": second}
        return torch.func.functional_call(_Penalty(model), {f"model.{k}": v for k, v in named.items()}, ())

    assert torch.autograd.gradcheck(penalty, (model[0].weight, model[1].weight))
    value = invariance_penalty(model)
    scores = layer_invariance(model, measure="relative")
    torch.testing.assert_close(value, torch.stack([s.square().mean() for s in scores.values()]).mean())
    value.backward()
    # Scale-free: no gradient along the kernels themselves, so that it cannot be lowered by shrinking them.
    assert (model[0].weight.grad * model[0].weight).sum().abs() < 1e-12
    with torch.no_grad():
        model[0].weight.mul_(100)
    torch.testing.assert_close(invariance_penalty(model), value)


class _Penalty(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self):
        return invariance_penalty(self.model)


def test_minimising_the_penalty_makes_kernels_invariant():
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Conv2d(4, 2, 3))
    untouched = model[1].weight.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    for _ in range(100):
        optimizer.zero_grad()
        invariance_penalty(model, "m0", layers=["0"]).backward()
        optimizer.step()
    assert layer_invariance(model, "m0", "relative")["0"].max() < 1e-2
    torch.testing.assert_close(model[1].weight, untouched, rtol=0, atol=0)


def test_a_zero_kernel_has_a_finite_penalty_gradient():
    model = nn.Sequential(nn.Conv2d(2, 2, 3))
    nn.init.zeros_(model[0].weight)
    invariance_penalty(model).backward()
    assert not model[0].weight.grad.isnan().any()
