"""A table to read and to compute with: text for people, unrounded numbers for files."""

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from transnet.study.statistics import Difference, as_text, mean_and_error

Number = float | int | None


@dataclass(frozen=True)
class Cell:
    """What is shown, what it is sorted by, and further numbers for the CSV, by the end of their column's name."""

    text: str
    value: float | int | str | None = None
    more: tuple[tuple[str, Number], ...] = ()
    strong: bool = False


@dataclass(frozen=True)
class Sheet:
    """A titled table.

    Attributes:
        key: its file's name.
        title: above it.
        columns: their heads; the first names the row.
        rows: as many cells each as there are columns.
        notes: sentences under it: what was compared with what.
    """

    key: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()

    def markdown(self) -> str:
        """As a Markdown table under its title."""
        lines = [f"### {self.title}", "", _line(self.columns), "|---|" + "---:|" * (len(self.columns) - 1)]
        lines += [_line([f"**{cell.text}**" if cell.strong else cell.text for cell in row]) for row in self.rows]
        return "\n".join([*lines, "", *(f"- {note}" for note in self.notes)]) + "\n"

    def comma_separated(self) -> str:
        """As CSV: numbers unrounded, errors and intervals in columns of their own."""
        ends = [tuple(dict.fromkeys(end for row in self.rows for end, _ in row[i].more)) for i in range(self.width)]
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        heads: list[str] = []
        for column, more in zip(self.columns, ends, strict=True):
            heads += [column, *(f"{column}: {end}" for end in more)]
        writer.writerow(heads)
        for row in self.rows:
            line: list[object] = []
            for cell, more in zip(row, ends, strict=True):
                extra = dict(cell.more)
                line += [cell.value, *(extra.get(end) for end in more)]
            writer.writerow(line)
        return out.getvalue()

    def without_empty(self) -> "Sheet":
        """The same without columns in which no row has anything, such as the paper's on other data sets."""
        kept = [i for i in range(self.width) if any(row[i] != NOTHING for row in self.rows)]
        rows = tuple(tuple(row[i] for i in kept) for row in self.rows)
        return Sheet(self.key, self.title, tuple(self.columns[i] for i in kept), rows, self.notes)

    @property
    def width(self) -> int:
        """Columns."""
        return len(self.columns)


NOTHING = Cell("–")


def name(text: str) -> Cell:
    """A row's name."""
    return Cell(text, text)


def either(sizes: Iterable[int]) -> str:
    """Numbers as alternatives, each once: 2, 3 or 6."""
    *most, last = map(str, sorted(set(sizes)))
    return f"{', '.join(most)} or {last}" if most else last


def count(value: int | None) -> Cell:
    """A whole number, with thousands apart."""
    return NOTHING if value is None else Cell(f"{value:,}", value)


def seeds(n: int) -> Cell:
    """How many runs stand behind a row; one is called one seed."""
    return Cell(str(n) if n > 1 else "1 (one seed)", n)


def figure(mean: float, error: float | None, *, signed: bool = False, digits: int = 2, strong: bool = False) -> Cell:
    """79.33 ± 0.15, or the mean alone where there is no error."""
    shown = as_text(mean, f"{'+' if signed else ''}.{digits}f")
    text = shown + (f" ± {error:.{digits}f}" if error is not None else "")
    return Cell(text, mean, (("standard error", error),), strong)


def mean_of(values: Sequence[float], *, digits: int = 2, strong: bool = False) -> Cell:
    """Mean ± standard error of repeated runs."""
    return figure(*mean_and_error(values), digits=digits, strong=strong) if values else NOTHING


def gap(value: Difference | None) -> Cell:
    """A difference with its 95 % interval."""
    if value is None:
        return NOTHING
    interval = ""
    if value.low is not None and value.high is not None:
        interval = f" [{as_text(value.low, '+.2f')}, {as_text(value.high, '+.2f')}]"
    return Cell(as_text(value.mean, "+.2f") + interval, value.mean, (("low", value.low), ("high", value.high)))


def _line(texts: Sequence[str]) -> str:
    return "| " + " | ".join(texts) + " |"
