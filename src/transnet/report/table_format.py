"""Tables that people read as text and programs as unrounded numbers."""

import csv
import io
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from itertools import chain

from transnet.study.statistics import Difference, as_text, mean_and_error

TEXTS = tomllib.loads(files("transnet.report").joinpath("page/texts.toml").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Cell:
    """One cell of a table."""

    text: str
    value: float | int | str | None = None  # for the CSV, and to sort by on the page
    more: Mapping[str, float | None] = field(default_factory=dict)  # for further columns of the CSV, by their last part
    bold: bool = False


EMPTY = Cell("–")


@dataclass(frozen=True)
class Table:
    """A table whose first column names the rows. ``TEXTS`` has its title and notes, by ``key``."""

    key: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    values: Mapping[str, object] = field(default_factory=dict)  # shown in the notes

    @property
    def notes(self) -> list[str]:
        """The sentences below the table."""
        return [note.format(**TEXTS["shared"], **self.values).strip() for note in TEXTS[self.key]["notes"]]

    def markdown(self) -> str:
        """The table in Markdown, with title and notes."""
        texts = [[f"**{cell.text}**" if cell.bold else cell.text for cell in row] for row in self.rows]
        head, *lines = [f"| {' | '.join(line)} |" for line in (self.columns, *texts)]
        rule = "|---|" + "---:|" * (len(self.columns) - 1)
        notes = [f"- {note}" for note in self.notes]
        return "\n".join([f"### {TEXTS[self.key]['title']}", "", head, rule, *lines, "", *notes, ""])

    def csv(self) -> str:
        """The table as CSV, with standard errors and intervals in columns of their own."""
        ends = [list(dict.fromkeys(end for cell in column for end in cell.more)) for column in zip(*self.rows)]
        names = [[column, *(f"{column}: {end}" for end in more)] for column, more in zip(self.columns, ends)]
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(chain.from_iterable(names))
        for row in self.rows:
            writer.writerow(value for cell, more in zip(row, ends) for value in (cell.value, *map(cell.more.get, more)))
        return out.getvalue()

    def without_empty_columns(self) -> "Table":
        """The same table without columns in which every cell is empty."""
        kept = [i for i in range(len(self.columns)) if any(row[i] != EMPTY for row in self.rows)]
        rows = [[row[i] for i in kept] for row in self.rows]
        return replace(self, columns=[self.columns[i] for i in kept], rows=rows)


def plain(value: str | int) -> Cell:
    """A text, such as the name of a row, or a whole number."""
    return Cell(value if isinstance(value, str) else f"{value:,}", value)


def seeds(n: int) -> Cell:
    """The number of runs behind a row."""
    return Cell(str(n) if n > 1 else "1 (one seed)", n)


def with_error(mean: float, error: float | None = None, form: str = ".2f") -> Cell:
    """``79.33 ± 0.15``, or the mean alone without an error."""
    shown = as_text(mean, form) + (f" ± {error:{form.lstrip('+')}}" if error is not None else "")
    return Cell(shown, mean, {"standard error": error})


def mean_of(values: Sequence[float], form: str = ".2f") -> Cell:
    """Mean ± standard error of repeated runs."""
    return with_error(*mean_and_error(values), form) if values else EMPTY


def gap(value: Difference | None, form: str = "+.2f") -> Cell:
    """A difference with its 95 % interval."""
    if value is None:
        return EMPTY
    shown = as_text(value.mean, form)
    if value.low is not None and value.high is not None:
        shown += f" [{as_text(value.low, form)}, {as_text(value.high, form)}]"
    return Cell(shown, value.mean, {"low": value.low, "high": value.high})


def verdict(value: Difference) -> str:
    """``ahead``, ``behind`` or ``not significant``; empty without an interval."""
    if value.certain:
        return "ahead" if value.mean > 0 else "behind"
    return "not significant" if value.low is not None else ""
