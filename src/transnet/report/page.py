"""The page of a study: one HTML file that opens without a network. Its sentences are in the folder ``page``."""

import urllib.parse
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined

import transnet
from transnet.errors import FileError
from transnet.report import table_format as cells
from transnet.report.curves import charts_of, generalization_figures
from transnet.report.ensembles import ensemble_figures
from transnet.report.heads import heads_table
from transnet.report.kernels import kernel_figures
from transnet.report.measurement_cache import MeasurementCache
from transnet.report.plot_style import Figure
from transnet.report.table_format import EMPTY, TEXTS, Cell, Table
from transnet.report.tables import accuracy_tables, name_of, summary_table
from transnet.runs.files import write_atomically
from transnet.runs.provenance import command_elsewhere
from transnet.runs.records import encode
from transnet.study.results import Series, read_runs

RECIPE = {  # settings that a page lists, and how
    "recipe": "{}", "epochs": "{} epochs", "batch_size": "batch {}", "lr": "learning rate {}", "schedule": "{}",
    "weight_decay": "weight decay {}", "label_smoothing": "label smoothing {}",
}  # fmt: skip


class Section(NamedTuple):
    """One series: a data set and recipe, or the variants of a study file."""

    series: Series
    summary: Table | None
    tables: list[Table]
    figures: list[Figure]


def facts(series: Series) -> dict[str, str]:
    """Network, recipe, device, torch and commit of a series' runs; several values are listed."""

    def each(values: Iterable[object]) -> str:
        texts = {f"{value:g}" if isinstance(value, float) else str(value) for value in values if value is not None}
        return ", ".join(sorted(texts, key=lambda text: (len(text), text)))

    settings, results = [run.settings for run in series.all_runs], [run.result for run in series.all_runs]
    recipe = [form.format(each(getattr(one, name) for one in settings)) for name, form in RECIPE.items()]
    return {
        "network": each(one.model for one in settings),
        "recipe": "; ".join(recipe),
        "device": each(one.device for one in results),
        "torch": each(one.versions.get("torch") for one in results),
        "commit": each(one.commit for one in results),
    }


def write_report(out: str | Path) -> Path:
    """Write ``report.html``, and its tables and figures as files, from the finished runs of a folder."""
    folder = Path(out)
    if (folder / "config.json").exists():
        raise FileError(f"{folder} is a single run; give the folder of a study, or see `transnet evaluate {folder}`")
    sections = []
    for series in read_runs(folder):
        cache = MeasurementCache(folder, series.name)
        kinds = (ensemble_figures, generalization_figures, kernel_figures)
        figures = [figure for figures_of in kinds for figure in figures_of(series, folder / "figures", cache)]
        tables = [*accuracy_tables(series), *filter(None, [heads_table(series, cache)])]
        sections.append(Section(series, summary_table(series), tables, figures))
    (folder / "tables").mkdir(exist_ok=True)
    for old in {file for section in sections for file in folder.glob(f"tables/{section.series.name}-*.*")}:
        old.unlink()
    for series, summary, tables, figures in sections:
        for table in filter(None, [summary, *tables, *(table for figure in figures for table in figure.tables)]):
            (folder / "tables" / f"{series.name}-{table.key}.md").write_text(table.markdown())
            (folder / "tables" / f"{series.name}-{table.key}.csv").write_text(table.csv())
    page = folder / "report.html"
    write_atomically(page, _render(sections).encode())
    return page


def _run_table(series: Series) -> Table:
    rows = []
    for run in series.all_runs:
        result = run.result
        scores = (result.test_flip or result.test).pruned, run.score("full")
        shared = f" ({result.at_once} at once)" if result.at_once > 1 else ""
        rows.append([
            cells.plain(run.name), Cell(name_of(run.kind, "full"), run.kind), Cell(str(run.seed), run.seed),
            *(cells.with_error(100 * score.accuracy) if score else EMPTY for score in scores),
            cells.with_error(result.generalization, form=".3f") if result.generalization else EMPTY,
            cells.plain(run.settings.epochs), Cell(f"{result.train_seconds:,.0f}{shared}", result.train_seconds),
        ])  # fmt: skip
    columns = ("run", "kind", "seed", "pruned %", "all heads %", "test / train loss", "epochs", "seconds")
    return Table("runs", columns, rows)


def _render(sections: list[Section]) -> str:
    pages = Environment(
        loader=PackageLoader("transnet", "report/page"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    pages.filters["download"] = lambda text, kind: f"data:text/{kind};charset=utf-8,{urllib.parse.quote(text)}"
    return pages.get_template("report.html").render(
        sections=sections, version=transnet.__version__, texts=TEXTS, name_of=name_of, charts_of=charts_of, facts=facts,
        run_table=_run_table, settings_of=lambda run: encode(run.settings),
        command_of=lambda run: command_elsewhere(run.settings, run.name),
    )  # fmt: skip
