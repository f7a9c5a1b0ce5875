"""Options of the commands: frozen dataclasses that tyro turns into a parser."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import tyro

from transnet import console
from transnet.arguments import Positional, Repeatable, argument
from transnet.errors import FileError

T = TypeVar("T")

Runs = Annotated[Positional[tuple[str, ...]], argument(metavar="RUN…", help="Folders of finished runs.")]
Device = Annotated[str, argument(help="cpu, cuda, cuda:1, mps (untested), or auto: a CUDA GPU if there is one.")]

OwnTransforms = Annotated[
    Repeatable[tuple[str, ...]],
    argument(
        metavar="NAME=module:function",
        help="A transform of your own: needed again if training used it, because nothing that a run names is imported.",
    ),
]


def parse(
    kind: type[T], command: str, arguments: Sequence[str], *, defaults: Mapping[str, object] | None = None,
    shown: Sequence[str] = (),
) -> T:  # fmt: skip
    """Read a dataclass from the command line. From then on, messages show its fields in backticks as options.

    ``command`` is its name for the help. ``defaults`` are those of every field, instead of the class's own. ``shown``
    are the only options to accept and to list in the help; all if empty.
    """
    hints = get_type_hints(kind, include_extras=True)
    options = {name for name, hint in hints.items() if "Positional" not in str(hint)}

    def option(match: re.Match[str]) -> str:
        return "--" + match[1].replace("_", "-") if match[1] in options else match[0]

    console.rewrite = lambda text: re.sub(r"`([a-z]\w*)`", option, text)
    # tyro would print the errors of __post_init__ with the name of the class, so it fills a class without it.
    hidden = [field for field in dataclasses.fields(kind) if shown and field.name not in shown]  # type: ignore[arg-type]
    content: dict[str, object] = {field.name: field for field in hidden}
    content["__annotations__"] = {field.name: Annotated[hints[field.name], tyro.conf.Suppress] for field in hidden}
    content |= {"__doc__": kind.__doc__, "__module__": kind.__module__, "__post_init__": lambda _: None}
    unchecked: Any = dataclasses.dataclass(frozen=True)(type(kind.__name__, (kind,), content))
    default = {} if defaults is None else {"default": unchecked(**defaults)}
    return kind(**vars(tyro.cli(unchecked, prog=f"transnet {command}", args=list(arguments), **default)))


def make_folder(out: str | None) -> Path | None:
    """Create a folder, before the work begins, and return it."""
    if not out:
        return None
    try:
        Path(out).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"{out} cannot be created ({error.strerror}); give another folder", field="out") from None
    return Path(out)
