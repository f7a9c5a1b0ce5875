"""The page of a study: one HTML file with its tables, figures and runs, which opens without a network.

The sentences are in ``page/report.html`` and ``page/texts.toml``; this module fills in the numbers.
"""

import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from transnet.errors import FileError
from transnet.report import table_format as cells
from transnet.report.curves import charts_of
from transnet.report.ensembles import ensemble_figures
from transnet.report.generalization import generalization_figures
from transnet.report.kernels import kernel_figures
from transnet.report.measurement_cache import MeasurementCache
from transnet.report.paper import title_of
from transnet.report.plot_style import Figure
from transnet.report.table_format import EMPTY, Cell, Table
from transnet.report.tables import accuracy_tables, summary_table
from transnet.runs.files import write_atomically
from transnet.runs.provenance import command_elsewhere
from transnet.runs.records import encode
from transnet.study.results import FinishedRun, Series, read_runs


@dataclass(frozen=True)
class Section:
    """One series: a data set and recipe, or the variants of a study file."""

    series: Series
    summary: Table | None
    tables: list[Table]
    figures: list[Figure]


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
    (folder / "tables").mkdir(exist_ok=True)
    for old in {file for section in sections for file in folder.glob(f"tables/{section.series.name}-*.*")}:
        old.unlink()
    for section in sections:
        name = section.series.name
        summary = [section.summary] if section.summary else []
        for table in (*summary, *section.tables, *(table for figure in section.figures for table in figure.tables)):
            (folder / "tables" / f"{name}-{table.key}.md").write_text(table.markdown())
            (folder / "tables" / f"{name}-{table.key}.csv").write_text(table.csv())
    page = folder / "report.html"
    write_atomically(page, _render(sections).encode())
    return page


def _section(series: Series, folder: Path) -> Section:
    cache = MeasurementCache(folder, series.name)
    kinds = (ensemble_figures, generalization_figures, kernel_figures)
    figures = [figure for figures_of in kinds for figure in figures_of(series, folder / "figures", cache)]
    return Section(series, summary_table(series), accuracy_tables(series), figures)


def _run_table(series: Series) -> Table:
    rows = []
    for run in series.all_runs:
        result = run.result
        pruned, full = (run.result.test_flip or run.result.test).pruned, run.score("full")
        shared = f" ({result.at_once} at once)" if result.at_once > 1 else ""
        rows.append([
            cells.text(run.name), Cell(title_of(run.kind), run.kind), Cell(str(run.seed), run.seed),
            *(cells.with_error(100 * score.accuracy) if score else EMPTY for score in (pruned, full)),
            cells.with_error(result.generalization, form=".3f") if result.generalization else EMPTY,
            cells.integer(run.settings.epochs), Cell(f"{result.train_seconds:,.0f}{shared}", result.train_seconds),
        ])  # fmt: skip
    columns = ("run", "kind", "seed", "pruned %", "all heads %", "test / train loss", "epochs", "seconds")
    return Table("runs", columns, rows)


def _render(sections: list[Section]) -> str:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    import transnet

    pages = Environment(
        loader=PackageLoader("transnet", "report/page"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    pages.globals |= {
        "title_of": title_of, "charts_of": charts_of, "facts": facts, "run_table": _run_table,
        "settings_of": lambda run: encode(run.settings),
        "command_of": lambda run: command_elsewhere(run.settings, run.name),
    }  # fmt: skip
    pages.filters["download"] = lambda text, kind: f"data:text/{kind};charset=utf-8,{urllib.parse.quote(text)}"
    return pages.get_template("report.html").render(sections=sections, version=transnet.__version__)
