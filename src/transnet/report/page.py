"""The page of a study: one HTML file with its tables, figures and runs, which opens without a network.

The sentences are in ``page/report.html``; this module fills in the numbers.
"""

import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from transnet.errors import FileError
from transnet.report import ensembles, generalization, kernels
from transnet.report import table_format as cells
from transnet.report.curves import curves_of
from transnet.report.measurement_cache import MeasurementCache
from transnet.report.paper import title_of
from transnet.report.plot_style import Figure
from transnet.report.table_format import EMPTY, Cell, Table
from transnet.report.tables import accuracy_tables, differences_table, summary_table
from transnet.runs.files import write_atomically
from transnet.runs.provenance import command_elsewhere
from transnet.runs.records import encode
from transnet.study.results import FinishedRun, Series, read_runs

FIGURES = (ensembles, generalization, kernels)


@dataclass(frozen=True)
class Section:
    """One series: a data set and recipe, or the variants of a study file."""

    series: Series
    summary: Table | None
    tables: list[Table]
    figures: list[Figure]
    run_table: Table
    facts: dict[str, str]


def facts(series: Series) -> dict[str, str]:
    """Network, recipe, device, torch and commit of a series' runs; several values are listed."""

    def each(read: Callable[[FinishedRun], object], unit: str = "") -> str:
        values = {value for run in series.all_runs if (value := read(run)) is not None}
        return ", ".join(f"{value}" for value in sorted(values, key=lambda value: (len(str(value)), str(value)))) + unit

    parts = (
        each(lambda run: run.settings.recipe), each(lambda run: run.settings.epochs, " epochs"),
        "batch " + each(lambda run: run.settings.batch_size),
        "learning rate " + each(lambda run: f"{run.settings.lr:g}"), each(lambda run: run.settings.schedule),
        "weight decay " + each(lambda run: f"{run.settings.weight_decay:g}"),
        "label smoothing " + each(lambda run: f"{run.settings.label_smoothing:g}"),
    )  # fmt: skip
    return {
        "network": each(lambda run: run.settings.model),
        "recipe": "; ".join(parts),
        "device": each(lambda run: run.result.device),
        "torch": each(lambda run: run.result.versions.get("torch")),
        "commit": each(lambda run: run.result.commit),
    }


def write_report(out: str | Path) -> Path:
    """Write ``report.html``, and its tables and figures as files, from the finished runs of a folder.

    Raises:
        FileError: if the folder has no finished runs.
    """
    folder = Path(out)
    if (folder / "config.json").exists():
        raise FileError(f"{folder} is a single run; give the folder of a study, or see `transnet evaluate {folder}`")
    sections = [_section(series, folder) for series in read_runs(folder)]
    tables = folder / "tables"
    tables.mkdir(exist_ok=True)
    for section in sections:
        name = section.series.name
        for old in (*tables.glob(f"{name}-*.md"), *tables.glob(f"{name}-*.csv")):
            old.unlink()
        summary = [section.summary] if section.summary else []
        for table in (*summary, *section.tables, *(table for figure in section.figures for table in figure.tables)):
            (tables / f"{name}-{table.key}.md").write_text(table.markdown())
            (tables / f"{name}-{table.key}.csv").write_text(table.csv())
    page = folder / "report.html"
    write_atomically(page, _render(sections).encode())
    return page


def _section(series: Series, folder: Path) -> Section:
    cache = MeasurementCache(folder, series.name)
    differences = differences_table(series)
    tables = accuracy_tables(series) + ([differences] if differences else [])
    figures = [one for module in FIGURES for one in module.figures(series, folder / "figures", cache)]
    return Section(series, summary_table(series), tables, figures, _run_table(series), facts(series))


def _run_table(series: Series) -> Table:
    rows = []
    for run in series.all_runs:
        result = run.result
        pruned, full = (run.result.test_flip or result.test).pruned, run.score("full")
        shared = f" ({result.at_once} at once)" if result.at_once > 1 else ""
        rows.append(
            (
                cells.text(run.name), Cell(title_of(run.kind), run.kind), Cell(str(run.seed), run.seed),
                *(cells.with_error(100 * score.accuracy, None) if score else EMPTY for score in (pruned, full)),
                cells.with_error(result.generalization, None, ".3f") if result.generalization else EMPTY,
                cells.count(run.settings.epochs), Cell(f"{result.train_seconds:,.0f}{shared}", result.train_seconds),
            )
        )  # fmt: skip
    columns = ("run", "kind", "seed", "pruned %", "all heads %", "test / train loss", "epochs", "seconds")
    return Table("runs", "Every run", columns, tuple(rows))


def _render(sections: list[Section]) -> str:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    import transnet

    pages = Environment(
        loader=PackageLoader("transnet", "report/page"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    pages.globals |= {
        "title_of": title_of, "curves_of": curves_of, "settings_of": lambda run: encode(run.settings),
        "command_of": lambda run: command_elsewhere(run.settings, run.name),
    }  # fmt: skip
    pages.filters["download"] = lambda text, kind: f"data:text/{kind};charset=utf-8,{urllib.parse.quote(text)}"
    return pages.get_template("report.html").render(sections=sections, version=transnet.__version__)
