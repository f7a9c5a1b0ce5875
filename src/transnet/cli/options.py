"""Options that check themselves, read from the command line."""

import dataclasses
from collections.abc import Sequence
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
