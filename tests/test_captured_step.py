"""What lets a GPU capture the training step, tested on a CPU: nothing is read back to the host, and shapes are fixed.

The step of a real run gets tensors without values. Reading one raises, and so does a shape that depends on values. The
whole step runs with tensors of the CPU, because torch cannot go backward on a GPU that is not there. The part up to the
loss runs again with tensors of a GPU.
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from small_runs import images_file, settings
from transnet.data.augment import View
from transnet.train.objective import BatchOutputs, Objective, Term
from transnet.train.optim import build_optimizer
from transnet.train.setup import Launch, Setup, prepare
from transnet.train.trainer import Trainer

OPTIONS: list[dict[str, Any]] = [
    {"precision": "fp32"},  # as on a GPU without native bf16
    {"precision": "bf16"},
    {"mixup": 0.4},
    {"cutmix": 1.0},
    {"mixup": 0.4, "cutmix": 1.0, "label_smoothing": 0.1},
    {"label_smoothing": 0.1},
    {"distillation": 1.0},
    {"label_augmentation": 1.0},
    {"invariance_weight": 0.1},
    {"transforms": "r0"},
    {"transforms": "r0,r1,r2,m3"},
    {"transforms": "r0,gray", "transform": ("gray=transnet.transforms:gray",)},
    {"transforms": "invert,r1,r0", "transform": ("invert=transnet.transforms:invert",)},
    {"heads": "shared"},
    {"bn": "separate"},
    {"flip": True},
    {"pad": 2},
    {"rotate": "r0,r1,m2,m3"},
    {"rotate": "r0,r3", "storage": "stream", "pad": 2},
    {"storage": "stream"},
    {"storage": "stream", "pad": 0, "flip": True},
    {"schedule": "steps"},
    {"momentum": 0.0, "nesterov": False},
    {"transforms": "r0", "past_targets": 0.8},
    {"transforms": "r0", "past_targets": 0.8, "cutmix": 1.0, "mix_share": 0.5, "storage": "stream"},
]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return images_file(tmp_path_factory.mktemp("data") / "x.npz", n=40, test=6)


class OnGPU(TorchDispatchMode):
    """Raise if an operation makes a tensor on the host, from where copying it would wait."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        assert all(leaf.is_cuda for leaf in tree_leaves(result) if isinstance(leaf, Tensor)), func
        return result


def without_values(tensor: Tensor, device: str) -> Tensor:
    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=device)


def drop_values(setup: Setup, kind: str) -> Setup:
    """The parts of a run with tensors without values on a kind of device; the optimizer is that of a GPU."""
    for module in setup.net.modules():
        for name, tensor in module._parameters.items():
            module._parameters[name] = None if tensor is None else nn.Parameter(without_values(tensor, kind))
        for name, tensor in module._buffers.items():
            module._buffers[name] = None if tensor is None else without_values(tensor, kind)
    feed = setup.feed
    for name, value in vars(feed).items():
        if isinstance(value, Tensor):
            setattr(feed, name, without_values(value, kind))
        if isinstance(value, View):
            scale, shift = (without_values(tensor, kind) for tensor in (value.scale, value.shift))
            setattr(feed, name, dataclasses.replace(value, scale=scale, shift=shift))
    optimizer = build_optimizer(setup.net, setup.config, torch.device("cuda"))
    rates = without_values(setup.rates, kind)
    return dataclasses.replace(setup, device=torch.device(kind), optimizer=optimizer, rates=rates)


def check(data: Path, out: Path, *terms: Term, **options: Any) -> None:
    """Run a step of a whole batch and one of a smaller batch; ``terms`` are added to the objective."""
    with torch.library._scoped_library("aten", "IMPL") as library:
        library.impl("_fused_sgd_.tensor_lr", lambda *_, **__: None, "Meta")  # torch has none
        for kind in ("cpu", "cuda"):
            setup = prepare(Launch.of(settings(data, out / kind, **options), quiet=True))
            setup.run.release()
            objective = Objective((*setup.objective.terms, *terms))
            with FakeTensorMode():
                step = Trainer(dataclasses.replace(drop_values(setup, kind), objective=objective)).step
                assert isinstance(step.optimizer.param_groups[0]["lr"], Tensor)
                for k in (0, setup.feed.steps - 1):
                    size = setup.feed.size(k)
                    if kind == "cpu":
                        step._run(k, size)
                        continue
                    with OnGPU():
                        assert step._loss(size, setup.feed.offset(k), setup.feed.weight(k)).shape == ()


@pytest.mark.filterwarnings("ignore:CUDA is not available")
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_step_reads_nothing_back_and_has_fixed_shapes(data: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    check(data, tmp_path, **options)


def reads(out: BatchOutputs, _: Tensor) -> Tensor:
    return out.logits.sum() * out.logits.max().item()


def shape_of_values(out: BatchOutputs, y: Tensor) -> Tensor:
    return out.logits[y > 0].mean()


def copies(out: BatchOutputs, _: Tensor) -> Tensor:
    return out.logits.sum() * torch.tensor([2.0], device=out.logits.device)[0]


@pytest.mark.parametrize(
    ("function", "error"),
    [(reads, DataDependentOutputException), (shape_of_values, DynamicOutputShapeException), (copies, AssertionError)],
)
def test_a_step_that_breaks_the_rule_is_found(
    data: Path, tmp_path: Path, function: Callable[[BatchOutputs, Tensor], Tensor], error: type[Exception]
) -> None:
    with pytest.raises(error):
        check(data, tmp_path, Term("extra", 1.0, function))
