"""Options that check themselves, read from the command line."""

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import tyro

T = TypeVar("T")


def checked(kind: type[T], prog: str, arguments: Sequence[str], **how: Any) -> T:
    """The options of a dataclass whose ``__post_init__`` refuses what cannot work.

    Args:
        kind: the dataclass.
        prog: the command, for its help.
        arguments: what was given.
        how: what else `tyro.cli` takes.

    Raises:
        ValueError: the dataclass's own.
    """
    # Around an error of the class that it fills, tyro puts that class's name, which no user knows.
    unchecked = type(kind.__name__, (kind,), {"__doc__": kind.__doc__, "__post_init__": lambda _: None})
    given: Any = tyro.cli(unchecked, prog=prog, args=list(arguments), **how)
    return kind(**{field.name: getattr(given, field.name) for field in dataclasses.fields(given)})


def folder_for(out: str | None) -> Path | None:
    """Where figures are to go; asked before the work begins, so that it is not done for nothing.

    Raises:
        ValueError: where a file is in the way.
    """
    if not out:
        return None
    for path in (Path(out), *Path(out).absolute().parents):
        if os.path.exists(path) and not os.path.isdir(path):  # what cannot be seen is not there: no errno of its own
            raise ValueError(f"--out: {path} is a file; give a folder")
    return Path(out)


def made(out: Path) -> Path:
    """The folder, which is there now.

    Raises:
        ValueError: where it cannot be made.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"--out: {out} cannot be made ({error.strerror}); give another folder") from None
    return out
