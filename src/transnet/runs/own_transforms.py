"""Transforms of the user's own: ``gray=mypackage.transforms:gray`` gives a function a name.

A run records both. Only what the user passes to a command or a function is imported, never what a run's files name,
because these may come from a stranger.
"""

import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from transnet.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

    from transnet.inputs import Transform

_ENTRY = re.compile(r"([A-Za-z]\w*)=([^\W\d]\w*(?:\.\w+)*:[^\W\d]\w*(?:\.\w+)*)", re.ASCII)
_D4 = re.compile("[rm][0-3]")
_NEEDED = "NAME=module:function is needed, such as gray=transnet.transforms:gray"


def parse(given: str | Sequence[str]) -> dict[str, str]:
    """Return the import path of each name from entries such as ``gray=mypackage.transforms:gray``; import nothing."""
    found: dict[str, str] = {}
    for entry in [given] if isinstance(given, str) else given:
        match = _ENTRY.fullmatch(entry) if isinstance(entry, str) else None
        if match is None:
            raise ConfigError(f"{entry!r:.200} was given; {_NEEDED}", field="transform")
        name, path = match.groups()
        if _D4.fullmatch(name):
            raise ConfigError(f"{entry}: {name} is one of D4's transforms; choose another name", field="transform")
        if found.setdefault(name, path) != path:
            raise ConfigError(f"{name} is given twice, as {found[name]} and {path}; give one", field="transform")
    return found


def check_names(names: Sequence[str], own: Iterable[str]) -> None:
    """Raise if there are no transforms, or if one is neither in D4 nor among the user's own."""
    from transnet import d4

    for name in names:
        if name not in own and not _D4.fullmatch(name):
            known = " ".join([*d4.NAMES, *own])
            hint = "for a function of your own, give `transform` NAME=module:function"
            raise ConfigError(f"unknown {name!r:.80}; known are {known}; {hint}", field="transforms")
    if not names:
        d4.parse(names)


def check_recorded(names: Iterable[str], given: str | Sequence[str], recorded: Sequence[str], source: str) -> None:
    """Raise unless each of the named transforms that ``source`` records is given again, with the same function."""
    entries, before = parse(given), parse(recorded)
    for name in names:
        if name in before and entries.get(name) != before[name]:
            other = f"{name}={entries[name]} was given, but " if name in entries else ""
            again = f"`transform` {name}={before[name]}; give that, because nothing that a file names is imported"
            raise ConfigError(f"{other}{source} was trained with {again}", field="transform")


def with_functions(
    names: Sequence[str], given: str | Sequence[str] | None, *, recorded: Sequence[str] = (), source: str = ""
) -> "tuple[Transform, ...]":
    """Return transforms for a `TransNet`: names of D4, and the user's own with the functions that ``given`` imports.

    The functions that ``source``, a run, has ``recorded`` have to be given again. With None instead, nothing is
    imported, and a head of the user's own raises if it is used.
    """
    if given is None:
        missing = parse(recorded)
        check_names(names, missing)
        return tuple((name, _missing(f"{name}={missing[name]}")) if name in missing else name for name in names)
    check_recorded(names, given, recorded, source)
    entries = parse(given)
    check_names(names, entries)
    own = {name: OwnTransform(f"{name}={path}") for name, path in entries.items() if name in names}
    return tuple((name, own[name]) if name in own else name for name in names)


def _missing(entry: str) -> "Callable[[Tensor], Tensor]":
    def refuse(_: "Tensor") -> "Tensor":
        raise ConfigError(f"this head needs a function of your own; load the run with {entry}", field="transform")

    return refuse


class OwnTransform:
    """The function that an entry names, imported. At its first batch it is checked by repeated calls."""

    def __init__(self, entry: str) -> None:
        self.entry, (path, _, name) = entry, entry.partition("=")[2].partition(":")
        if os.getcwd() not in sys.path:
            sys.path.insert(0, os.getcwd())  # as for `python -m`
        try:
            self.function: Any = attrgetter(name)(import_module(path))
        except Exception as error:  # a module of the user's own may raise anything
            problem = f"it cannot be imported ({type(error).__name__}: {error})"
            raise self._error(f"{problem}; give a function of a module in the current folder or installed") from error
        if not callable(self.function):
            kind = type(self.function).__name__
            raise self._error(f"{name} is of type {kind}, not a function; give a function from a batch to a batch")
        self._checked = False

    def __call__(self, x: "Tensor") -> "Tensor":
        """Transform a batch."""
        from transnet.inputs import traced

        if not (self._checked or traced(x)):
            self._check(x)
        return self.function(x)

    def _check(self, x: "Tensor") -> None:
        import torch

        try:  # a random flip of the whole batch would pass two calls half of the time
            results = [self.function(x.clone()) for _ in range(8)]
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # a function of the user's own may raise anything
            problem = f"it failed on a batch of shape {tuple(x.shape)} ({type(error).__name__}: {error})"
            raise self._error(f"{problem}; it must take normalised images (B, C, H, W)") from error
        for y in results:
            if not isinstance(y, torch.Tensor) or (y.shape, y.dtype, y.device) != (x.shape, x.dtype, x.device):
                made = f"{y.dtype} {tuple(y.shape)} on {y.device}" if isinstance(y, torch.Tensor) else type(y).__name__
                problem = f"it turned a batch {x.dtype} {tuple(x.shape)} on {x.device} into {made}"
                raise self._error(f"{problem}; it must keep the shape, the type and the device")
        if not all(torch.allclose(results[0], y, rtol=1e-4, atol=1e-5, equal_nan=True) for y in results):
            problem = "it gave two results for one batch; it must be deterministic"
            raise self._error(f"{problem}: random augmentation belongs in the training images")
        self._checked = True

    def _error(self, problem: str) -> ConfigError:
        return ConfigError(f"{self.entry}: {problem}", field="transform")
