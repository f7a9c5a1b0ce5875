"""What changes while a run trains, and its checkpoints.

Everything random is a function of (seed, epoch or step). So the state of a run is its weights, the optimizer's state,
the number of steps done and the epoch's sums; nothing else has to be saved.
"""

import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from transnet.console import say
from transnet.errors import ConfigError
from transnet.runs import checkpoint
from transnet.runs.records import RunSettings, decode, encode
from transnet.train.failures import check_weights
from transnet.train.optim import state_tensors
from transnet.train.setup import Setup
from transnet.train.step import Step


class TrainState:
    """Everything that changes while a run trains, and that a resumed run needs.

    Attributes:
        done: steps done in the whole run.
        commit: the commit of the source code that began the run, if known.
    """

    def __init__(self, setup: Setup, step: Step) -> None:
        self.done, self.commit = 0, setup.commit
        self._world, self._stopwatch = setup.world, setup.stopwatch
        self._net, self._optimizer, self._step = setup.net, setup.optimizer, step

    def state_dict(self) -> dict[str, Any]:
        """The state of all processes together. Every process must call this."""
        # Losses and terms are means over a batch, so their sum over the processes is divided by their number.
        size = self._world.size
        epoch = {
            "losses": self._world.sum(self._step.losses.clone()) / size,
            "terms": self._world.sum(self._step.terms.clone()) / size,
            "correct": self._world.sum(self._step.correct.clone()),
        }
        return {
            "done": self.done,
            "commit": self.commit,
            "seconds": self._stopwatch.state_dict(),
            **{f"net.{name}": tensor for name, tensor in self._net.state_dict().items()},
            **{f"optimizer.{name}": tensor for name, tensor in state_tensors(self._optimizer).items()},
            **{f"epoch.{name}": tensor for name, tensor in epoch.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` returned. Tensors are copied in place.

        Raises:
            RuntimeError: if it is the state of another network.
        """
        self._net.load_state_dict(_under("net.", state), strict=True)
        saved = _under("optimizer.", state)
        with torch.no_grad():
            for name, tensor in state_tensors(self._optimizer).items():
                tensor.copy_(saved[name])
            if self._world.first:  # the sums over all processes; the others begin at zero
                self._step.losses.copy_(state["epoch.losses"] * self._world.size)
                self._step.terms.copy_(state["epoch.terms"] * self._world.size)
                self._step.correct.copy_(state["epoch.correct"])
        self.done, self.commit = state["done"], state["commit"]
        self._stopwatch.load_state_dict(state["seconds"])


class Checkpoints:
    """Write and read the checkpoints of a run, in its folder's ``state/``."""

    def __init__(self, setup: Setup, state: TrainState) -> None:
        self._setup, self._state = setup, state
        self._saved_at, self._seconds = 0.0, 0.0  # when a checkpoint was last written, and how long that took

    def is_due(self, epoch: int) -> bool:
        """Whether to write one after that epoch, counted from 0; all processes get the same answer."""
        setup = self._setup
        if setup.config.checkpoint_every:
            return (epoch + 1) % setup.config.checkpoint_every == 0
        late = time.perf_counter() - self._saved_at >= 50 * self._seconds
        return setup.world.any(setup.world.first and late, setup.device)  # the clock of one process decides for all

    def save(self) -> None:
        """Write a checkpoint; every process must call this.

        Raises:
            TrainingError: if the weights are not finite.
            CheckpointError: if it cannot be written.
        """
        start = time.perf_counter()
        setup, done = self._setup, self._state.done
        check_weights(setup, done)
        state = self._state.state_dict()
        if not setup.world.first:
            return
        state |= {"precision": setup.precision, "settings": encode(setup.settings)}
        checkpoint.save_checkpoint(setup.run.state, done, state)
        self._saved_at = time.perf_counter()
        self._seconds = self._saved_at - start

    def restore(self) -> None:
        """Continue from the newest complete checkpoint, if the run is to be resumed and there is one.

        Raises:
            ConfigError: if the run was begun with other settings, other data or another model.
        """
        setup, state = self._setup, self._state
        found = checkpoint.load_checkpoint(setup.run.state) if setup.config.resume else None
        if found is not None:
            for damage in found.damaged:
                say(f"warning: checkpoint {damage}; resuming from the one before", shown=setup.shown)
            before = decode(RunSettings, found.state["settings"], str(setup.run.state))
            setup.run.check_same(before, setup.settings)
            try:
                state.load_state_dict(found.state)
            except RuntimeError as error:  # no setting describes a model of the user's own
                raise ConfigError(f"{setup.run.path} was begun with another model ({error})", field="resume") from error
            self._report(found.state["precision"])
        if setup.world.first:
            setup.run.keep_metrics(state.done // setup.feed.steps)

    def _report(self, precision: str) -> None:
        setup = self._setup
        epochs = self._state.done / setup.feed.steps
        say(f"resuming after epoch {epochs:.4g} of {setup.config.epochs}", shown=setup.shown)
        if precision != setup.precision:
            say(
                f"warning: the run was begun in {precision}, but this device continues in {setup.precision}; the "
                "result will not be exactly that of the first device",
                shown=setup.shown,
            )


def _under(prefix: str, state: Mapping[str, Any]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
