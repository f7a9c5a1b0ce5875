"""Options of the commands: frozen dataclasses that tyro turns into a parser."""

import dataclasses
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import tyro

from transnet import console
from transnet.errors import FileError

T = TypeVar("T")


def parse(kind: type[T], command: str, arguments: Sequence[str]) -> T:
    """Read a dataclass from the command line. From then on, messages name its fields as options.

    Args:
        kind: the dataclass. Its ``__post_init__`` may raise.
        command: for the help, such as ``train``.
        arguments: what follows the command.
    """
    name_options(kind)
    return kind(**read(kind, command, arguments))


def read(
    kind: type, command: str, arguments: Sequence[str], *, defaults: Mapping[str, object] | None = None,
    shown: Sequence[str] = (),
) -> dict[str, Any]:  # fmt: skip
    """Read a dataclass's fields from the command line, without its ``__post_init__``.

    tyro would catch the errors of ``__post_init__`` and print them with the name of the class.

    Args:
        kind: the dataclass.
        command: for the help, such as ``train``.
        arguments: what follows the command.
        defaults: of every field, instead of the class's own.
        shown: the only options to accept and to list in the help; all if empty.
    """
    hints = get_type_hints(kind, include_extras=True)
    hidden = [field for field in dataclasses.fields(kind) if shown and field.name not in shown]
    content: dict[str, object] = {field.name: field for field in hidden}
    content["__annotations__"] = {field.name: Annotated[hints[field.name], tyro.conf.Suppress] for field in hidden}
    content |= {"__doc__": kind.__doc__, "__module__": kind.__module__, "__post_init__": lambda _: None}
    unchecked: Any = dataclasses.dataclass(frozen=True)(type(kind.__name__, (kind,), content))
    default = {} if defaults is None else {"default": unchecked(**defaults)}
    return vars(tyro.cli(unchecked, prog=f"transnet {command}", args=list(arguments), **default))


def name_options(kind: type) -> None:
    """Let messages show the dataclass's fields in backticks, such as ```val_fraction```, as options."""
    hints = get_type_hints(kind, include_extras=True)
    options = {name for name, hint in hints.items() if "Positional" not in str(hint)}

    def option(match: re.Match[str]) -> str:
        return "--" + match[1].replace("_", "-") if match[1] in options else match[0]

    console.rewrite = lambda text: re.sub(r"`([a-z]\w*)`", option, text)


def output_folder(out: str | None) -> Path | None:
    """Check that a folder can be created, before the work begins.

    Raises:
        FileError: if a file is in the way.
    """
    if not out:
        return None
    for path in (Path(out), *Path(out).absolute().parents):
        if os.path.exists(path) and not os.path.isdir(path):  # Path.exists raises in folders that may not be entered
            raise FileError(f"{path} is a file; give a folder", field="out")
    return Path(out)


def make_folder(out: Path) -> Path:
    """Create the folder and return it."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"{out} cannot be created ({error.strerror}); give another folder", field="out") from None
    return out
