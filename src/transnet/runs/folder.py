"""A run is a folder: settings, one line per epoch, the weights and the result.

config.json          everything needed to run it again, and a description of the data
metrics.jsonl        one line per epoch
model.safetensors    the weights: backbone.*, heads.<i>.*
result.json          accuracy, loss and cost
state/               checkpoints and the lock; deleted when the run is finished
"""

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import cast

from filelock import FileLock, Timeout
from torch import Tensor, nn

from transnet.console import say
from transnet.errors import ConfigError, FileError
from transnet.model import TransNet
from transnet.runs.checkpoint import naming_last_good
from transnet.runs.config import differences
from transnet.runs.description import Description
from transnet.runs.files import read_json, sha256, write_atomically, write_tensors
from transnet.runs.records import EpochEntry, Result, RunSettings, decode, encode
from transnet.runs.weights import load_weights

CUSTOM = "custom"  # the name of a backbone that the user's own code passed in
_LOCK_TIMEOUT = 30.0  # seconds: the children of a killed process hold its lock for a few seconds more


class RunInUse(ConfigError):
    """Another process is training this run."""


class Run:
    """The folder of one run; use it to read what is stored there: ``Run("runs/t2").result().test.full.accuracy``."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config, self.metrics_file = self.path / "config.json", self.path / "metrics.jsonl"
        self.model, self.result_file = self.path / "model.safetensors", self.path / "result.json"
        self.state = self.path / "state"
        # One lock per process and path, released when the last `Run` of this path is deleted.
        self._lock = FileLock(self.state / "lock", is_singleton=True)

    @property
    def finished(self) -> bool:
        """Whether there is a result."""
        return self.result_file.exists()

    def settings(self) -> RunSettings:
        """The content of ``config.json``."""
        if self.path.is_file():
            in_run = (self.path.parent / "config.json").is_file()
            hint = f"its folder, {self.path.parent}" if in_run else "the folder of a run"
            raise FileError(f"{self.path} is a file; give {hint}")
        content = read_json(self.config, "is this the folder of a run?")
        if "kind" in content:
            raise FileError(f"{self.path} is an exported model; give the run that it was made from")
        return decode(RunSettings, content, str(self.config))

    def result(self) -> Result:
        """The content of ``result.json``."""
        return decode(Result, read_json(self.result_file, "has the run finished?"), str(self.result_file))

    def metrics(self) -> list[EpochEntry]:
        """The entries of ``metrics.jsonl``, without a line that was cut off when its process ended."""
        return [decode(EpochEntry, json.loads(line), str(self.metrics_file)) for _, line in self._metrics_lines()]

    def _metrics_lines(self) -> list[tuple[int, str]]:
        """The epoch and the text of each complete line."""
        found = []
        for line in self.metrics_file.read_text(errors="replace").split("\n") if self.metrics_file.exists() else ():
            with suppress(ValueError, KeyError, TypeError):
                found.append((int(json.loads(line)["epoch"]), line))
        return found

    def begin(self, settings: RunSettings, *, resume: bool) -> None:
        """Create the folder, or check that an existing one can be resumed, and lock it until `release`."""
        self._check_free(settings, resume=resume)  # before anything is created in a folder that is not ours
        self.acquire()
        self._check_free(settings, resume=resume)  # another process may have begun a run meanwhile
        try:
            write_atomically(self.config, json.dumps(encode(settings), indent=1).encode())
        except OSError as error:
            raise ConfigError(f"{self.path} cannot be written ({error})", field="out") from error

    def _check_free(self, settings: RunSettings, *, resume: bool) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise ConfigError(f"{self.path} is a file; give a folder", field="out")
        if self._is_empty():
            return
        if not resume:
            problem = f"{self.path} exists; add `resume` to continue that run, or give another folder"
            if not self.finished and not self._has_checkpoint():
                problem += "; it has no checkpoint yet, so `resume` starts from the beginning"
            raise ConfigError(problem, field="out")
        if self.config.exists():
            self.check_same(self.settings(), settings)
        elif not self._has_checkpoint():
            raise ConfigError(f"{self.path} does not contain a run; give another folder", field="out")

    def _is_empty(self) -> bool:
        """Whether nothing was written: a process may have been killed while it wrote its first file."""
        entries = {path.name for path in self.path.iterdir()} if self.path.is_dir() else set()
        return entries <= {"config.json.partial", "state"} and not self._has_checkpoint()

    def _has_checkpoint(self) -> bool:
        return any(path.name.isdigit() for path in self.state.glob("*"))

    def acquire(self, timeout: float | None = _LOCK_TIMEOUT) -> None:
        """Keep other processes out of this folder until `release`, or until this process ends, however it ends.

        Keep the `Run` while the lock is needed. A process may acquire the lock several times. On a file system without
        locks this does nothing. After ``timeout`` seconds (None: never), a `RunInUse` is raised.
        """
        try:
            self.state.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"{self.path} cannot be written ({error})", field="out") from error
        busy = f"another process is training {self.path}"
        with suppress(NotImplementedError, OSError):  # a file system without locks
            try:
                self._lock.acquire(timeout=0)
                return
            except Timeout:
                limit = "" if timeout is None else f" up to {timeout:g} s"
                say(f"{busy}; waiting{limit} for it to end", shown=timeout != 0)
            try:
                self._lock.acquire(timeout=-1 if timeout is None else timeout, poll_interval=0.5)
            except Timeout:
                raise RunInUse(f"{busy}; wait until it ends, or give another folder", field="out") from None

    def release(self) -> None:
        """Undo one `acquire`."""
        self._lock.release()

    def check_same(self, before: RunSettings, now: RunSettings) -> None:
        """Raise if a run was begun with other settings or other data."""
        found = differences(before.train, now.train)
        if before.data.fingerprint != now.data.fingerprint:
            found.append("the content or the splits of the data differ")
        if found:
            raise ConfigError(f"{self.path} was begun with other settings: {'; '.join(found)}", field="resume")

    def keep_metrics(self, epochs: int) -> None:
        """Drop the lines of epochs that a resumed run repeats."""
        before = self.metrics_file.read_bytes() if self.metrics_file.exists() else b""
        kept = "".join(f"{line}\n" for epoch, line in self._metrics_lines() if epoch <= epochs).encode()
        if kept != before:
            write_atomically(self.metrics_file, kept)

    def add_metrics(self, entry: EpochEntry) -> None:
        """Append the line of an epoch and flush it to the disk."""
        content = {key: value for key, value in encode(entry).items() if value is not None}
        with naming_last_good(self.state, str(self.metrics_file)), open(self.metrics_file, "a") as file:
            file.write(json.dumps(content, allow_nan=False) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def finish(self, tensors: Mapping[str, Tensor], result: Result) -> Result:
        """Write the weights and then the result, and delete the checkpoints; returns the result as written."""
        with naming_last_good(self.state, f"the trained model in {self.path}"):
            write_tensors(self.model, tensors)
            result = replace(result, model_sha256=sha256(self.model))
            write_atomically(self.result_file, json.dumps(encode(result), indent=1).encode())
        self.drop_state()
        return result

    def drop_state(self) -> None:
        """Delete the checkpoints."""
        shutil.rmtree(self.state, ignore_errors=True)


def load(path: str | Path, model: nn.Module | None = None, *, transform: str | Sequence[str] | None = ()) -> TransNet:
    """Load a finished run as a `TransNet`, in evaluation mode on the CPU.

    Args:
        path: the run's folder.
        model: the backbone with any weights; needed if the run's backbone is not one of `transnet.backbones`.
        transform: the functions of your own that the run was trained with, such as ``"gray=mypackage.transforms:gray"``
            or several of them. They are needed again, because a run is only data: what it names is not imported. None
            loads the network without them, and their heads then raise if they are used.
    """
    run = Run(path)
    settings = run.settings()
    if model is None and settings.train.model == CUSTOM:
        raise FileError(f"{run.path} was trained from a model of your own; give it as load(path, model=…)")
    about = Description.of_run(settings, str(run.config))
    if not run.model.is_file():
        kept = "only its result was kept: train it again in another folder"
        hint = kept if run.finished else "the run is not finished: continue with `resume`"
        raise FileError(f"{run.model} does not exist; {hint}")
    expected = run.result().model_sha256 if run.finished else ""
    if expected and sha256(run.model) != expected:
        raise FileError(f"{run.model} is damaged: it is not what the run wrote (model_sha256 in {run.result_file})")
    what = about.model if model is None else type(model).__name__
    transforms = about.with_functions(transform, str(run.path))
    return cast(TransNet, load_weights(run.model, lambda: about.build(model, transforms=transforms), what))
