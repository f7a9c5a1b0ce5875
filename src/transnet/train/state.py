"""The part of a run that changes while it trains, its checkpoints, and how to resume from them.

Everything random is a function of (seed, epoch or step). So a checkpoint holds only the weights, the optimizer's state,
the number of steps done and the epoch's sums.
"""

import dataclasses
import os
import time
from collections.abc import Mapping
from typing import Any

import torch

from transnet.console import counted, say
from transnet.errors import ConfigError
from transnet.runs import checkpoint
from transnet.runs.config import differences
from transnet.runs.folder import CUSTOM
from transnet.runs.provenance import command
from transnet.runs.records import Result, RunSettings, decode, encode
from transnet.train.failures import check_weights
from transnet.train.optim import state_tensors
from transnet.train.setup import Launch, Setup, open_together
from transnet.train.step import Step


class TrainState:
    """Everything that changes while a run trains. It is saved in the run folder's ``state/``."""

    def __init__(self, setup: Setup, step: Step) -> None:
        self._setup, self._step = setup, step
        self.done = 0  # steps of the whole run
        self.commit = setup.commit  # of the source code that began the run
        self._saved_at, self._seconds = 0.0, 0.0  # when the last checkpoint was written, and how long that took

    def checkpoint_is_due(self, epoch: int) -> bool:
        """Whether to write a checkpoint after that epoch, counted from 0; the same in all processes."""
        setup = self._setup
        if setup.config.checkpoint_every:
            return (epoch + 1) % setup.config.checkpoint_every == 0
        due = time.perf_counter() - self._saved_at >= 50 * self._seconds  # checkpoints take at most 2 % of the time
        return setup.world.any(setup.world.is_primary and due, setup.device)  # the clock of one process decides for all

    def save(self, *, required: bool = True) -> None:
        """Write a checkpoint; every process must call this. If it is not ``required``, a full disk is no error."""
        start = time.perf_counter()
        setup, step, world = self._setup, self._step, self._setup.world
        check_weights(setup, self.done)
        # Losses and terms are means over a batch.
        epoch = {"losses": world.mean(step.losses), "terms": world.mean(step.terms), "correct": world.sum(step.correct)}
        if not world.is_primary:
            return
        state = {
            "done": self.done,
            "commit": self.commit,
            "seconds": {**setup.stopwatch.parts, "total": setup.stopwatch.total},
            "precision": setup.precision,
            "threads": torch.get_num_threads(),
            "settings": encode(setup.settings),
            **{f"net.{name}": tensor for name, tensor in setup.net.state_dict().items()},
            **{f"optimizer.{name}": tensor for name, tensor in state_tensors(setup.optimizer).items()},
            **{f"epoch.{name}": tensor for name, tensor in epoch.items()},
            **({"past.predictions": step.past.predictions, "past.seen": step.past.seen} if step.past else {}),
        }
        try:
            checkpoint.save_checkpoint(setup.run.state, self.done, state)
        except checkpoint.CheckpointError as error:
            if required:
                raise
            say(f"warning: {error}", shown=setup.shown)
        self._saved_at = time.perf_counter()
        self._seconds = self._saved_at - start

    def restore(self) -> None:
        """Continue from the newest complete checkpoint, if the run is to be resumed and there is one."""
        setup = self._setup
        found = checkpoint.load_checkpoint(setup.run.state) if setup.config.resume else None
        if found is not None:
            for damage in found.damaged:
                say(f"warning: checkpoint {damage}; resuming from the one before", shown=setup.shown)
            before = decode(RunSettings, found.state["settings"], str(setup.run.state))
            setup.run.check_same(before, setup.settings)
            try:
                self._load(found.state)
            except RuntimeError as error:  # no setting describes a model of the user's own
                raise ConfigError(f"{setup.run.path} was begun with another model ({error})", field="resume") from error
            say(f"resuming after epoch {self.done / setup.feed.steps:.4g} of {setup.config.epochs}", shown=setup.shown)
            if (precision := found.state["precision"]) != setup.precision:
                begun = f"begun in {precision}, but this device continues in {setup.precision}"
                say(f"warning: the run was {begun}; its result will not be exactly the same", shown=setup.shown)
            threads = found.state.get("threads", torch.get_num_threads())
            if setup.device.type == "cpu" and threads != torch.get_num_threads():
                begun = f"begun with {counted(threads, 'thread')}, and this process has {torch.get_num_threads()}"
                say(f"warning: the run was {begun}; its result may differ in the last digits", shown=setup.shown)
        if setup.world.is_primary:
            setup.run.keep_metrics(self.done // setup.feed.steps)

    @torch.no_grad()
    def _load(self, state: Mapping[str, Any]) -> None:
        setup, step = self._setup, self._step
        net = {name.removeprefix("net."): value for name, value in state.items() if name.startswith("net.")}
        setup.net.load_state_dict(net)
        for name, tensor in state_tensors(setup.optimizer).items():
            tensor.copy_(state[f"optimizer.{name}"])
        if setup.world.is_primary:  # the sums over all processes; the others begin at zero
            step.losses.copy_(state["epoch.losses"] * setup.world.size)
            step.terms.copy_(state["epoch.terms"] * setup.world.size)
            step.correct.copy_(state["epoch.correct"])
        if step.past:
            step.past.predictions.copy_(state["past.predictions"])
            step.past.seen.copy_(state["past.seen"])
        self.done, self.commit = state["done"], state["commit"]
        setup.stopwatch.resume(state["seconds"])


def finished_result(launch: Launch) -> Result | None:
    """The result if ``resume`` was given and the run is already finished; raise if its settings or data differ."""
    run, config = launch.run, launch.config
    if not config.resume or not run.finished:
        return None
    before = run.settings()
    model = config.model or before.train.model if launch.model is None else CUSTOM
    found = differences(before.train, dataclasses.replace(config, model=model))
    old_path = before.train.data
    # Data in another place may have the same name but different content.
    if not found and launch.data_path != old_path and open_together(launch).fingerprint != before.data.fingerprint:
        found = [f"`data`: {old_path!r} before, {launch.data_path!r} now, with other content or splits"]
    if found:
        raise ConfigError(f"{run.path} is finished, with other settings: {'; '.join(found)}", field="resume")
    if launch.world.is_primary:
        run.drop_state()  # a process that was killed may have left it
    say(f"{run.path} is finished; nothing to do", shown=launch.shown)
    return run.result()


def how_to_resume(setup: Setup, done: int) -> str:
    """A message with how far a stopped run got and the command that resumes it."""
    epochs, steps = divmod(done, setup.feed.steps)
    more = f" and {steps} of {counted(setup.feed.steps, 'step')}" if steps else ""
    how = "the same call, with resume=True"
    if setup.model is None:
        how = f"{command(setup.config)} --resume"
        if setup.world.size > 1:
            one_machine = os.environ.get("LOCAL_WORLD_SIZE") == str(setup.world.size)
            how = f"torchrun {f'--nproc-per-node {setup.world.size}' if one_machine else '…'} -m {how}"
    total = counted(setup.config.epochs, "epoch")
    return f"stopped after {epochs} of {total}{more}; everything is saved. Continue with:\n  {how}"
