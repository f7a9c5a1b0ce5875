"""The optimizer's state, for optimizers of any kind."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from transnet.runs.config import TrainConfig
from transnet.train.optim import build_optimizer, materialize_state, preserved, set_learning_rate, state_tensors

CPU = torch.device("cpu")
Build = Callable[[Iterable[Any]], torch.optim.Optimizer]
KINDS: list[Build] = [
    lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.01, nesterov=True),
    lambda parameters: torch.optim.AdamW(parameters, lr=0.1, weight_decay=0.1),
    lambda parameters: torch.optim.AdamW(parameters, lr=0.1, amsgrad=True),
]


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


def trained(net: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 3) -> list[Tensor]:
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(1))
    for _ in range(steps):
        net(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [parameter.detach().clone() for parameter in net.parameters()]


@pytest.mark.parametrize("kind", KINDS)
def test_a_materialized_state_is_zero_and_trains_as_a_new_optimizer_does(kind: Build) -> None:
    net, new = network(), network()
    before = [parameter.clone() for parameter in net.parameters()]
    optimizer = kind(net.parameters())
    materialize_state(optimizer)
    tensors = state_tensors(optimizer)
    assert len(tensors) >= 4
    assert not any(tensor.any() for tensor in tensors.values())
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), before, strict=True))
    got, expected = trained(net, optimizer), trained(new, kind(new.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))
    assert all(state_tensors(optimizer)[name] is tensor for name, tensor in tensors.items())  # the same ones


@pytest.mark.parametrize("kind", KINDS)
def test_parameters_and_state_can_be_preserved(kind: Build) -> None:
    net = network()
    optimizer = kind(net.parameters())
    materialize_state(optimizer)
    trained(net, optimizer)
    tensors = [*net.parameters(), *state_tensors(optimizer).values()]
    before = [tensor.detach().clone() for tensor in tensors]
    with preserved(tensors):
        after = trained(net, optimizer)
    assert not any(torch.equal(a, b) for a, b in zip(after, before, strict=False))
    assert all(torch.equal(a, b) for a, b in zip(tensors, before, strict=True))


def test_frozen_parameters_have_no_state() -> None:
    net = network()
    net[0].requires_grad_(False)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    materialize_state(optimizer)
    assert [tensor.shape for tensor in state_tensors(optimizer).values()] == [(3, 5), (3,)]


def test_the_learning_rate_is_set_for_every_group_whether_number_or_tensor() -> None:
    net = network()
    held = torch.tensor(0.1)
    groups = [{"params": net[0].parameters()}, {"params": net[2].parameters(), "lr": held}]
    optimizer = torch.optim.SGD(groups, lr=0.1, foreach=False, fused=True)
    set_learning_rate(optimizer, torch.tensor(0.25))
    assert [group["lr"] for group in optimizer.param_groups] == [0.25, held]
    assert held == 0.25


def test_the_settings_reach_the_optimizer() -> None:
    config = TrainConfig(data="digits", out="x", lr=0.3, momentum=0.8, nesterov=True, weight_decay=0.02)
    (group,) = build_optimizer(network(), config, CPU).param_groups
    assert (group["lr"], group["momentum"], group["nesterov"], group["weight_decay"]) == (0.3, 0.8, True, 0.02)
    still = TrainConfig(data="digits", out="x", momentum=0.0, nesterov=True)
    assert not build_optimizer(network(), still, CPU).param_groups[0]["nesterov"]
