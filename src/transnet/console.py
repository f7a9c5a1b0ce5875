"""What the package prints: messages on standard error, and one kind of progress bar."""

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn


# Applied to every message. The command line replaces settings in backticks, such as `val_fraction`, by its options.
rewrite: Callable[[str], str] = str


def say(message: str, *, shown: bool = True) -> None:
    """Print a line on standard error, unless ``shown`` is False."""
    if shown:
        print(rewrite(message), file=sys.stderr, flush=True)


def counted(n: int, noun: str) -> str:
    """A number with its noun: ``1 epoch``, ``20 epochs``."""
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def listed(items: list[str] | tuple[str, ...], limit: int = 3) -> str:
    """The first few of many things, and how many more there are."""
    more = f" and {len(items) - limit:,} more" if len(items) > limit else ""
    return ", ".join(items[:limit]) + more


def printable(text: str) -> str:
    """The text without control characters, which could steer a terminal."""
    return "".join(c if c.isprintable() else "\ufffd" for c in text)


def first_line(error: BaseException) -> str:
    """The first line of an error's text, or the error's type if it has none."""
    return (str(error).splitlines() or [type(error).__name__])[0][:300]


def duration(seconds: float) -> str:
    """Seconds for a person to read: ``1 h 05 min``, ``3 min 20 s``, ``42 s``."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minute:02d} min"
    return f"{minute} min {second:02d} s" if minute else f"{second} s"


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], title: str | None = None, *, left: Sequence[str] = ()
) -> None:
    """Print a table. Its first column and those named in ``left`` are aligned on the left, the others on the right."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left")
    for i, column in enumerate(columns):
        table.add_column(Text(column), justify="left" if i == 0 or column in left else "right")
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    Console(width=None if sys.stdout.isatty() else 160).print(table)


def progress_bar(*more: "ProgressColumn", shown: bool = True) -> "Progress":
    """A bar on standard error with the count and the time left, then ``more``; invisible unless in a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=16 if more else 40), MofNCompleteColumn(),
               TimeRemainingColumn(), TextColumn("left"), *more)  # fmt: skip
    disable = not shown or not console.is_terminal
    return Progress(*columns, console=console, disable=disable, transient=True, expand=bool(more))
