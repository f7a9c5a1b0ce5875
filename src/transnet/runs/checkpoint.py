"""Checkpoints that survive being killed at any moment, and never load wrong weights unnoticed.

    state/00000980/tensors.safetensors    weights, buffers, momentum, the epoch's running figures
    state/00000980/state.json             step, epoch and what else is not a tensor
    state/00000980/manifest.json          size and sha256 of both, written last

Every file is written under another name, flushed to the disk and renamed; a folder without a manifest that fits is no
checkpoint. The one before is deleted only when its successor is complete, and one more is kept for the case that a
disk damages the newest.
"""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from transnet.errors import OperationError
from transnet.runs.files import sha256, write_atomically, write_tensors

KEPT = 2


class CheckpointError(OperationError):
    """A checkpoint that cannot be written or read; the message says which is the last good one."""


@dataclass(frozen=True)
class Checkpoint:
    """What `load` found.

    Attributes:
        tensors: as they were saved.
        state: likewise.
        damaged: what is wrong with the newer checkpoints that were passed over.
    """

    tensors: dict[str, Tensor]
    state: dict[str, Any]
    damaged: tuple[str, ...] = ()


def save(folder: Path, step: int, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
    """Write the checkpoint of ``step`` into ``folder`` (a run's ``state/``) and drop the oldest."""
    target = folder / f"{step:08d}"
    try:
        if target.exists():
            shutil.rmtree(target)
        target.mkdir(parents=True)
        write_tensors(target / "tensors.safetensors", tensors)
        write_atomically(target / "state.json", json.dumps(state).encode())
        files = {name: _fingerprint(target / name) for name in ("tensors.safetensors", "state.json")}
        write_atomically(target / "manifest.json", json.dumps({"schema": 1, "step": step, "files": files}).encode())
    except OSError as error:
        shutil.rmtree(target, ignore_errors=True)
        good = _newest_good(folder)
        kept = f"; the last good one is {good}" if good else "; there is none before it"
        raise CheckpointError(f"the checkpoint {target} could not be written ({error}){kept}") from error
    _drop_old(folder, step)


def load(folder: Path) -> Checkpoint | None:
    """The newest checkpoint that is whole; None where the run has not written any.

    Raises:
        CheckpointError: where there are checkpoints and every one is damaged.
    """
    damaged: list[str] = []
    for path in _steps(folder):
        if not (path / "manifest.json").exists():
            continue  # the run ended while it was being written
        try:
            _verify(path)
            tensors = load_file(path / "tensors.safetensors")
            return Checkpoint(tensors, json.loads((path / "state.json").read_text()), tuple(damaged))
        except Exception as error:  # whatever a damaged file makes its reader raise
            damaged.append(f"{path.name}: {error}")
    if damaged:
        raise CheckpointError(
            f"every checkpoint in {folder} is damaged ({'; '.join(damaged)}); "
            "delete that folder to start again, or give another `out`"
        )
    return None


def is_saved(folder: Path, step: int) -> bool:
    """Whether the newest whole checkpoint is that of ``step``."""
    newest = _newest_good(folder)
    return newest is not None and int(Path(newest).name) == step


def last_good(folder: Path) -> str:
    """The newest whole checkpoint in words, for messages."""
    return _newest_good(folder) or "none"


def _steps(folder: Path) -> list[Path]:
    """The newest first."""
    found = (path for path in folder.glob("*") if path.is_dir() and path.name.isdigit())
    return sorted(found, key=lambda path: int(path.name), reverse=True)


def _drop_old(folder: Path, step: int) -> None:
    """Keep this checkpoint and the complete one before it. Later ones were damaged: the run went on from here."""
    complete = [path for path in _steps(folder) if int(path.name) <= step and (path / "manifest.json").exists()]
    for path in _steps(folder):
        if path not in complete[:KEPT]:
            shutil.rmtree(path, ignore_errors=True)


def _fingerprint(path: Path) -> dict[str, Any]:
    return {"bytes": path.stat().st_size, "sha256": sha256(path)}


def _verify(path: Path) -> None:
    manifest = json.loads((path / "manifest.json").read_text())
    if manifest["step"] != int(path.name):
        raise ValueError("the manifest is another checkpoint's")
    if set(manifest["files"]) != {"tensors.safetensors", "state.json"}:
        raise ValueError("the manifest does not list its files")
    for name, expected in manifest["files"].items():
        if _fingerprint(path / name) != expected:
            raise ValueError(f"{name} is not what was written")


def _newest_good(folder: Path) -> str | None:
    for path in _steps(folder):
        try:
            _verify(path)
        except Exception:  # whatever a damaged file makes its reader raise
            continue
        return str(path)
    return None
