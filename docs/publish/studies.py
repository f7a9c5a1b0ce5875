"""Accuracy by the studies in results/: every classifier with its n, its cost and the paper's number.

A study is kept there as `transnet reproduce` made it, without the weights (*.safetensors) and state/ of its runs.
"""

from collections import Counter
from pathlib import Path

from source import RESULTS, counted, figure, grid, link, made_with
from transnet.report import table_format as cells
from transnet.report.page import facts
from transnet.report.tables import Row, accuracies, differences_table, rows_of
from transnet.runs import recipes
from transnet.runs.config import TrainConfig
from transnet.study.results import Series, read_runs
from transnet.study.statistics import difference

TITLES = {
    "cifar100-fast": "CIFAR-100, recipe `fast`",
    "cifar100-paper": "CIFAR-100, recipe `paper`",
    "cifar10-fast": "CIFAR-10, recipe `fast`",
    "digits-fast": "scikit-learn's digits, recipe `fast`",
}
ORDER = (
    "baseline", *(f"baseline, {m}× epochs" for m in (2, 3, 4)),
    "PT2", "PT2 self-distilled", "T2", "T2 self-distilled", "PT3", "T3", "PT4", "T4",
)  # fmt: skip
EQUAL = "at equal compute"
READING = (
    "± is the standard error over n seeds. Differences are in points with Welch's 95 % interval; one that contains "
    "zero is not significant."
)
COMPUTE = (
    "At equal compute: compared with the baseline at equal training compute, which has as many training passes as m "
    "heads."
)
TABLES = ("pruned", "full", "unmirrored", "ablation", "ensembles", "generalization", "invariance", "invariance_layers",
          "invariance_steps", "taught", "differences")  # fmt: skip


def found() -> list[tuple[Series, Path, str]]:
    """Every series in results/ with its folder and title, those of `TITLES` first."""
    read = [(one, path.parent) for path in sorted(RESULTS.glob("*/runs")) for one in read_runs(path.parent)]
    order = {name: i for i, name in enumerate(TITLES)}
    read.sort(key=lambda pair: (order.get(pair[0].name, len(order)), pair[0].name))
    often = Counter(series.name for series, _ in read)
    return [
        (one, folder, TITLES.get(one.name, one.name) + (f", {folder.name}" if often[one.name] > 1 else ""))
        for one, folder in read
    ]


def headline_series() -> tuple[Series, Path, str]:
    """The first series with everything that the headline compares."""
    kinds = {"base", "t2", "t2-taught", "base-x2"}
    return next(one for one in found() if one[0].runs.keys() >= kinds and one[0].first.uses_flip)


def first_screen() -> str:
    """README's first table: accuracy against training compute and passes per image."""
    series, folder, title = headline_series()
    classifiers = (  # name, kind, part, flip TTA; None: no fair comparison
        ("plain", "base", "pruned", False), ("plain, twice as long", "base-x2", "pruned", False),
        ("TransNet, self-distilled and pruned", "t2-taught", "pruned", False),
        ("plain, twice as long, flip TTA", "base-x2", "pruned", True), ("TransNet, both heads", "t2", "full", False),
    )  # fmt: skip
    compute = series.of("base")[0].result.cost.train_passes
    rows = []
    for name, kind, part, flip in classifiers:
        runs = series.of(kind)
        values, passes = accuracies(runs, part, flip), runs[0].score(part, flip).passes
        longer = accuracies(series.of("base-x2"), "pruned", passes == 2)
        gap = difference(values, longer) if name.startswith("TransNet") else None
        training = f"{runs[0].result.cost.train_passes / compute:g}×"
        rows.append((name, training, passes, f"{figure(values)} (n = {len(values)})", cells.gap(gap)))
    columns = (f"{series.first.settings.model}, {title.partition(',')[0]}", "training", "passes per image",
               "accuracy %", "to plain, twice as long, at equal passes")  # fmt: skip
    return f"{grid(columns, rows)}\n\n{READING} {commits(series, folder)}."


def headline() -> str:
    """What two heads gain, over the baseline and over the baseline at equal training compute and passes."""
    series, folder, title = headline_series()
    ways = {  # kind, part and flip TTA; flip TTA of the baseline that takes as many passes
        "both heads kept, two passes per image": ("t2", "full", False, True),
        "pruned, one pass per image": ("t2", "pruned", False, False),
        "self-distilled and pruned, one pass per image": ("t2-taught", "pruned", False, False),
        "pruned, flip TTA": ("t2", "pruned", True, True),
        "self-distilled and pruned, flip TTA": ("t2-taught", "pruned", True, True),
    }
    rows = []
    for way, (kind, part, flip, longer_flip) in ways.items():
        values = accuracies(series.of(kind), part, flip)
        others = (("base", flip), ("base-x2", longer_flip))
        gaps = [difference(values, accuracies(series.of(other), "pruned", by)) for other, by in others]
        rows.append((way, *map(cells.gap, gaps), *(cells.verdict(gaps[1]),), f"{gaps[1].n[0]} and {gaps[1].n[1]}"))
    columns = ("trained with two heads", "to baseline", f"{EQUAL} and passes per image", "it is", "n")
    return (
        f"Points of accuracy gained on {title.partition(',')[0]} ({series.first.settings.model}):\n\n"
        f"{grid(columns, rows)}\n\n{READING} The baseline at equal training compute trains for twice the epochs; its "
        f"second pass over an image is the horizontal flip. {commits(series, folder)}."
    )


def brief() -> str:
    """README's results: the first study on the image alone, and every study beside the paper."""
    series, _, title = headline_series()
    compute = series.of("base")[0].result.cost.train_passes
    rows = [
        (row.name, f"{row.train_passes / compute:g}×", row.predict_passes, n_and_figure(row),
         cells.gap(row.to_baseline), cells.gap(row.to_longer))
        for row in in_order(series, ("unmirrored", "taught"))
    ]  # fmt: skip
    columns = ("model", "training", "passes per image", "accuracy %", "to baseline", EQUAL)
    names = ("baseline", "PT2", "T2", "PT3", "T3", "PT4", "T4")
    beside, sources = [], []
    for one, where, name in found():
        shown = {row.name: row for row in in_order(one, ("full", "pruned")) if row.name in names}
        sizes = sorted({len(row.accuracies) for row in shown.values()})
        texts = {
            key: figure(row.accuracies) + (f" ({cells.with_error(*row.paper).text})" if row.paper else "")
            for key, row in shown.items()
        }
        n = "one seed" if sizes == [1] else f"n = {' or '.join(map(str, sizes))}"
        beside.append((f"{name}, {n}", *(texts.get(key, "–") for key in names)))
        sources.append(f"{name}: {commits(one, where)}")
    return "\n\n".join([
        f"{title}, tested on the image alone. PTm: trained with m heads, pruned to one. Tm: all m heads. "
        f"{COMPUTE}", grid(columns, rows),
        "By the paper's test: flip TTA if training flips images. The paper's own numbers are in parentheses. "
        f"{'; '.join(sources)}.", grid(("study", *names), beside),
    ])  # fmt: skip


def overview() -> str:
    """Two tables of each study: as the paper tests, and on the image alone."""
    parts = [
        f"{READING} {COMPUTE} With n = 2 the spread is hardly known. The paper's numbers are means ± standard error of "
        "3 repetitions. Seconds of training leave out start-up, compilation and evaluation; “2 at once” marks runs "
        "that shared the device and so took longer."
    ]
    columns = ("model", "accuracy %", "to baseline", EQUAL, "paper %", "training passes", "passes per image",
               "seconds of training")  # fmt: skip
    for series, folder, title in found():
        for keys, test in ((("full", "pruned"), None), (("unmirrored",), False)):
            rows = in_order(series, (*keys, "taught"), flip=test)
            if test is False and not series.first.uses_flip:
                continue
            shown = [
                (row.name, n_and_figure(row), cells.gap(row.to_baseline), cells.gap(row.to_longer),
                 cells.with_error(*row.paper) if row.paper else "–", f"{row.train_passes:,}", row.predict_passes,
                 figure(row.seconds, ".1f") + (f" ({row.at_once} at once)" if row.at_once > 1 else ""))
                for row in rows
            ]  # fmt: skip
            if test is False:  # the other columns are those of the table above
                shown = [(*row[:4], row[6]) for row in shown]
                parts += [f"#### {title}, the image alone", grid((*columns[:4], columns[6]), shown)]
            else:
                parts += [f"### {title}", grid(columns, shown)]
        parts.append(source(series, folder, "pruned"))
    return "\n\n".join(parts)


def details() -> str:
    """Every study under a heading of its own: what was trained, then its tables in the paper's order."""
    parts = []
    for series, folder, title in found():
        paths = [folder / "tables" / f"{series.name}-{key}.md" for key in TABLES]
        tables = ["#" + path.read_text().strip() for path in paths if path.exists()]  # a heading one level below
        parts += [f"### {title}", source(series, folder, "all"), *tables]
    return "\n\n".join(parts)


def self_distillation() -> str:
    """What self-distillation gives the pruned head, and what it takes from all heads."""
    parts = []
    for series, folder, title in found():
        table = differences_table(series)
        rows = [row for row in table.rows if "self-distilled" in row[0].text] if table else []
        if table and rows:
            parts += [f"{title} ({link(folder.name)}):", grid(table.columns, rows)]
    return "\n\n".join([*parts, READING])


def in_order(series: Series, keys: tuple[str, ...], flip: bool | None = None) -> list[Row]:
    """Rows of several tables, each classifier once. Without ``flip`` each table has its own test."""
    if flip is None and "unmirrored" not in keys:
        flip = series.first.uses_flip
    rows: dict[str, Row] = {}
    for row in (row for key in keys for row in rows_of(series, key, flip)):
        rows.setdefault(row.name, row)  # the table of self-distillation has no numbers of the paper
    return [rows[name] for name in ORDER if name in rows]


def n_and_figure(row: Row) -> str:
    return f"{figure(row.accuracies)} ({counted(len(row.accuracies))})"


def commits(series: Series, folder: Path) -> str:
    """Where a study's figures come from."""
    about = facts(series)
    return f"{made_with(about['device'], about['torch'], about['commit'])} ({link(folder.name)})"


def source(series: Series, folder: Path, target: str) -> str:
    """What was trained on what and how, and the command that repeats it."""
    about, data = facts(series), series.first.result.config.data
    run = (series.of("base") or series.all_runs)[0].settings
    (seeds, _), *_ = Counter(len(runs) for runs in series.runs.values()).most_common()
    model = recipes.default_model(data.name, image_size=data.image_size, channels=data.channels)
    defaults = {
        "recipe": TrainConfig.recipe, "train_fraction": TrainConfig.train_fraction, "model": model,
        "epochs": recipes.settings(run.recipe, run.data).get("epochs", TrainConfig.epochs),
    }  # fmt: skip
    changed = [f"--{name.replace('_', '-')} {value}" for name, default in defaults.items()
               if (value := getattr(run, name)) != default]  # fmt: skip
    words = " ".join([f"--data {run.data} --seeds {seeds}", *changed])
    targets = [target, "distilled"] if series.of("t2-taught") else [target]
    return (
        f"{data.name}, {data.sizes.train:,} training and {data.sizes.test:,} test images, {len(data.classes)} classes, "
        f"{data.image_size}×{data.image_size}; {about['network']}; {about['recipe']}. Nothing was selected on the test "
        f"set. {commits(series, folder)}. To repeat it: "
        f"{' and '.join(f'`transnet reproduce {one} {words}`' for one in targets)}."
    )
