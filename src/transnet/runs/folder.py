"""A run is a folder: what was asked for, what happened, the weights and the result.

config.json          all that is needed to run it again, and what the data looked like
metrics.jsonl        a line an epoch
model.safetensors    the weights: backbone.*, heads.<i>.*
result.json          accuracy, loss, cost
state/               to resume; gone when the run is finished
"""

import json
import math
import os
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from torch import Tensor, nn

from transnet.model import TransNet
from transnet.runs import checkpoint
from transnet.runs.config import ConfigError, differences
from transnet.runs.description import of_run, read_json
from transnet.runs.weights import load_weights
from transnet.train.progress import say

CUSTOM = "custom"  # the name of a backbone that a user's code hands over
_PATIENCE = 30  # seconds, about


class Run:
    """The folder of one run."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config, self.metrics = self.path / "config.json", self.path / "metrics.jsonl"
        self.model, self.result = self.path / "model.safetensors", self.path / "result.json"
        self.state = self.path / "state"
        self._held: int | None = None

    def read_config(self) -> dict[str, Any]:
        """``config.json``, or a clear error."""
        if self.path.is_file():
            beside = self.path.parent / "config.json"
            which = f"its folder, {self.path.parent}" if beside.is_file() else "the folder of a run"
            raise ConfigError(f"{self.path} is a file; give {which}")
        content = read_json(self.config, "is this the folder of a run?")
        if "kind" in content:
            raise ConfigError(f"{self.path} is an exported model; give the run that it was made of")
        if not isinstance(content.get("train"), dict) or not isinstance(content.get("data"), dict):
            raise ConfigError(f"{self.config} is damaged: it has no settings")
        return content

    def read_result(self) -> dict[str, Any]:
        """``result.json``, or a clear error."""
        return read_json(self.result, "has the run finished?")

    def read_metrics(self) -> list[dict[str, Any]]:
        """``metrics.jsonl``, an entry an epoch."""
        return [json.loads(line) for line in self._metrics_lines()]

    @property
    def finished(self) -> bool:
        """Whether there is a result."""
        return self.result.exists()

    def begin(self, content: dict[str, Any], *, resume: bool) -> None:
        """Make the folder, or take up an existing one.

        Raises:
            ConfigError: where it exists without ``resume``, or was begun with other settings.
        """
        self._check_free(content, resume=resume)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._hold()
            self._check_free(content, resume=resume)  # another process may have begun one meanwhile
            checkpoint.write_atomically(self.config, json.dumps(content, indent=1).encode())
        except OSError as error:
            raise ConfigError(f"--out: {self.path} cannot be written ({error})") from error

    def _check_free(self, content: dict[str, Any], *, resume: bool) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise ConfigError(f"--out: {self.path} is a file; give a folder")
        # A process that was killed while it wrote its first file leaves that one only.
        if self.path.is_dir() and any(entry.name != "config.json.partial" for entry in self.path.iterdir()):
            if not resume:
                none = not self.finished and not self.state.exists()
                why = "; it has no checkpoint yet, so --resume begins anew, with the same settings" if none else ""
                raise ConfigError(
                    f"--out: {self.path} exists; add --resume to go on with it, or give another folder{why}"
                )
            if not self.config.exists() and not self.state.exists():
                raise ConfigError(f"--out: {self.path} holds no run; give another folder")
            if self.config.exists():
                self.check_same(self.read_config(), content)

    def _hold(self) -> None:
        """Keep other processes of this machine out of the folder until `release`, or the end of this one."""
        try:
            import fcntl
        except ImportError:  # Windows
            return
        self._held = os.open(self.path, os.O_RDONLY)
        for attempt in range(_PATIENCE):  # a killed process's children live on for a few seconds
            try:
                fcntl.flock(self._held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not attempt:
                    say(f"another process trains {self.path}; waiting up to {_PATIENCE} s for its end")
                time.sleep(1)
            except OSError:  # a file system without locks
                return
            else:
                return
        self.release()
        raise ConfigError(f"--out: another process trains {self.path}; wait for its end, or give another folder")

    def release(self) -> None:
        """Let other processes train in the folder."""
        if self._held is not None:
            import fcntl

            with suppress(OSError):  # a file system without locks
                fcntl.flock(self._held, fcntl.LOCK_UN)  # closing alone would not: children have it open as well
            os.close(self._held)
            self._held = None

    def check_same(self, before: dict[str, Any], content: dict[str, Any]) -> None:
        """Refuse to go on with a run of other settings or other data.

        Args:
            before: what `describe` said when the run was begun.
            content: what it says now.
        """
        found = differences(before["train"], content["train"])
        if before["data"].get("fingerprint") != content["data"]["fingerprint"]:
            found.append("the data: its content or splits differ")
        if found:
            raise ConfigError(f"--resume: {self.path} was begun with other settings: {'; '.join(found)}")

    def keep_metrics(self, epochs: int) -> None:
        """Drop lines of epochs that a resumed run does again."""
        before = self.metrics.read_bytes() if self.metrics.exists() else b""
        lines = [line for line in self._metrics_lines() if json.loads(line)["epoch"] <= epochs]
        kept = "".join(line + "\n" for line in lines).encode()
        if kept != before:
            checkpoint.write_atomically(self.metrics, kept)

    def _metrics_lines(self) -> list[str]:
        """The whole lines; one that was cut off by the end of a process is left out."""
        if not self.metrics.exists():
            return []
        return [line for line in self.metrics.read_text(errors="replace").split("\n") if _is_entry(line)]

    def add_metrics(self, entry: dict[str, Any]) -> None:
        """Append an epoch's line and flush it."""
        try:
            with open(self.metrics, "a") as file:
                file.write(json.dumps(_finite(entry), allow_nan=False) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            good = checkpoint.last_good(self.state)
            raise checkpoint.CheckpointError(
                f"{self.metrics} could not be written ({error}); the last good checkpoint is {good}"
            ) from error

    def finish(self, tensors: dict[str, Tensor], result: dict[str, Any]) -> dict[str, Any]:
        """Write the weights, then the result, then drop what was for resuming; the result as it was written.

        Raises:
            CheckpointError: where they cannot be written, such as on a full disk.
        """
        try:
            checkpoint.write_tensors(self.model, tensors)
            result = {**result, "model_sha256": checkpoint.sha256(self.model)}
            checkpoint.write_atomically(self.result, json.dumps(result, indent=1).encode())
        except OSError as error:
            raise checkpoint.CheckpointError(
                f"the trained model could not be written to {self.path} ({error}); the last good checkpoint is "
                f"{checkpoint.last_good(self.state)}: make room, and go on with --resume"
            ) from error
        self.drop_state()
        return result

    def drop_state(self) -> None:
        """Delete what was for resuming."""
        shutil.rmtree(self.state, ignore_errors=True)


def load(path: str | Path, model: nn.Module | None = None) -> TransNet:
    """A finished run as a `TransNet` in eval mode on the CPU.

    Args:
        path: the run's folder.
        model: the backbone with any weights, where the run's was not one of `transnet.backbones`.
    """
    run = Run(path)
    content = run.read_config()
    if model is None and content["train"].get("model") == CUSTOM:
        raise ConfigError(f"{run.path}: was trained from a model of your own; give it as load(path, model=…)")
    about = of_run(content, run.config, named=model is None)
    if not run.model.is_file():
        hint = "its result was kept without: train it again in another folder"
        raise ConfigError(
            f"{run.model} does not exist; {hint if run.finished else 'the run is not finished: go on with --resume'}"
        )
    expected = run.read_result().get("model_sha256") if run.finished else None
    if expected and checkpoint.sha256(run.model) != expected:
        raise ConfigError(f"{run.model} is damaged: it is not what the run wrote (model_sha256 in {run.result})")
    what = about.model if model is None else type(model).__name__
    return cast(TransNet, load_weights(run.model, lambda: about.build(model), what))


def _finite(value: Any) -> Any:
    """As JSON can say it: a number that is not finite is null."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _is_entry(line: str) -> bool:
    try:
        entry = json.loads(line)
    except ValueError:
        return False
    return isinstance(entry, dict) and isinstance(entry.get("epoch"), int)
