"""A run's state: what is saved while it trains and when, and what a resumed run goes on from.

Weights, momentum, the number of steps done and the epoch's counts: everything random is a function of (seed, epoch or
step), so nothing else has to be kept.
"""

import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from transnet.console import counted, say
from transnet.errors import ConfigError, OperationError
from transnet.runs import checkpoint
from transnet.runs.records import RunSettings, decode, encode
from transnet.train.device import device_name, is_for_want_of_memory
from transnet.train.progress import loss_text
from transnet.train.setup import Prepared


class TrainingError(OperationError):
    """Training cannot go on; the message says where it stood and what to try."""


class Resumable(Prepared):
    """A prepared run whose state can be saved after any step, and taken up again."""

    _saved_at, _cost = 0.0, 0.0  # when a checkpoint was last written, and the seconds that it took

    def is_due(self, epoch: int) -> bool:
        """Whether to save after that epoch; the same answer in all processes."""
        if self.config.checkpoint_every:
            return (epoch + 1) % self.config.checkpoint_every == 0
        late = time.perf_counter() - self._saved_at >= 50 * self._cost
        return self.world.any(self.world.first and late, self.device)  # by one clock, or some would and others not

    def save(self, done: int) -> None:
        """Write a checkpoint after ``done`` steps; weights that are not finite are refused."""
        begun = time.perf_counter()
        self.check_weights(done)
        losses = self.world.sum(self.step.losses.clone()) / self.world.size
        correct = self.world.sum(self.step.correct.clone())
        if not self.world.first:
            return
        tensors = {f"net.{name}": tensor for name, tensor in self.net.state_dict().items()}
        for name, parameter in self.net.named_parameters():
            tensors[f"momentum.{name}"] = self.optimizer.state[parameter]["momentum_buffer"]
        tensors |= {"epoch.losses": losses, "epoch.correct": correct}
        state = {
            "done": done,
            "took": self.took.so_far(),
            "commit": self.commit,
            "precision": self.precision,
            "settings": encode(self.content),
        }
        checkpoint.save(self.run.state, done, {k: v.detach().cpu() for k, v in tensors.items()}, state)
        self._saved_at = time.perf_counter()
        self._cost = self._saved_at - begun

    def restore(self) -> int:
        """Steps done before; 0 for a new run."""
        found = checkpoint.load(self.run.state) if self.config.resume else None
        if found is None:
            if self.world.first:
                self.run.keep_metrics(0)
            return 0
        for damage in found.damaged:
            say(f"warning: checkpoint {damage}; going on from the one before", shown=self.speaks)
        self.run.check_same(decode(RunSettings, found.state["settings"], str(self.run.state)), self.content)
        names = [n.removeprefix("net.") for n in found.tensors if n.startswith("net.")]
        try:
            self.net.load_state_dict({n: found.tensors[f"net.{n}"] for n in names}, strict=True)
        except RuntimeError as error:  # a model of the user's own, which no setting describes
            raise ConfigError(f"{self.run.path} was begun with another model ({error})", field="resume") from error
        with torch.no_grad():
            for name, parameter in self.net.named_parameters():
                self.optimizer.state[parameter]["momentum_buffer"].copy_(found.tensors[f"momentum.{name}"])
            if self.world.first:  # the sums over all processes: the others begin at zero
                self.step.losses.copy_(found.tensors["epoch.losses"] * self.world.size)
                self.step.correct.copy_(found.tensors["epoch.correct"])
        done: int = found.state["done"]
        self.took.go_on(found.state.get("took", {}))
        self.commit = found.state.get("commit", self.commit)
        if self.world.first:
            self.run.keep_metrics(done // self.feed.steps)
        say(f"going on after epoch {done / self.feed.steps:.4g} of {self.config.epochs}", shown=self.speaks)
        if (before := found.state.get("precision", self.precision)) != self.precision:
            say(
                f"warning: begun in {before}, but this device goes on in {self.precision}; the run will not end as it "
                "would have on the other",
                shown=self.speaks,
            )
        return done

    def how_to_go_on(self, epoch: int, step: int) -> str:
        """Where a stopped run stood, and the command that goes on with it."""
        more = f" and {step} of {counted(self.feed.steps, 'step')}" if step else ""
        again = f"{self._command(self.config)} --resume" if self.given is None else "the same call, with resume=True"
        if self.world.size > 1 and self.given is None:
            alone = os.environ.get("LOCAL_WORLD_SIZE") == str(self.world.size)  # on one machine
            again = f"torchrun {f'--nproc-per-node {self.world.size}' if alone else '…'} -m {again}"
        stood = f"{epoch} of {counted(self.config.epochs, 'epoch')}{more}"
        return f"stopped after {stood}; everything is saved. Go on with:\n  {again}"

    def check_losses(self, epoch: int, steps: int) -> None:
        """Stop where one of an epoch's first ``steps`` losses is not finite."""
        # The sum over the processes: all of them find the same step, and stop.
        losses = self.world.sum(self.step.losses[:steps].clone()).mean(1) / self.world.size
        if math.isfinite(losses.sum().item()):
            return
        bad = int((~losses.isfinite()).nonzero()[0].item())
        at = epoch * self.feed.steps + bad
        raise TrainingError(
            f"the loss is {losses[bad].item()} at step {at} (epoch {epoch + 1}, step {bad + 1} of {self.feed.steps}), "
            f"learning rate {self.rates[at].item():.4g}; {self.what_to_try()}"
        )

    def warn_of_loss(self) -> None:
        """Say so where the last epoch's loss, finite as it is, is far above that of guessing."""
        losses = self.world.sum(self.step.losses.clone()) / self.world.size
        loss = (losses.mean(1, keepdim=True) * self.feed.shares).sum().item()
        chance = math.log(len(self.data.classes))
        if loss > 2 * chance:
            say(
                f"warning: the last epoch's training loss is {loss_text(loss)}, far above that of guessing, "
                f"{chance:.2f}: the run seems to have diverged. Try a smaller `lr`, in another `out`",
                shown=self.speaks,
            )

    def check_weights(self, done: int) -> None:
        """Stop where they are not finite: the last step's loss does not show yet what that step made of them."""
        if nn.utils.get_total_norm(p.detach() for p in self.net.parameters()).isfinite():
            return
        raise TrainingError(
            f"the weights are not finite after step {done - 1}, learning rate {self.rates[done - 1].item():.4g}; "
            f"{self.what_to_try()}"
        )

    def what_to_try(self) -> str:
        """After a loss that is not finite."""
        return (
            f"last good checkpoint: {checkpoint.last_good(self.run.state)}. Try a smaller `lr`, or `precision` fp32, "
            "in another `out`"
        )

    @contextmanager
    def enough_memory(self) -> Iterator[None]:
        """While the block lasts, want of memory is a message that says what needs less."""
        try:
            yield
        except (RuntimeError, MemoryError) as error:
            if not is_for_want_of_memory(error):
                raise
            batch, heads = self.config.batch_size, len(self.config.names)
            each = f" in {self.world.size} processes" if self.world.size > 1 else ""
            if self.at_once > 1:
                advice = f"Up to {self.at_once} runs share the device: `jobs` 1 gives all of it to each"
            else:
                advice = (
                    "A smaller `batch_size` needs less, and usually a smaller `lr` with it; so do fewer `transforms`, "
                    "a smaller `image_size` or `model`"
                )
            raise TrainingError(
                f"out of memory on {device_name(self.device)}. A step puts {batch * heads:,} images through the "
                f"network at once{each}: a batch of {batch} times {counted(heads, 'head')}. {advice}"
            ) from error
