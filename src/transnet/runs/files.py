"""Files that are either complete or absent, and JSON from files that may be anything."""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from transnet.errors import FileError

if TYPE_CHECKING:
    from torch import Tensor

LONGEST_JSON = 32 * 2**20


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file under another name, flush it to the disk and rename it, so that it is complete or absent."""
    partial = path.with_name(path.name + ".partial")
    with open(partial, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)


def write_tensors(path: Path, tensors: "Mapping[str, Tensor]", *, metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file in the same way. Tensors that share memory are written under each of their names."""
    from safetensors.torch import save

    separate: dict[str, Tensor] = {}
    storages: set[int] = set()
    for name, tensor in tensors.items():
        storage = tensor.untyped_storage().data_ptr()
        separate[name] = tensor.clone().contiguous() if storage in storages else tensor.contiguous()
        storages.add(storage)
    write_atomically(path, save(separate, metadata))


def sha256(path: Path) -> str:
    """The SHA-256 of a file's content, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_json(path: Path, hint: str) -> dict[str, object]:
    """Read a JSON object from a file that may be anything; if it is missing, the error ends in ``hint``."""
    if not path.is_file():
        raise FileError(f"{path} {'is a folder' if path.is_dir() else 'does not exist'}; {hint}")
    try:
        if (size := path.stat().st_size) > LONGEST_JSON:
            raise FileError(f"{path} has {size:,} bytes; at most {LONGEST_JSON:,} are read")
        return parse_json(path.read_bytes(), str(path))
    except OSError as error:
        raise FileError(f"{path} cannot be read ({error})") from None


def parse_json(text: bytes | str, source: str) -> dict[str, object]:
    """Parse a JSON object from text that may be anything; ``source`` names it in the error."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FileError(f"{source} is damaged or cannot be read ({error})") from None
    if not isinstance(content, dict):
        raise FileError(f"{source} is damaged: it holds no JSON object")
    return content
