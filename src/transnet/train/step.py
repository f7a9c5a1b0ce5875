"""One training step: fetch, augment, forward, loss, backward, update. On a GPU it is one captured CUDA graph.

Everything the step reads that changes from step to step lives in tensors on the device: the epoch's plan, a counter,
the learning rates. So the host's part of a captured step is a single launch, and the CPU runs the very same code
eagerly.

The last batch of an epoch is smaller. It gets a graph of its own, of the uncompiled step: compiling a second shape
would cost more than it saves.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import FunctionType, MethodType
from typing import Any, cast

import torch
from torch import Tensor, nn

from transnet.data.augment import Plan, View, mix
from transnet.model import TransNet
from transnet.train.device import untried_convolutions
from transnet.train.distributed import World
from transnet.train.objective import Objective, Said


def compiler_options(device: torch.device) -> dict[str, Any]:
    """For `torch.compile`: what makes the step faster on a GPU than the defaults do."""
    if device.type != "cuda":
        return {}
    from transnet.train.inductor.rewrite import Rewrite  # and with it the compiler, which takes seconds to import

    return {
        "max_autotune_pointwise": True,  # more tilings of the batch-norm kernels to choose from
        "combo_kernels": True,  # the many small ones, such as the casts of the weights, together
        "triton.enable_pdl": True,  # a kernel is set up while the one before it ends
        "joint_custom_post_pass": Rewrite(),
    }


def of_its_own(method: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A bound method with its own copy of the code.

    The compiler keeps what it made with the code and gives up after eight versions of it: in a process that has
    trained eight times, the ninth run would be uncompiled.
    """
    bound = cast(MethodType, method)
    old = bound.__func__
    new = FunctionType(old.__code__.replace(), old.__globals__, old.__name__, old.__defaults__, old.__closure__)
    new.__kwdefaults__ = old.__kwdefaults__
    return MethodType(new, bound.__self__)


class Feed:
    """The training images as the step sees them: on the device whole, or a batch at a time from a stream.

    Args:
        images: uint8 (N, S, S, C) on the device, or None where batches are copied in.
        labels: int64 (N,).
        view: geometry and statistics.
        batch: images a step, over all processes.
        world: this process's place; it fetches its share of each batch.
        device: where the step runs.
        mixes: whether batches are mixed (mixup, CutMix).
    """

    def __init__(
        self,
        images: Tensor | None,
        labels: Tensor,
        view: View,
        batch: int,
        world: World,
        device: torch.device,
        *,
        mixes: bool = False,
    ) -> None:
        n = len(labels)
        self.images, self.view, self.batch, self.world = images, view, batch, world
        self.labels = labels.to(device)
        self.steps = -(-n // batch)
        self.order = torch.zeros(n, dtype=torch.int64, device=device)
        self.crop = torch.zeros(n, 2, device=device)
        self.flip = torch.zeros(n, dtype=torch.bool, device=device)
        self.mix = torch.zeros(self.steps, 6, device=device)
        self.mixes = mixes
        # Step within the epoch. One element, not none: indexing with a scalar tensor would read it on the host.
        self.at = torch.zeros(1, dtype=torch.int64, device=device)
        self.pixels: Tensor | None = None
        if images is None:
            # Streamed images arrive cropped, unless the crop needs padding, which is added here.
            shape = (self.size(0), *view.geometry.streamed.size, len(view.scale))
            self.pixels = torch.zeros(shape, dtype=torch.uint8, device=device)

    def start(self, plan: Plan, step: int = 0) -> None:
        """Take up an epoch's plan, at its ``step``."""
        self.order.copy_(plan.order)
        self.crop.copy_(plan.crop)
        self.flip.copy_(plan.flip)
        self.mix.copy_(plan.mix)
        self.at.fill_(step)

    def size(self, step: int) -> int:
        """Images in this process's share of a step's batch; 1, of weight 0, where it has none."""
        return max(self._share(step)[1], 1)

    def weight(self, step: int) -> float:
        """What this process's mean loss counts for in the mean over all processes."""
        return self._share(step)[1] * self.world.size / self._global(step)

    @property
    def shares(self) -> Tensor:
        """Of each step in the epoch's images; the last may be smaller. (steps, 1), to weight its losses."""
        sizes = [self._global(step) for step in range(self.steps)]
        return torch.tensor(sizes, device=self.order.device)[:, None] / len(self.order)

    def positions(self, step: int) -> slice:
        """This process's part of the epoch's order in a step, for streaming."""
        start, _ = self._share(step)
        start = min(step * self.batch + start, len(self.order) - 1)
        return slice(start, start + self.size(step))

    def fetch(self, size: int, offset: int) -> tuple[Tensor, Tensor]:
        """The current step's images, augmented and normalised, and their labels."""
        positions = self.at * self.batch + offset + torch.arange(size, device=self.order.device)
        positions = positions.clamp(max=len(self.order) - 1)
        index, flip = self.order[positions], self.flip[positions]
        if self.images is not None:
            x = self.view.train(self.images, index, self.crop[positions], flip)
        elif self.view.geometry.pad:
            assert self.pixels is not None
            x = self.view.train(self.pixels, torch.arange(size, device=index.device), self.crop[positions], flip)
        else:
            assert self.pixels is not None
            x = self.view.normalise(self.pixels[:size])
            x = torch.where(flip[:, None, None, None], x.flip(-1), x)
        return x, self.labels[index]

    def offset(self, step: int) -> int:
        """Where this process's share of a batch begins."""
        return self._share(step)[0]

    def _global(self, step: int) -> int:
        return min(self.batch, len(self.order) - step * self.batch)

    def _share(self, step: int) -> tuple[int, int]:
        return self.world.share(self._global(step))


class Step:
    """The step over a `Feed`.

    After `__call__`, ``losses`` holds each step's loss per head (steps, m) and ``correct`` the epoch's hits (m,),
    both on the device: reading them is for the end of an epoch.
    """

    def __init__(
        self,
        net: TransNet,
        optimizer: torch.optim.SGD,
        feed: Feed,
        objective: Objective,
        rates: Tensor,
        *,
        classes: int,
        autocast: Callable[[], AbstractContextManager[Any]],
        compile: bool,
        capture: bool,
        module: nn.Module | None = None,
    ) -> None:
        device = feed.labels.device
        m = len(net.transforms)
        self.net, self.optimizer, self.feed, self.objective = net, optimizer, feed, objective
        self.module = module or training_module(net, objective)  # what is called: this, or DDP around it
        self.classes, self.autocast, self.across = classes, autocast, objective.across
        self.rates = rates.to(device)
        self.done = torch.zeros(1, dtype=torch.int64, device=device)  # steps of the whole run
        rate = optimizer.param_groups[0]["lr"]
        self.rate = rate if isinstance(rate, Tensor) else torch.tensor(float(rate))
        self.losses = torch.zeros(feed.steps, m, device=device)
        self.correct = torch.zeros(m, device=device)
        self.compile, self.capture = compile, capture
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._compiled: Callable[[int, int, float], Tensor] = (
            torch.compile(of_its_own(self._loss), dynamic=False, options=compiler_options(device))
            if compile
            else self._loss
        )

    def prepare(self) -> None:
        """Compile and capture before the first step, so that no epoch's time has it in."""
        if self.capture:
            for step in (0, self.feed.steps - 1):
                if (size := self.feed.size(step)) not in self._graphs:
                    self._graphs[size] = self._captured(step, size)

    def graph(self, size: int) -> torch.cuda.CUDAGraph:
        """The captured step for batches of ``size``."""
        return self._graphs[size]

    def start(self, plan: Plan, step: int, done: int) -> None:
        """Begin an epoch, or go on within it."""
        self.feed.start(plan, step)
        self.done.fill_(done)
        if step == 0:
            self.losses.zero_()
            self.correct.zero_()

    def __call__(self, step: int, seed: int) -> None:
        """Do the epoch's ``step``; the counters on the device must stand there.

        Args:
            step: within the epoch.
            seed: of what the network itself draws (dropout): given anew each step, so that no state of a random
                generator is part of a run's state.
        """
        size = self.feed.size(step)
        torch.default_generator.manual_seed(seed)
        if self.losses.device.type == "cuda":
            # Not `torch.manual_seed`: it notes down every call for the kinds of device that are not there.
            torch.cuda.manual_seed(seed)
        if self.capture:
            self._graphs[size].replay()
        else:
            self._run(step, size)

    def _loss(self, size: int, offset: int, weight: float) -> Tensor:
        """The step up to its loss, and the bookkeeping, so that both compile together."""
        x, y = self.feed.fetch(size, offset)
        target = y
        if self.feed.mixes:
            x, target = mix(x, y, self.feed.mix[self.feed.at][0], self.classes)
        with self.autocast():
            logits = self.module(x)
        logits = logits.float()
        said = Said(self.net, logits)
        if self.across:
            said = Said(self.net, logits.diagonal(dim1=1, dim2=2).mT, logits)
        loss = self.objective(said, target)
        with torch.no_grad():
            self.losses.index_copy_(0, self.feed.at, (weight * _per_head(said.logits, target))[None])
            if weight:
                self.correct += (said.logits.argmax(-1) == y[:, None]).float().sum(0)
            self.feed.at += 1
        return loss * weight if weight != 1 else loss

    def _run(self, step: int, size: int) -> None:
        full = size == self.feed.size(0)
        with nullcontext() if full else untried_convolutions():
            loss = (self._compiled if full else self._loss)(size, self.feed.offset(step), self.feed.weight(step))
            loss.backward()
        # Not compiled with the rest: the table's length would be part of the code, compiled anew for other epochs.
        self.rate.copy_(self.rates[self.done][0])
        self.done += 1
        if self.rate.device.type == "cpu":
            self.optimizer.param_groups[0]["lr"] = self.rate.item()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def _captured(self, step: int, size: int) -> torch.cuda.CUDAGraph:
        with self._restored():
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(3):
                    self._run(step, size)
                    self.feed.at -= 1
                    self.done -= 1  # or the last steps of a run would read beyond its learning rates
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            pool = next(iter(self._graphs.values())).pool() if self._graphs else None
            with torch.cuda.graph(graph, pool=pool):
                self._run(step, size)
        return graph

    @contextmanager
    def _restored(self) -> Iterator[None]:
        """Warming up changes weights, momentum, statistics and counters: put all back afterwards, in place."""
        momentum = [state["momentum_buffer"] for state in self.optimizer.state.values() if "momentum_buffer" in state]
        own = [self.losses, self.correct, self.feed.at, self.done]
        tensors = [*self.net.state_dict().values(), *momentum, *own]
        before = [tensor.clone() for tensor in tensors]
        try:
            yield
        finally:
            with torch.no_grad():
                for tensor, value in zip(tensors, before, strict=True):
                    tensor.copy_(value)


class _Across(nn.Module):
    """The logits of every head on every copy, as a module, so that DDP can wrap it."""

    def __init__(self, net: TransNet) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return self.net.logits(x, across=True)


def training_module(net: TransNet, objective: Objective) -> nn.Module:
    """The module whose output the objective needs; wrap this one in DDP."""
    return _Across(net) if objective.across else net


def _per_head(logits: Tensor, target: Tensor) -> Tensor:
    """Plain cross-entropy per head, for the record: what the objective adds to it is not in it."""
    logs = logits.log_softmax(-1)
    if target.is_floating_point():
        return -(logs * target[:, None]).sum(-1).mean(0)
    return -logs.gather(-1, target[:, None, None].expand(-1, logs.shape[1], 1)).squeeze(-1).mean(0)
