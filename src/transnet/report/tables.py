"""Tables 2, 3 and 4 from finished runs: ours beside the paper's, each gain with its price and its error.

The paper tests on every image and its mirror image. Whoever uses a network has the image alone, so a table of the
project's own, `unmirrored`, says what that gives. So does `taught`, of what goes beyond the paper.

Every row says how many runs stand behind it. ± is the standard error; a difference carries Welch's 95 % interval. A
figure is bold only where its lead over the second best is outside the error, so never with one seed.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from transnet.report import table_format as sheets
from transnet.report.paper import N, Published, published
from transnet.report.table_format import NOTHING, Cell, Sheet
from transnet.study.old_results import FinishedRun, Group
from transnet.study.plan import BY_HEADS, EQUAL, KINDS
from transnet.study.statistics import Difference, difference, mean_and_error

# Of each table: (kind of run, which classifier of it), in the paper's order.
_BASE, *_PRUNED = ((kind, "pruned") for kind in BY_HEADS)
_FULL = [(kind, "full") for kind, _ in _PRUNED]
_EQUAL = [(kind, "pruned") for kind in EQUAL]
_ROWS: dict[str, list[tuple[str, str]]] = {
    "pruned": [_BASE, *_PRUNED, *_EQUAL],
    "full": [_BASE, *_FULL, *_EQUAL],
    "unmirrored": [_BASE, *_PRUNED, *_FULL, *_EQUAL],
    "ablation": [_BASE, ("alg", "pruned"), ("arch", "pruned"), _PRUNED[0], _EQUAL[0]],
    "taught": [_BASE, _PRUNED[0], ("t2-taught", "pruned"), _FULL[0], ("t2-taught", "full"), _EQUAL[0]],
}
TITLES = {
    "pruned": "Table 2: base and pruned, the same cost at prediction",
    "full": "Table 3: base and all heads, m times the cost at prediction",
    "unmirrored": "Tables 2 and 3 without the mirror image: one pass a head",
    "ablation": "Table 4: the algorithm alone, the architecture alone, both",
    "taught": "Beyond the paper: the head that is kept, taught by both",
}
_OWN = ("unmirrored", "taught")  # on the image alone; the paper has no such figures
_UNSURE = "no difference shown for"
COLUMNS = (
    "model", "accuracy %", "n", "to base", "to base of equal passes", "paper %", "ours − paper", "training passes",
    "passes per image", "parameters",
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One row: accuracies in percent, one a run, what they gain over what, and what they cost.

    ``seconds`` are those of training, one a run, of the runs that shared their device with the fewest others.
    """

    name: str
    values: tuple[float, ...]
    to_base: Difference | None
    to_equal: Difference | None
    paper: Published | None
    train_passes: int
    predict_passes: int
    parameters: int
    seconds: tuple[float, ...]
    at_once: int
    leads: bool = False

    @property
    def mean(self) -> float:
        """Of the runs."""
        return mean_and_error(self.values)[0]

    @property
    def error(self) -> float | None:
        """The standard error; None for one run."""
        return mean_and_error(self.values)[1]

    @property
    def to_paper(self) -> tuple[float, float | None] | None:
        """Ours − the paper's, with the standard error of that difference."""
        if self.paper is None:
            return None
        error = math.hypot(self.error, self.paper.error) if self.error is not None else None
        return self.mean - self.paper.accuracy, error


def rows_of(group: Group, target: str, *, mirrored: bool | None = None) -> list[Row]:
    """A table's rows; none where base or every other row is missing, or all of it stands in another table.

    Args:
        group: the runs.
        target: the table.
        mirrored: tested with the mirror image or without, other than the table has it.
    """
    if target == "ablation" and not (group.of("alg") or group.of("arch")):
        return []
    if target == "taught" and not group.of("t2-taught"):
        return []
    if target == "unmirrored" and group.some.protocol == "test":
        return []
    protocol = "test" if target in _OWN else None
    if mirrored is not None:
        protocol = "test_flip" if mirrored else "test"
    found = [(kind, part, runs) for kind, part in _ROWS[target] if (runs := group.of(kind))]
    if len(found) < 2 or found[0][0] != "base":
        return []
    plain = found[0][2]
    base, parameters = accuracies(plain, "pruned", protocol), plain[0].result["cost"]["parameters"]
    rows = []
    for kind, part, runs in found:
        name = KINDS[kind].full if part == "full" else KINDS[kind].pruned
        values, cost = accuracies(runs, part, protocol), runs[0].result["cost"]
        at_once = min(run.at_once for run in runs)
        equal = group.of(f"base-x{KINDS[kind].cost}") if KINDS[kind].epochs == 1 else []
        rows.append(
            Row(
                name=name,
                values=values,
                to_base=difference(values, base) if name != "base" else None,
                to_equal=difference(values, accuracies(equal, "pruned", protocol)) if equal else None,
                paper=published(name, group.data) if target not in _OWN else None,
                train_passes=cost["train_passes"],
                predict_passes=runs[0].score(part, protocol)["passes"],
                # Pruned, or with one head under all transforms, a network is as large as the base.
                parameters=cost["parameters"] if part == "full" else parameters,
                seconds=tuple(run.result["train_seconds"] for run in runs if run.at_once == at_once),
                at_once=at_once,
            )
        )
    return _mark_leader(rows)


def table(group: Group, target: str) -> Sheet | None:
    """The table of a target (pruned, full, unmirrored, ablation, taught); None where it has no rows."""
    rows = rows_of(group, target)
    if not rows:
        return None
    sheet = Sheet(target, TITLES[target], COLUMNS, tuple(_cells(row) for row in rows), _notes(group, target, rows))
    return sheet.without_empty()


def accuracies(runs: Sequence[FinishedRun], part: str, protocol: str | None = None) -> tuple[float, ...]:
    """In percent, of ``pruned`` or ``full``, by the runs' protocol where none is given."""
    return tuple(100 * run.score(part, protocol)["accuracy"] for run in runs)


def verdict(gaps: Sequence[tuple[str, Difference | None]]) -> str:
    """Which classifiers, by their names, are ahead or behind by more than the error, and which are not."""
    said: dict[str, list[str]] = {"ahead": [], "behind": [], _UNSURE: []}
    for name, gap in gaps:
        said.setdefault(_judged(gap), []).append(name)
    return "; ".join(f"{what} {', '.join(names)}" for what, names in said.items() if names)


def cautions(rows: Sequence[Row]) -> list[str]:
    """What a reader of the intervals should know: some rest on little, and some could not be had."""
    notes = []
    few = [row.name for row in rows if len(row.values) == 2]
    if few and len(few) == len(rows):
        notes.append("Two seeds: the spread is hardly known, so intervals may be far too narrow or too wide.")
    elif few:
        notes.append(
            f"Only two seeds of {' and of '.join(few)}: their spread is hardly known, so intervals with them may be "
            "far too narrow or too wide."
        )
    if any(gap and gap.all_alike for row in rows for gap in (row.to_base, row.to_equal)):
        notes.append("A difference without an interval: the runs of each side are all alike, so there is no error.")
    return notes


def _judged(gap: Difference | None) -> str:
    if gap is None:
        return "not measured"
    if gap.low is None:
        return "for want of spread nothing can be said of" if gap.all_alike else "too few seeds to judge"
    if not gap.certain:
        return _UNSURE
    return "ahead" if gap.mean > 0 else "behind"


def _mark_leader(rows: list[Row]) -> list[Row]:
    best, second = sorted(rows, key=lambda row: row.mean, reverse=True)[:2]
    leads = difference(best.values, second.values).certain
    return [replace(row, leads=leads and row is best) for row in rows]


def _cells(row: Row) -> tuple[Cell, ...]:
    accuracy = sheets.figure(row.mean, row.error, strong=row.leads)
    each = tuple((f"run {i + 1}", value) for i, value in enumerate(row.values))
    return (
        sheets.name(row.name),
        replace(accuracy, more=(*accuracy.more, *each)),
        sheets.seeds(len(row.values)),
        sheets.gap(row.to_base),
        sheets.gap(row.to_equal),
        sheets.figure(*row.paper) if row.paper else NOTHING,
        sheets.figure(*row.to_paper, signed=True) if row.to_paper else NOTHING,
        sheets.count(row.train_passes),
        sheets.count(row.predict_passes),
        sheets.count(row.parameters),
    )


def _notes(group: Group, target: str, rows: Sequence[Row]) -> tuple[str, ...]:
    notes = []
    if any(row.name == KINDS[kind].pruned for row in rows for kind in EQUAL):
        notes.append("base, m× epochs: the base classifier with as many training passes as m heads take.")
    if target in _OWN and group.some.protocol == "test_flip":
        notes.append("Tested on the image alone, as an exported network sees it.")
    elif group.some.protocol == "test_flip":
        notes.append(
            "Tested on each image and its mirror image, outputs averaged: the paper's protocol, two passes each."
        )
    else:
        notes.append("Tested on the plain image: this data set is not mirrored in training, so it is not in the test.")
    sizes = sorted({len(row.values) for row in rows})
    if sizes == [1]:
        notes.append("One seed: no errors, no intervals, nothing bold.")
    else:
        notes.append(
            f"Mean ± standard error, n = {sheets.either(sizes)} seeds; differences with Welch's 95 % interval."
        )
    if any(row.leads for row in rows):
        notes.append("Bold: ahead of the second best by more than the error.")
    notes += cautions(rows)
    if any(row.paper for row in rows):
        notes.append(f"The paper: mean ± standard error of {N} repetitions.")
    elif target in _OWN:
        notes.append("The paper has no such figures.")
    else:
        notes.append(f"The paper has no figures for {group.data}.")
    if target == "ablation":
        notes += _on_the_parts({row.name: row for row in rows})
    if target == "taught":
        notes += _on_teaching(group)
    return tuple(notes)


def _on_teaching(group: Group) -> list[str]:
    """What teaching gives the head that is kept, and what it takes from all heads together, by either test."""
    weight = KINDS["t2-taught"].distillation
    notes = [f"Taught: --distillation {weight:g}, the identity head also learns what both say together."]
    if not group.of("t2"):
        return notes
    mirrored = [("test_flip", ", with the mirror image")] if group.some.protocol == "test_flip" else []
    for protocol, how in [("test", ""), *mirrored]:
        for part, name in (("pruned", "PT2"), ("full", "T2")):
            taught, plain = (accuracies(group.of(kind), part, protocol) for kind in ("t2-taught", "t2"))
            notes.append(f"{name} taught against {name}{how}: {difference(taught, plain)}.")
    return notes


def _on_the_parts(rows: dict[str, Row]) -> list[str]:
    """What the paper concludes from Table 4, and whether it is so here."""
    alone = verdict([(name, rows[name].to_base) for name in ("Alg. only", "Arch. only") if name in rows])
    notes = [f"The paper: one part alone brings no significant gain. Here, against base: {alone}."]
    if "Alg. only" in rows and "PT2" in rows:
        gap = difference(rows["PT2"].values, rows["Alg. only"].values)
        notes.append(f"What separate heads add to the algorithm, PT2 against Alg. only: {gap}.")
    return notes
