"""One training step: fetch, augment, forward, loss, backward, update. On a GPU it is one captured CUDA graph.

Everything that changes from step to step is in tensors on the device: the epoch's plan, a counter, the learning
rates. So the host only launches a captured step, and the CPU runs the same code eagerly. The last batch of an epoch may
be smaller. It has a graph of its own, without `torch.compile`, which would cost more than it saves.
"""

import copy
import textwrap
from collections.abc import Callable
from contextlib import nullcontext
from types import FunctionType, MethodType
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode, conv_flop_count

from transnet.data import DataSet
from transnet.data.augment import Plan, mix
from transnet.errors import TransnetError
from transnet.model import TransNet
from transnet.runs.config import TrainConfig
from transnet.train.device import Autocast, is_out_of_memory, no_cudnn_benchmark
from transnet.train.feed import Feed
from transnet.train.inductor import compiler_options
from transnet.train.objective import BatchOutputs, Objective
from transnet.train.optim import preserved, set_learning_rate, state_tensors
from transnet.train.past_targets import PastTargets

Flops = tuple[int | None, int | None]  # of a whole training, and of the pruned network for one image


class Step:
    """Train on one batch of a `Feed` per call."""

    def __init__(
        self, net: TransNet, optimizer: torch.optim.Optimizer, feed: Feed, objective: Objective, rates: Tensor, *,
        classes: int, autocast: Autocast, compile: bool, capture: bool, distributed: bool = False,
        past: PastTargets | None = None,
    ) -> None:  # fmt: skip
        device, m = feed.labels.device, len(net.transforms)
        self.net, self.optimizer, self.feed, self.objective, self.past = net, optimizer, feed, objective, past
        self.classes, self.autocast, self.compile, self.capture = classes, autocast, compile, capture
        self.needs_across = any(term.needs_across for term in objective.terms)
        module = _Across(net) if self.needs_across else net
        self.module = nn.parallel.DistributedDataParallel(module) if distributed else module
        self.rates = rates.to(device)
        self.done = torch.zeros(1, dtype=torch.int64, device=device)  # steps of the whole run
        # The rest belongs to the epoch. Reading it waits for the device, so read it at the epoch's end.
        self.losses = torch.zeros(feed.steps, m, device=device)  # cross-entropy per head in each step
        self.correct = torch.zeros(m, device=device)  # correct predictions per head so far
        self.terms = torch.zeros(feed.steps, len(objective.terms), device=device)  # weighted; filled only if several
        self.graphs: dict[int, torch.cuda.CUDAGraph] = {}  # the captured step for each size of a batch
        self._full_batch_loss: Callable[[int, int, float], Tensor] = self._loss

    def prepare(self) -> str | None:
        """Compile and capture before the first step, so that no epoch's time includes it.

        If that raises, as without a C compiler, every step will run eagerly: return the reason in one line.
        """
        if not (self.compile or self.capture):
            return None
        counters = [self.losses, self.correct, self.terms, self.feed.step, self.done]
        counters += [self.past.predictions, self.past.seen] if self.past else []
        state = [*self.net.state_dict().values(), *state_tensors(self.optimizer).values()]
        try:
            with preserved([*state, *counters]):
                self._prepare()
        except Exception as error:
            if isinstance(error, TransnetError) or is_out_of_memory(error):
                raise
            self._full_batch_loss, self.compile, self.capture = self._loss, False, False
            self.graphs.clear()
            self.optimizer.zero_grad(set_to_none=True)
            return textwrap.shorten(f"{type(error).__name__}: {error}".partition("\n\n")[0], 300, placeholder=" …")
        return None

    def start(self, plan: Plan, step: int, done: int) -> None:
        """Begin an epoch at one of its steps; ``done`` steps of the whole run come before it."""
        self.feed.start(plan, step)
        self.done.fill_(done)
        if step == 0:
            for tensor in (self.losses, self.correct, self.terms):
                tensor.zero_()

    def __call__(self, step: int, seed: int) -> None:
        """Do a step of the epoch. Steps must be done in order, because the device counts them itself."""
        size = self.feed.size(step)
        # Dropout uses this seed. Setting it in every step means that no generator's state has to be saved.
        torch.default_generator.manual_seed(seed)
        if self.losses.device.type != "cpu":
            # `torch.manual_seed` is slower: it records a stack trace for every kind of device that is not present.
            torch.get_device_module(self.losses.device).manual_seed(seed)
        if self.capture:
            self.graphs[size].replay()
        else:
            self._run(step, size)

    def _loss(self, size: int, offset: int, weight: float) -> Tensor:
        """Do a step up to its loss, record its metrics, and advance ``feed.step``: all that compiles together."""
        x, y = self.feed.fetch(size, offset)
        indices = self.feed.indices(size, offset)
        target = self.past.targets(indices, y, self.done) if self.past else y
        if self.feed.mixes:
            x, target = mix(x, target, self.feed.mix[self.feed.step][0], self.classes)
        with self.autocast():
            logits = self.module(x)
        logits = logits.float()
        outputs = BatchOutputs(self.net, logits)
        if self.needs_across:
            outputs = BatchOutputs(self.net, logits.diagonal(dim1=1, dim2=2).mT, logits)
        terms = self.objective(outputs, target)
        with torch.no_grad():
            step = self.feed.step
            self.losses.index_copy_(0, step, (weight * _cross_entropy(outputs.logits, target))[None])
            if len(terms) > 1:
                self.terms.index_copy_(0, step, (weight * terms)[None])
            if self.past and weight:
                self.past.remember(indices, logits[:, 0], self.feed.mix[step, 0] != 0)
            if weight:
                self.correct += (outputs.logits.argmax(-1) == y[:, None]).float().sum(0)
            step += 1  # in place
        loss = terms.sum()
        return loss * weight if weight != 1 else loss

    def _run(self, step: int, size: int) -> None:
        full = size == self.feed.size(0)
        with nullcontext() if full else no_cudnn_benchmark():
            loss = (self._full_batch_loss if full else self._loss)(size, self.feed.offset(step), self.feed.weight(step))
            loss.backward()
        # This is not compiled with the loss, because the length of `rates` would be compiled in, and every other number
        # of epochs would recompile it.
        set_learning_rate(self.optimizer, self.rates[self.done][0])
        self.done += 1
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def _prepare(self) -> None:
        if self.compile:
            cloned = clone_method(self._loss)
            self._full_batch_loss = torch.compile(cloned, dynamic=False, options=compiler_options())  # type: ignore[arg-type]
        for step in (0, self.feed.steps - 1):
            if (size := self.feed.size(step)) in self.graphs:
                continue
            self._warm_up(step, size)
            if self.capture:
                pool = next(iter(self.graphs.values())).pool() if self.graphs else None
                graph = torch.cuda.CUDAGraph()
                # The outer context restores the stream, which some versions of torch do not if a capture raises.
                with torch.cuda.stream(torch.cuda.current_stream()), torch.cuda.graph(graph, pool=pool):
                    self._run(step, size)
                self.graphs[size] = graph

    def _warm_up(self, step: int, size: int) -> None:
        """Run a step three times on another stream, as capturing requires."""
        device = torch.get_device_module(self.losses.device)
        side = device.Stream()
        side.wait_stream(device.current_stream())
        try:
            with device.stream(side):
                for _ in range(3):
                    self._run(step, size)
                    self.feed.step -= 1
                    self.done -= 1  # or the last steps of a run would read beyond its learning rates
        finally:
            device.current_stream().wait_stream(side)


def clone_method(method: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A bound method with a copy of its code: runs compile it, and the compiler gives up after eight times."""
    bound = cast(MethodType, method)
    old = bound.__func__
    new = FunctionType(old.__code__.replace(), old.__globals__, old.__name__, old.__defaults__, old.__closure__)
    new.__kwdefaults__ = old.__kwdefaults__
    return MethodType(new, bound.__self__)


class _Across(nn.Module):
    """Returns the logits of every head on every copy. It is a module, so that DDP can wrap it."""

    def __init__(self, net: TransNet) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return self.net.logits(x, across=True)


def _cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy per head, for logging only. It excludes label smoothing and the objective's other terms."""
    logs = logits.log_softmax(-1)
    if target.is_floating_point():
        return -(logs * target[:, None]).sum(-1).mean(0)
    return -logs.gather(-1, target[:, None, None].expand(-1, logs.shape[1], 1)).squeeze(-1).mean(0)


def count_flops(net: TransNet, objective: Objective, data: DataSet, config: TrainConfig) -> Flops:
    """Count the floating-point operations of convolutions and matrix products, a multiply-add as two.

    The network must have run before. None if it does not run on the meta device, because it reads values.
    """
    batch = min(config.batch_size, len(data.train))
    x = torch.zeros(batch, data.channels, *data.geometry.size, device="meta")
    try:
        net = copy.deepcopy(net).to("meta").eval()  # as many operations as in training mode, and no random numbers
        with FlopCounterMode(display=False, custom_mapping={torch.ops.aten.convolution_backward: _conv_grads}) as step:
            across = any(term.needs_across for term in objective.terms)
            logits = net.logits(x, across=across)
            outputs = BatchOutputs(net, logits.diagonal(dim1=1, dim2=2).mT if across else logits, logits)
            objective(outputs, torch.zeros(batch, dtype=torch.int64, device="meta")).sum().backward()
        with FlopCounterMode(display=False) as prediction:
            net.predict(x[:1], heads=net.transforms[:1])
    except Exception:  # a network of the user's own may do anything
        return None, None
    return step.get_total_flops() * len(data.train) * config.epochs // batch, prediction.get_total_flops()


def _conv_grads(gradient: list[int], x: list[int], weight: list[int], *more: Any, **_: Any) -> int:
    """The operations of a convolution's gradients, given shapes. PyTorch's own formula ignores groups."""
    return sum(more[7][:2]) * conv_flop_count(x, weight, gradient, transposed=more[4])  # of x and weight, if needed
