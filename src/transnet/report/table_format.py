"""A table that people read as text and programs as unrounded numbers."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass

from transnet.study.statistics import Difference, mean_and_error

NO_SPREAD = "One seed has no error. With n = 2 the spread is hardly known, so intervals may be far off."


@dataclass(frozen=True)
class Cell:
    """One cell.

    Attributes:
        text: what people read.
        value: what the CSV holds and the page sorts by.
        more: further numbers for the CSV, each with the end of its column's name.
        bold: whether the text is bold.
    """

    text: str
    value: float | int | str | None = None
    more: tuple[tuple[str, float | None], ...] = ()
    bold: bool = False


@dataclass(frozen=True)
class Table:
    """A titled table.

    Attributes:
        key: name of its files.
        title: heading.
        columns: names of the columns; the first column names the rows.
        rows: as many cells each as there are columns.
        notes: fixed sentences below the table.
    """

    key: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()

    def grid(self) -> str:
        """The table in Markdown, without title and notes."""
        lines = [_line(self.columns), "|---|" + "---:|" * (len(self.columns) - 1)]
        lines += [_line([f"**{cell.text}**" if cell.bold else cell.text for cell in row]) for row in self.rows]
        return "\n".join(lines)

    def markdown(self) -> str:
        """The table in Markdown, with title and notes."""
        return "\n".join([f"### {self.title}", "", self.grid(), "", *(f"- {note}" for note in self.notes)]) + "\n"

    def csv(self) -> str:
        """The table as CSV: unrounded numbers, with errors and intervals in columns of their own."""
        ends = [tuple(dict.fromkeys(end for cell in column for end, _ in cell.more)) for column in zip(*self.rows)]
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(
            name for column, more in zip(self.columns, ends) for name in (column, *(f"{column}: {end}" for end in more))
        )
        for row in self.rows:
            writer.writerow(
                value
                for cell, more in zip(row, ends)
                for value in (cell.value, *(dict(cell.more).get(end) for end in more))
            )
        return out.getvalue()

    def without_empty_columns(self) -> "Table":
        """The same table without columns in which every cell is empty."""
        kept = [i for i in range(len(self.columns)) if any(row[i] != EMPTY for row in self.rows)]
        rows = tuple(tuple(row[i] for i in kept) for row in self.rows)
        return Table(self.key, self.title, tuple(self.columns[i] for i in kept), rows, self.notes)


EMPTY = Cell("–")


def number(value: float, form: str = ".2f") -> str:
    """A number for people: a true minus sign, and none if it rounds to zero."""
    return f"{value:{form.replace('.', 'z.', 1)}}".replace("-", "−")


def text(value: str) -> Cell:
    """Text, such as the name of a row."""
    return Cell(value, value)


def count(value: int) -> Cell:
    """A whole number with thousands separators."""
    return Cell(f"{value:,}", value)


def seeds(n: int) -> Cell:
    """The number of runs behind a row."""
    return Cell(str(n) if n > 1 else "1 (one seed)", n)


def with_error(mean: float, error: float | None, form: str = ".2f", *, bold: bool = False) -> Cell:
    """``79.33 ± 0.15``, or the mean alone without an error."""
    shown = number(mean, form) + (f" ± {error:{form.lstrip('+')}}" if error is not None else "")
    return Cell(shown, mean, (("standard error", error),), bold)


def mean_of(values: Sequence[float], form: str = ".2f", *, bold: bool = False) -> Cell:
    """Mean ± standard error of repeated runs."""
    return with_error(*mean_and_error(values), form, bold=bold) if values else EMPTY


def gap(value: Difference | None, form: str = "+.2f") -> Cell:
    """A difference with its 95 % interval."""
    if value is None:
        return EMPTY
    interval = ""
    if value.low is not None and value.high is not None:
        interval = f" [{number(value.low, form)}, {number(value.high, form)}]"
    return Cell(number(value.mean, form) + interval, value.mean, (("low", value.low), ("high", value.high)))


def is_significant(value: Difference) -> bool:
    """Return whether the interval excludes zero."""
    return value.low is not None and value.high is not None and (value.low > 0 or value.high < 0)


def verdict(value: Difference | None) -> str:
    """``ahead``, ``behind`` or ``not significant``; empty without an interval."""
    if value is None or value.low is None:
        return ""
    if not is_significant(value):
        return "not significant"
    return "ahead" if value.mean > 0 else "behind"


def _line(texts: Sequence[str]) -> str:
    return "| " + " | ".join(texts) + " |"
