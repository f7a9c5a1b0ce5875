"""Which of the paper's tables, figures and claims reproduced: computed from the files in results/ by one rule.

- Each item has parts: a row of a table, a point of a figure, a statement. The paper's recipe decides a part if there
  are three runs on each side, otherwise recipe ``fast`` does; with fewer runs the part is not run.
- A row of a table reproduced if its difference to the baseline and the paper's are at most two combined standard errors
  apart. A statement without a number reproduced if the 95 % interval agrees with it: above zero for "more", not above
  zero for "no gain".
- With recipe ``fast`` a part is at best "reproduced with another recipe".
- An item has the status of its weakest part.
"""

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from comparisons import (
    Check,
    ensembles,
    gain,
    last_layer,
    last_layer_alone,
    loss_moves,
    published_gain,
    ratio_falls,
    table_row,
)
from source import figure, grid, read
from studies import Study, studies
from transnet.data.catalog import DATASETS
from transnet.report import table_format as cells
from transnet.report.kernels import MEASURES
from transnet.report.tables import LAYOUTS, accuracies, name_of, published
from transnet.runs.config import TrainConfig
from transnet.study.file import read_study
from transnet.study.statistics import as_text

PAPER: dict[str, Any] = tomllib.loads(Path(__file__).with_name("paper.toml").read_text())
NEEDED = 3  # runs on each side
STATUSES = ("not reproduced", "corrected", "not run", "reproduced with another recipe", "reproduced")
FIVE = ("cifar10", "cifar100", "imagenette", "imagewoof", "imagenet200")
WEIGHTS = "paper-invariance-weights"
TABLES = {"table2": "pruned", "table3": "full", "table4": "ablation"}  # and the commands that make them


@dataclass(frozen=True)
class Part:
    """A row, a point or a statement of an item."""

    what: str
    paper: str
    status: str
    ours: str
    why: str


@dataclass(frozen=True)
class Item:
    """A table, a figure or a claim. ``minutes`` are those of an H200 for what the rule still needs."""

    id: str
    status: str
    paper: str
    ours: str
    minutes: int
    command: str
    why: str
    parts: tuple[Part, ...] = ()


# ------------------------------------------------------------------------------------------------------------- the rule


def judge(what: str, paper: str, check: Check, data: str, among: Mapping[str, Study]) -> Part:
    """A part's status by the rule above."""
    found = {name: check(among[name]) for name in (f"{data}-paper", f"{data}-fast") if name in among}
    notes = {
        name: f"{_recipe(name)}, n = {one.n}: {one.ours}"
        + (", which disagrees" if one.n >= NEEDED and not one.holds else "")
        for name, one in found.items() if one.n
    }  # fmt: skip
    for name, one in found.items():
        if one.n >= NEEDED:
            good = "reproduced" if name.endswith("-paper") else "reproduced with another recipe"
            others = [note for other, note in notes.items() if other != name]
            why = "; ".join([f"{_recipe(name)}, n = {one.n}", *others])
            return Part(what, paper, good if one.holds else "not reproduced", one.ours, why)
    return Part(what, paper, "not run", "–", "; ".join(notes.values()) or "no runs")


def _recipe(series: str) -> str:
    return f"recipe `{series.rpartition('-')[2]}`"


def item(key: str, parts: Sequence[Part], minutes: int, command: str) -> Item:
    """An item with its weakest part's status. The parts with that status explain it."""
    status = min((part.status for part in parts), key=STATUSES.index)
    weakest = [part for part in parts if part.status == status]
    texts = {name: "; ".join(f"{part.what}: {getattr(part, name)}" for part in weakest) for name in ("ours", "why")}
    paper = "; ".join(f"{part.what}: {part.paper}" for part in weakest)
    return Item(key, status, paper, minutes=minutes, command=command, parts=tuple(parts), **texts)


# ------------------------------------------------------------------------------------------------------ what is missing


def by_series() -> dict[str, Study]:
    """The studies that count: the data set's own network, and the whole recipe. Of two, the one with more runs."""
    found = sorted(studies(), key=lambda study: len(study.series.all_runs))
    return {study.series.name: study for study in found if study.usual and _whole_recipe(study)}


def _whole_recipe(study: Study) -> bool:
    """Whether a study has its recipe's epochs, batches and resolution, and all training images."""
    run = (study.series.of("base") or study.series.all_runs)[0].settings
    recipe = TrainConfig.for_data(run.data, "", recipe=run.recipe)
    names = ("epochs", "batch_size", "lr", "image_size", "train_fraction")
    return all(getattr(run, name) == getattr(recipe, name) for name in names)


def minutes(data: str, recipe: str, runs: Mapping[str, int], among: Mapping[str, Study]) -> int:
    """Minutes on an H200 to have so many runs of each kind, from the speeds on file."""
    speed = {(row["model"], row["batch"]): row["passes_per_second"] for row in read("training_speed.json")["speed"]}
    fast, slow = (speed["resnet18-cifar", batch] for batch in (512, 64))  # the last row of each has two heads or one
    rate = slow if recipe == "paper" else fast
    if data not in ("cifar10", "cifar100"):  # smaller batches are assumed to cost the same share of the speed
        (large,) = (row for row in read("training_growth.json")["large"] if row.get("image_size") == 224)
        rate = large["passes_per_second"] * (slow / fast if recipe == "paper" else 1) / PAPER["cost"].get(data, 1)
    files = ("kinds", "paper-natural", "paper-invariance", WEIGHTS)
    variants = {name: one for file in files for name, one in read_study(file).variants.items()}
    study, passes = among.get(f"{data}-{recipe}"), 0
    for kind, number in runs.items():
        variant = variants[kind]
        epochs = TrainConfig.for_data(data, "", recipe=recipe).epochs * variant.times
        heads = len(str(variant.options.get("transforms", "r0")).split(","))  # the weights are those of baselines
        passes += max(number - (len(study.series.of(kind)) if study else 0), 0) * heads * epochs
    return math.ceil(passes * PAPER["data"][data]["images"] / rate / 60)


def _command(target: str, data: str, seeds: int) -> str:
    out = f"--out results/{data}"
    if target == "paper-invariance":
        return f"transnet study paper-invariance-weights {out} && transnet study {target} {out}"
    if target.startswith("paper-"):
        return f"transnet study {target} {out}"
    return f"transnet reproduce {target} --data {data} --recipe paper --seeds {seeds} {out}"


def _proved(key: str, among: Mapping[str, Study]) -> Item:
    """A statement that tests check: corrected if it fails as it is printed."""
    about, passed = PAPER["proved"][key], read("paper_tests.json")["tests"]
    confirm, refute = about.get("tests", []), about.get("refute", [])
    status = "reproduced" if not refute else "corrected"
    if not all(passed.get(test) for test in (*confirm, *refute)):
        status = "not reproduced"
    folds = read("fold_exactness.json")
    study, exact = among["cifar100-paper"].series, [max(row["exact"].values()) for row in folds["compared"]]
    sizes = [study.of(kind)[0].result.cost.parameters for kind in ("t2", "base")]
    networks = {*(row["model"] for row in folds["compared"]), *folds["exact"]}
    ours = about["found"].format(
        parameters=sizes[0] - sizes[1], networks=len(networks), error=max([*exact, *folds["exact"].values()])
    )
    why = "tests: " + ", ".join(f"{test} {'passes' if passed.get(test) else 'FAILS'}" for test in (*confirm, *refute))
    return Item(key, status, about["statement"][1], ours, 0, "pytest tests/test_paper.py", why)


# ------------------------------------------------------------------------------------------------------------ the items


def items() -> list[Item]:
    """Every table, figure and claim of the paper, with its status."""
    among = by_series()

    def part(key: str, what: str, check: Check, data: str = "cifar100") -> Part:
        return judge(what, PAPER["statements"][key][1], check, data, among)

    def entry(
        key: str, parts: Sequence[Part], runs: Sequence[str] | Mapping[str, int], target: str, data: str = "cifar100"
    ) -> Item:
        needed = runs if isinstance(runs, Mapping) else dict.fromkeys(runs, NEEDED)
        recipe = "fast" if target.startswith("paper-") else "paper"  # study files of their own have recipe fast
        left = minutes(data, recipe, needed, among)
        return item(key, parts, left, _command(target, data, max(needed.values())))

    found = []
    for table, target in TABLES.items():
        rows = [(kind, side) for kind, side in LAYOUTS[target].rows if published(name_of(kind, side), "cifar100")]
        for data in FIVE:
            parts = [
                judge(name_of(*row), _gain_text(name_of(*row), data), table_row(*row, data), data, among)
                for row in rows if row[0] != "base"
            ]  # fmt: skip
            found.append(entry(f"{table}-{data}", parts, [kind for kind, _ in rows], target, data))
    ladder = (("t2", "base"), ("t3", "t2"), ("t4", "t3"))
    four = {"base": 4 * NEEDED, "t2": 4 * NEEDED, "t3": NEEDED, "t4": NEEDED}  # ensembles that share no network
    for data in FIVE:
        parts = [part("fig3_m", f"{m} PT2 − {m} baselines", ensembles("PT2", m, "above"), data) for m in (2, 3, 4)]
        parts += [part("fig3_full", f"one T{m} − {m} baselines", ensembles("Tm", m, "not below"), data) for m in (2, 3)]
        found.append(entry(f"fig3-{data}", parts, four, "ensembles", data))
    kinds = ("base", "t2", "t3", "t4")
    chosen = "cifar100-fast" in among and among["cifar100-fast"].series.of("base-invariance")
    weights = {} if chosen else dict.fromkeys(read_study(WEIGHTS).variants, 1)
    ratios = [part("ratio", f"{_name(a)} − {_name(b)}", ratio_falls(a, b)) for a, b in ladder]
    curves = [
        part("loss", f"{split} loss, PT2 − baseline", loss_moves(split, expected))
        for split, expected in (("train", "above"), ("test", "below"))
    ]
    alone = [part("last_layer", "change from the baseline to T2", last_layer_alone)]
    grows = [
        part("grows", f"{how} of T{m + 2} − " + ("baseline" if m == 0 else f"T{m + 1}"), last_layer(a, b, key, "below"))
        for m, (a, b) in enumerate(ladder) for how, key in (("IS", "l2"), ("IS / norm", "relative"))
    ]  # fmt: skip
    found += [
        entry("fig4", curves + ratios, kinds, "generalization"),
        entry("fig5", alone, ("base", "t2"), "invariance"),
        entry("fig6", grows, kinds, "invariance"),
        entry(
            "claim-natural",
            [
                part("natural", "{r0, m0} pruned − base × 2", gain("t2-m0", "base-x2", expected="not above")),
                *(part("unnatural", f"{{r0, {t}}} pruned − baseline", gain(kind, "base"))
                  for t, kind in (("r1", "t2"), ("r2", "t2-r2"), ("m1", "t2-m1"))),
            ],
            ("base", "base-x2", "t2", "t2-m0", "t2-r2", "t2-m1"), "paper-natural",
        ),
        *(_proved(key, among) for key in PAPER["proved"]),
        entry(
            "claim-four-heads",
            [part(f"four_{side}", f"CIFAR-100: {name_of('t4', side)} − {name_of(kind, side)}",
                  gain("t4", kind, side, expected="below"))
             for side in ("pruned", "full") for kind in ("t2", "t3")],
            ("t2", "t3", "t4"), "full",
        ),
        entry(
            "claim-ensembles-add",
            [part("ensembles_add", f"{m} PT2 − {m} baselines", ensembles("PT2", m, "above")) for m in (2, 3, 4)],
            {"base": 4 * NEEDED, "t2": 4 * NEEDED}, "ensembles",
        ),
        entry("claim-generalization", ratios, kinds, "generalization"),
        entry("claim-last-layer", alone, ("base", "t2"), "invariance"),
        entry("claim-invariance-grows", grows, kinds, "invariance"),
        entry(
            "claim-metric",
            [part("metric", f"{measure} in the last layer, T2 − baseline", last_layer("t2", "base", measure, expected))
             for measure, expected in zip(MEASURES, ("below", "below", "above", "above"), strict=True)],
            ("base", "t2"), "invariance",
        ),
        entry(
            "claim-both-needed",
            [part("algorithm", "Alg. only − baseline", gain("alg", "base", expected="not above")),
             part("architecture", "Arch. only − baseline", gain("arch", "base", expected="not above")),
             part("both", "PT2 − baseline", gain("t2", "base"))],
            ("base", "alg", "arch", "t2"), "ablation",
        ),
        entry(
            "claim-regulariser",
            [part("regulariser", "baseline with the score as a penalty − baseline", gain("base-invariance", "base"))],
            {"base": NEEDED, "base-invariance": NEEDED, **weights}, "paper-invariance",
        ),
    ]  # fmt: skip
    return found


def _name(kind: str) -> str:
    return name_of(kind, "pruned")


def _gain_text(name: str, data: str) -> str:
    mean, error = published_gain(name, data)
    return f"{as_text(mean, '+.2f')} ± {error:.2f}"


# ------------------------------------------------------------------------------------------------------------- the page


def content() -> dict[str, object]:
    """The content of results/reproduction.json."""
    return {"items": [asdict(one) for one in items()], "command": "python docs/publish/fill.py"}


def page() -> str:
    """Every item under its status: disagreements first."""
    found = items()
    headings = {
        "not reproduced": "Disagreements with the paper", "corrected": "Corrected",
        "reproduced": "Reproduced with the paper's recipe",
        "reproduced with another recipe": "Reproduced with recipe `fast`", "not run": "Not run",
    }  # fmt: skip
    counts = [(title, sum(one.status == status for one in found)) for status, title in headings.items()]
    blocks = [grid(("status", "items"), counts)]
    for status, title in headings.items():
        rows, commands = [], []
        for one in (one for one in found if one.status == status):
            parts = [(part.what, part.paper, part.ours, part.status, part.why) for part in one.parts]
            if not one.parts:
                parts = [("", one.paper, one.ours, status, one.why)]
            elif all(part.why == "no runs" for part in one.parts):
                parts = [tuple("; ".join(dict.fromkeys(texts)) for texts in zip(*parts, strict=True))]
            rows += [(f"`{one.id}`" if i == 0 else "", *part) for i, part in enumerate(parts)]
            commands.append((f"`{one.id}`", one.minutes, f"`{one.command}`"))
        blocks.append(f"## {title}")
        if not rows:
            blocks.append("None.")
            continue
        blocks += [
            grid(("item", "what", "the paper", "ours", "status", "runs"), rows),
            "Minutes on an H200 until every part is decided by the rule, and the command:",
            grid(("item", "minutes", "command"), commands),
        ]
    return "\n\n".join([*blocks, "## ImageNette-160", _smaller()])


def takes() -> str:
    """What the data sets of larger images need: memory, hours and the command."""
    among, rows = by_series(), []
    kinds = dict.fromkeys(kind for target in TABLES.values() for kind, _ in LAYOUTS[target].rows)
    paper = [kind for kind in kinds if not kind.startswith("base-")]
    for data in ("imagenette160", *FIVE[2:]):
        about, (height, width) = PAPER["data"][data], DATASETS[data].geometry.stored
        hours = {name: minutes(data, "paper", dict.fromkeys(each, NEEDED), among) / 60
                 for name, each in {"paper": paper, "all": kinds, "base": ["base"]}.items()}  # fmt: skip
        rows.append((
            f"`{data}`", f"{about['images']:,}", f"{about['images'] * height * width * 3 / 2**30:.1f}",
            f"{60 * hours['base'] / NEEDED:.0f}", f"{hours['paper']:.0f}", f"{hours['all']:.0f}",
            f"`transnet reproduce all --data {data} --recipe paper --seeds 3 --out results/{data}`",
        ))  # fmt: skip
    columns = ("data", "training images", "GB of memory, decoded", "minutes, one baseline",
               "hours, the paper's Tables 2–4", "hours, with the longer baselines", "command")  # fmt: skip
    sources = " ".join(read(name)["origin"] for name in ("training_speed.json", "training_growth.json"))
    return f"{grid(columns, rows)}\n\nTime on an H200, estimated from speeds: {sources}"


def _smaller() -> str:
    """The runs of ImageNette at 160 pixels, a size that the paper does not use, or the minutes that they take."""
    among = by_series()
    data, rows = "imagenette160", []
    study = read_study(f"paper-{data}")
    for kind, variant in study.variants.items():
        runs = (
            series.of(kind) if (series := among[f"{data}-paper"].series if f"{data}-paper" in among else None) else []
        )
        planned = len(variant.seeds or study.seeds)
        for side in (
            ("full",) if kind.startswith("base") else ("pruned",) if kind in ("alg", "arch") else ("pruned", "full")
        ):
            left = minutes(data, "paper", {kind: planned}, among)
            ours = figure(accuracies(runs, side)) if runs else f"not run, {left} minutes"
            paper = published(name_of(kind, side), "imagenette")
            rows.append((name_of(kind, side), ours, len(runs), cells.with_error(*paper).text if paper else "–"))
    return grid(("model", "ImageNette-160 %", "n", "the paper's ImageNette, 224 pixels, %"), rows)
