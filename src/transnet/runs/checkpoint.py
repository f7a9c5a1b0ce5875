"""Checkpoints that survive being killed at any moment, and from which wrong weights are never loaded.

    state/00000980/tensors.safetensors    weights, buffers, the optimizer's state, sums over the epoch so far
    state/00000980/state.json             the step, the epoch and everything else that is not a tensor
    state/00000980/manifest.json          size and sha256 of both files, written last

A folder without a manifest that matches its files is not a checkpoint. The previous checkpoint is kept in case the disk
damages the newest one.
"""

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from transnet.errors import OperationError
from transnet.runs.files import sha256, write_atomically, write_tensors

_KEPT = 2


class CheckpointError(OperationError):
    """A checkpoint cannot be written or read. The message names the last good one."""


@dataclass(frozen=True)
class Checkpoint:
    """A state as it was saved, and what is wrong with newer checkpoints that were skipped."""

    state: Mapping[str, Any]
    damaged: tuple[str, ...]


@contextmanager
def naming_last_good(folder: Path, what: str) -> Iterator[None]:
    """Turn an error of the disk into one that names what could not be written and the last good checkpoint."""
    try:
        yield
    except OSError as error:
        hint = f"the last good checkpoint is {last_good(folder)}: free some space and continue with `resume`"
        raise CheckpointError(f"{what} could not be written ({error}); {hint}") from error


def save_checkpoint(folder: Path, step: int, state: Mapping[str, Any]) -> None:
    """Write a checkpoint of tensors and JSON values into a run's ``state/``, and delete the oldest."""
    target = folder / f"{step:08d}"
    tensors = {name: value.detach().cpu() for name, value in state.items() if isinstance(value, Tensor)}
    values = {name: value for name, value in state.items() if name not in tensors}
    with naming_last_good(folder, f"the checkpoint {target}"):
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        try:
            write_tensors(target / "tensors.safetensors", tensors)
            write_atomically(target / "state.json", json.dumps(values).encode())
            write_atomically(target / "manifest.json", json.dumps(_manifest(target)).encode())
        except OSError:  # probably the disk is full
            shutil.rmtree(target, ignore_errors=True)
            raise
    # Later checkpoints were damaged, because the run continued from this one.
    complete = [path for path in _newest_first(folder) if int(path.name) <= step and (path / "manifest.json").exists()]
    for path in set(_newest_first(folder)) - set(complete[:_KEPT]):
        shutil.rmtree(path, ignore_errors=True)


def load_checkpoint(folder: Path) -> Checkpoint | None:
    """Load the newest checkpoint that is not damaged; None if there is none, an error if all are damaged."""
    damaged: list[str] = []
    for path in _newest_first(folder):
        if not (path / "manifest.json").exists():
            continue  # the process ended while it was writing
        try:
            _verify(path)
            values = json.loads((path / "state.json").read_text())
            return Checkpoint({**values, **load_file(path / "tensors.safetensors")}, tuple(damaged))
        except Exception as error:  # a damaged file may raise anything
            damaged.append(f"{path.name}: {error}")
    if damaged:
        hint = "delete that folder to start again, or give another `out`"
        raise CheckpointError(f"every checkpoint in {folder} is damaged ({'; '.join(damaged)}); {hint}")
    return None


def last_good(folder: Path) -> str:
    """Return the path of the newest good checkpoint, or "none", for messages."""
    for path in _newest_first(folder):
        with suppress(Exception):  # a damaged file may raise anything
            _verify(path)
            return str(path)
    return "none"


def is_saved(folder: Path, step: int) -> bool:
    """Whether the newest good checkpoint is that of ``step``."""
    return Path(last_good(folder)).name == f"{step:08d}"


def _newest_first(folder: Path) -> list[Path]:
    found = (path for path in folder.glob("*") if path.is_dir() and path.name.isdigit())
    return sorted(found, key=lambda path: int(path.name), reverse=True)


def _manifest(path: Path) -> dict[str, object]:
    files = [path / name for name in ("tensors.safetensors", "state.json")]
    hashes = {file.name: {"bytes": file.stat().st_size, "sha256": sha256(file)} for file in files}
    return {"schema": 1, "step": int(path.name), "files": hashes}


def _verify(path: Path) -> None:
    if json.loads((path / "manifest.json").read_text()) != _manifest(path):
        raise ValueError("its files are not the ones in its manifest")
