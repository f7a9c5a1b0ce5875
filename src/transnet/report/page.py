"""One page of all that a study found: a single HTML file that needs no network and opens from the disk."""

import dataclasses
import urllib.parse
from pathlib import Path
from typing import Any

from transnet.console import counted
from transnet.errors import ConfigError
from transnet.report.curves import curves_of
from transnet.report.figure_tables import ensembles_sheet, generalization_sheet, invariance_sheet
from transnet.report.figures import draw_ensembles, draw_generalization
from transnet.report.kernels import draw
from transnet.report.measurements import measure
from transnet.report.plot_style import inline
from transnet.report.table_format import Cell, Sheet, either
from transnet.report.tables import Row, rows_of, table, verdict
from transnet.runs.config import data_name, from_dict
from transnet.runs.files import write_atomically
from transnet.runs.provenance import command_elsewhere
from transnet.study.old_results import FinishedRun, Group, read_folder
from transnet.study.plan import KINDS
from transnet.study.statistics import Difference, as_text


@dataclasses.dataclass(frozen=True)
class Figure:
    """A figure of the page."""

    title: str
    svg: str
    caption: str
    sheet: Sheet | None = None


@dataclasses.dataclass(frozen=True)
class Section:
    """A data set and recipe: its findings, tables, figures and runs."""

    group: Group
    findings: list[str]
    facts: dict[str, str]
    tables: list[Sheet]
    figures: list[Figure]
    runs: list[dict[str, Any]]
    run_sheet: Sheet


def write_report(out: str | Path, *, data: str | None = None, device: str = "auto") -> Path:
    """Write ``report.html``, and its tables and figures as files, from the finished runs of a study's folder.

    Args:
        out: the study's folder.
        data: where the data lies, for the networks that were not measured before; None: where its name finds it.
        device: where networks are measured, where that was not done before.
    """
    folder = Path(out)
    groups = read_folder(folder)
    places = _places(groups, data)
    sections = [_section(group, folder, places.get(group.name), device) for group in groups]
    for section in sections:  # a table that is not made any more must not stay behind
        for ending in (".md", ".csv"):
            for old in (folder / "tables").glob(f"{section.group.name}-*{ending}"):
                old.unlink()
    for section in sections:
        for sheet in (*section.tables, *(figure.sheet for figure in section.figures if figure.sheet)):
            path = folder / "tables" / f"{section.group.name}-{sheet.key}"
            path.parent.mkdir(exist_ok=True)
            path.with_name(path.name + ".md").write_text(sheet.markdown())
            path.with_name(path.name + ".csv").write_text(sheet.comma_separated())
    page = folder / "report.html"
    write_atomically(page, _render(sections).encode())
    return page


def _places(groups: list[Group], data: str | None) -> dict[str, str]:
    """Where each group's data lies, where that was given: it goes by its name, or is that of all of them."""
    if data is None:
        return {}
    names = {group.name: data_name(group.some.settings["data"]) for group in groups}
    if data_name(data) not in names.values() and len(set(names.values())) > 1:
        raise ConfigError(
            f"{data} is called like none of the study's: {', '.join(sorted(set(names.values())))}", field="data"
        )
    alone = len(set(names.values())) == 1
    return {group: data for group, name in names.items() if alone or name == data_name(data)}


def _section(group: Group, folder: Path, data: str | None, device: str) -> Section:
    measured = measure(group, folder, data=data, device=device)
    targets = ("pruned", "full", "unmirrored", "ablation", "taught")
    tables = [sheet for target in targets if (sheet := table(group, target))]
    figures = []
    drawn = folder / "figures"
    curves = measured["ensembles"]
    if any(len(points) > 1 for points in curves.values()):
        twice = " and its mirror image" if group.some.protocol == "test_flip" else ""
        caption = (
            f"An instance is one network or one head that is shown the image{twice}; an ensemble is the mean of "
            "the outputs. Mean ± standard error over ensembles that share no network; n are their numbers, for each "
            "m in turn."
        )
        figures.append(
            _figure("Fig. 3: ensembles", draw_ensembles(curves, group, drawn), caption, ensembles_sheet(curves))
        )
    if group.of("base") and group.of("t2"):
        caption = (
            "Above: loss of the identity head, mean over seeds; while training it is that of augmented images. "
            "Below: test loss over train loss at the end, mean ± standard error, lower is better; m heads against "
            "the base of m× epochs."
        )
        figures.append(
            _figure("Fig. 4: generalisation", draw_generalization(group, drawn), caption, generalization_sheet(group))
        )
    if (kernels := measured["invariance"]) and len(kernels["runs"]) > 1:
        files = draw(kernels, drawn, prefix=f"{group.name}-")
        caption = (
            "Distance of each kernel to the nearest one that rotations by 90° leave unchanged: lower is more invariant."
            " Mean over a layer's kernels; bars are one standard deviation, cut at 0, below which no distance lies."
        )
        figures.append(_figure("Fig. 5: kernel invariance by layer", files[: len(files) // 2], caption))
        caption = "The share of kernels with at most that distance: a curve further left is of more invariant ones."
        figures.append(
            _figure("Fig. 6: the last layer's kernels", files[len(files) // 2 :], caption, invariance_sheet(kernels))
        )
    runs = [_run(run) for run in group.all_runs]
    return Section(group, findings(group), facts(group), tables, figures, runs, _run_sheet(group))


def _figure(title: str, files: list[Path], caption: str, sheet: Sheet | None = None) -> Figure:
    svg = next(file for file in files if file.suffix == ".svg")
    return Figure(title, inline(svg.read_text()), caption, sheet)


def findings(group: Group) -> list[str]:
    """What m heads gained in points, against the base and against the base of equal passes, and what is certain."""
    mirrored = group.some.protocol == "test_flip"
    rows = _gains(group, "pruned", "full", *(() if mirrored else ("taught",)))
    if not rows:
        return []

    def judged(gaps: list[tuple[str, Difference | None]]) -> str:
        return verdict([(f"{name}\u00a0{as_text(gap.mean, '+.2f')}" if gap else name, gap) for name, gap in gaps])

    def against(rows: list[Row], tested: str) -> list[str]:
        return [
            f"Points against the base{tested}: {judged([(row.name, row.to_base) for row in rows])}.",
            f"Against the base of equal training passes{tested}: {judged([(row.name, row.to_equal) for row in rows])}.",
        ]

    sizes = sorted({n for row in rows for gap in (row.to_base, row.to_equal) if gap for n in gap.n})
    how = f"n = {either(sizes)}; ahead or behind is what has a 95 % interval without zero in it."
    alone = _gains(group, "unmirrored", "taught") if mirrored else []
    found = against(rows, ", with the mirror image as in the paper" if alone else "")
    if alone:
        found += against(alone, ", on the image alone")
    return [*found, "One seed: no intervals." if sizes == [1] else f"{how} The intervals stand in the tables."]


def _gains(group: Group, *targets: str) -> list[Row]:
    """What is not base, by name: some rows stand in several tables."""
    rows = {row.name: row for target in targets for row in rows_of(group, target)}
    return [row for name, row in rows.items() if not name.startswith("base")]


def facts(group: Group) -> dict[str, str]:
    """What all runs of a group have in common, or where they differ; without a commit where no run knows its own."""
    some = group.some
    data = some.result["config"]["data"]
    epochs = some.settings["epochs"] // KINDS[some.kind].epochs

    def every(*names: str) -> str:
        values = []
        for run in group.all_runs:
            value: Any = run.result
            for name in names:
                value = value[name]
            values.append("unknown" if value is None else str(value))
        return ", ".join(sorted(set(values)))

    minutes = sum(run.result["train_seconds"] for run in group.all_runs) / 60
    flip = "each image and its mirror image, outputs averaged" if some.protocol == "test_flip" else "the plain image"
    found = {
        "data": f"{data['name']}, {data['sizes']['train']:,} training and {data['sizes']['test']:,} test images, "
        f"{len(data['classes'])} classes, {data['image_size']}×{data['image_size']}",
        "backbone": every("config", "train", "model"),
        "recipe": f"{some.settings['recipe']}: {counted(epochs, 'epoch')} of the base, "
        f"batch {some.settings['batch_size']}, learning rate {some.settings['lr']:g}, {some.settings['schedule']}, "
        f"decay {some.settings['weight_decay']:g}, label smoothing {some.settings['label_smoothing']:g}",
        "tested on": flip + "; nothing was selected on the test set",
        "runs": f"{len(group.all_runs)}" + (f"; failed: {', '.join(group.failed)}" if group.failed else ""),
        "training time": f"{minutes:.1f} minutes, summed over the runs",
        "device": every("device"),
        "torch": every("versions", "torch"),
    }
    commit = every("commit")  # there is none outside a checkout
    return found if commit == "unknown" else {**found, "commit": commit}


def _run(run: FinishedRun) -> dict[str, Any]:
    loss, accuracy = curves_of(run.metrics)
    settings = {name: value for name, value in run.settings.items() if name not in ("out", "resume")}
    return {
        "name": run.name, "title": f"{KINDS[run.kind].title}, seed {run.seed}", "settings": settings,
        "command": command_elsewhere(from_dict(run.settings), run.name), "loss": loss, "accuracy": accuracy,
        "heads": run.result[run.protocol]["heads"], "seconds": run.result["train_seconds"],
        "device": run.result["device"] + _others(run),
    }  # fmt: skip


def _others(run: FinishedRun) -> str:
    return f" ({run.at_once} at once)" if run.at_once > 1 else ""


def _run_sheet(group: Group) -> Sheet:
    rows = []
    for run in group.all_runs:
        pruned, full = (100 * run.score(part)["accuracy"] for part in ("pruned", "full"))
        ratio, seconds = run.result["generalization"], run.result["train_seconds"]
        rows.append(
            (
                Cell(run.name, run.name), Cell(KINDS[run.kind].title, run.kind), Cell(str(run.seed), run.seed),
                Cell(f"{pruned:.2f}", pruned), Cell(f"{full:.2f}", full),
                Cell(f"{ratio:.3f}" if ratio else "–", ratio),
                Cell(str(run.settings["epochs"]), run.settings["epochs"]),
                Cell(f"{seconds:,.0f}{_others(run)}", seconds),
            )
        )  # fmt: skip
    columns = ("run", "kind", "seed", "pruned %", "all heads %", "test / train loss", "epochs", "seconds")
    return Sheet("runs", "Every run", columns, tuple(rows))


def _render(sections: list[Section]) -> str:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    import transnet

    pages = Environment(
        loader=PackageLoader("transnet", "report/page"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    pages.filters["download"] = _download
    return pages.get_template("report.html").render(sections=sections, version=transnet.__version__)


def _download(text: str, kind: str) -> str:
    """A text as an address that a link can hand out as a file."""
    return f"data:text/{kind};charset=utf-8,{urllib.parse.quote(text)}"
