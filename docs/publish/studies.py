"""Accuracy by the studies in results/: every classifier with its n, its cost and the paper's number.

A study is kept there as `transnet reproduce` made it, without the weights (*.safetensors) and state/ of its runs.
"""

from collections import Counter
from pathlib import Path
from typing import NamedTuple

from source import RESULTS, counted, figure, grid, link, made_with
from transnet.data.catalog import DATASETS
from transnet.report import table_format as cells
from transnet.report.page import facts
from transnet.report.tables import accuracies, differences_table, rows_of
from transnet.study.results import Series, read_runs
from transnet.study.statistics import difference

TITLES = {
    "cifar100-fast": "CIFAR-100, recipe `fast`",
    "cifar100-paper": "CIFAR-100, recipe `paper`",
    "cifar10-fast": "CIFAR-10, recipe `fast`",
    "digits-fast": "scikit-learn's digits, recipe `fast`",
}
REPORT_TABLES = ("pruned", "full", "unmirrored", "ablation", "ensembles", "generalization", "invariance",
                 "invariance_layers", "invariance_steps", "taught", "heads", "differences")  # fmt: skip


class Study(NamedTuple):
    """A series in results/."""

    series: Series
    folder: Path
    title: str

    @property
    def usual(self) -> bool:
        """Whether it has the data set's own network. Others are in no table with it."""
        named = DATASETS.get(self.series.data)
        return named is None or self.series.first.settings.model == named.model


def _origin(study: Study) -> str:
    about = facts(study.series)
    return f"{made_with(about['device'], about['torch'], about['commit'])} ({link(study.folder.name)})"


def studies() -> list[Study]:
    """Every series in results/, those of `TITLES` first."""
    series = [(one, path.parent) for path in sorted(RESULTS.glob("*/runs")) for one in read_runs(path.parent)]
    order = {name: i for i, name in enumerate(TITLES)}
    series.sort(key=lambda pair: (order.get(pair[0].name, len(order)), pair[0].name))
    found = [Study(one, folder, TITLES.get(one.name, one.name)) for one, folder in series]
    return [
        one if one.usual else one._replace(title=f"{one.title}, {one.series.first.settings.model}") for one in found
    ]


def _main_study() -> Study:
    """The first study with everything that README compares."""
    kinds = {"base", "t2", "t2-taught", "base-x2"}
    return next(one for one in studies() if one.series.runs.keys() >= kinds and one.series.first.uses_flip)


def first_screen() -> str:
    """README's first table: accuracy against training compute and passes per image."""
    study = _main_study()
    series = study.series
    classifiers = {  # kind, part, flip TTA
        "plain": ("base", "pruned", False), "plain, twice as long": ("base-x2", "pruned", False),
        "TransNet, self-distilled and pruned": ("t2-taught", "pruned", False),
        "plain, twice as long, flip TTA": ("base-x2", "pruned", True), "TransNet, both heads": ("t2", "full", False),
    }  # fmt: skip
    compute = series.of("base")[0].result.cost.train_passes
    rows = []
    for name, (kind, part, flip) in classifiers.items():
        runs = series.of(kind)
        values, passes = accuracies(runs, part, flip), runs[0].score(part, flip).passes
        longer = accuracies(series.of("base-x2"), "pruned", passes == 2)
        gap = difference(values, longer) if name.startswith("TransNet") else None
        training = f"{runs[0].result.cost.train_passes / compute:g}×"
        rows.append((name, training, passes, f"{figure(values)} (n = {len(values)})", cells.gap(gap)))
    columns = (f"{series.first.settings.model}, {study.title.partition(',')[0]}", "training", "passes per image",
               "accuracy %", "to plain, twice as long, same passes per image")  # fmt: skip
    return f"{grid(columns, rows)}\n\n{_origin(study)}."


def image_alone() -> str:
    """The classifiers of the main study on the image alone, those of equal cost beside each other."""
    study = _main_study()
    found = {row.name: row for key in ("unmirrored", "taught") for row in rows_of(study.series, key)}
    compute = found["baseline"].train_passes
    rows = [
        (row.name, f"{row.train_passes / compute:g}×", row.predict_passes,
         f"{figure(row.accuracies)} ({counted(len(row.accuracies))})", cells.gap(row.to_baseline),
         cells.gap(row.to_longer))
        for row in sorted(found.values(), key=lambda row: (row.train_passes, row.predict_passes))
    ]  # fmt: skip
    columns = ("model", "training", "passes per image", "accuracy %", "to baseline", "at equal compute")
    return f"{grid(columns, rows)}\n\n{study.title}. {_origin(study)}."


def beside_paper() -> str:
    """Every study by the paper's test, with the paper's own numbers in parentheses."""
    columns, rows = ["model"], {name: [name] for name in ("baseline", "PT2", "T2", "PT3", "T3", "PT4", "T4")}
    for study in (one for one in studies() if one.usual):
        found = {row.name: row for key in ("pruned", "full") for row in rows_of(study.series, key) if row.name in rows}
        sizes = sorted({len(row.accuracies) for row in found.values()})
        columns.append(f"{study.title}, {counted(sizes[0])}" + "".join(f" or {size}" for size in sizes[1:]))
        for name, cell in rows.items():
            row = found.get(name)
            paper = f" ({cells.with_error(*row.paper).text})" if row and row.paper else ""
            cell.append(figure(row.accuracies) + paper if row else "–")
    origins = "; ".join(f"{study.title}: {_origin(study)}" for study in studies() if study.usual)
    return f"{grid(columns, list(rows.values()))}\n\n{origins}."


def details() -> str:
    """Every study under a heading of its own: what was trained, then its tables in the paper's order."""
    parts = []
    for study in studies():
        paths = [study.folder / "tables" / f"{study.series.name}-{key}.md" for key in REPORT_TABLES]
        tables = ["#" + path.read_text().strip() for path in paths if path.exists()]  # a heading one level below
        parts += [f"### {study.title}", _what_was_trained(study), *tables]
    return "\n\n".join(parts)


def _what_was_trained(study: Study) -> str:
    """The data and settings of a study, and the command that repeats it."""
    series, about = study.series, facts(study.series)
    data, run = series.first.result.config.data, (series.of("base") or series.all_runs)[0].settings
    (seeds, _), *_ = Counter(len(runs) for runs in series.runs.values()).most_common()
    words = f"--data {run.data} --recipe {run.recipe} --model {run.model} --epochs {run.epochs} --seeds {seeds}"
    if run.train_fraction < 1:
        words += f" --train-fraction {run.train_fraction:g}"
    targets = ["all", "distilled"] if series.of("t2-taught") else ["all"]
    return (
        f"{data.name}, {data.sizes.train:,} training and {data.sizes.test:,} test images, {len(data.classes)} classes, "
        f"{data.image_size}×{data.image_size}; {about['network']}; {about['recipe']}. {_origin(study)}. To repeat it: "
        f"{' and '.join(f'`transnet reproduce {one} {words}`' for one in targets)}."
    )


def self_distillation() -> str:
    """What self-distillation gives the pruned head, and what it takes from all heads."""
    parts = []
    for study in studies():
        table = differences_table(study.series)
        rows = [row for row in table.rows if "self-distilled" in row[0].text] if table else []
        if table and rows:
            parts += [f"{study.title}:", grid(table.columns, rows), f"{_origin(study)}."]
    return "\n\n".join(parts)
