"""The numbers behind Figs. 3 to 6, as tables."""

from itertools import pairwise
from typing import Any

from transnet.report import table_format as sheets
from transnet.report.figures import ratios_of
from transnet.report.table_format import NOTHING, Sheet
from transnet.study.old_results import Group
from transnet.study.plan import BY_HEADS, EQUAL, KINDS
from transnet.study.statistics import Difference, difference

_CERTAIN, _ORDER = "both fall beyond the error", "both fall"


def ensembles_sheet(curves: dict[str, list[dict[str, Any]]]) -> Sheet:
    """Fig. 3's points: accuracy, loss, calibration and disagreement of every kind of ensemble.

    Args:
        curves: as `transnet.study.ensembles.curves_of` gives them.
    """
    rows = []
    for curve, points in curves.items():
        for point in points:
            entries = point["ensembles"]

            def column(name: str, factor: float = 1, found: list[dict[str, Any]] = entries) -> list[float]:
                return [factor * entry[name] for entry in found if entry.get(name) is not None]

            rows.append(
                (
                    sheets.name(_ensemble(curve, point["instances"])),
                    sheets.count(point["instances"]),
                    sheets.mean_of(column("accuracy", 100)),
                    sheets.count(len(entries)),
                    sheets.mean_of(column("loss"), digits=4),
                    sheets.mean_of(column("calibration_error", 100)),
                    sheets.mean_of(column("disagreement"), digits=4) if column("disagreement") else NOTHING,
                    sheets.mean_of(column("error_auroc"), digits=3) if column("error_auroc") else NOTHING,
                    sheets.count(point["passes"]),
                )
            )  # fmt: skip
    columns = (
        "ensemble", "instances", "accuracy %", "n", "loss", "calibration error %", "disagreement", "finds errors",
        "passes per image",
    )  # fmt: skip
    every = [entry for points in curves.values() for point in points for entry in point["ensembles"]]
    notes = [
        "n counts ensembles that share no network; ± is the standard error over them. A single one has none.",
        "Loss: cross-entropy of the mean of the members' outputs. Calibration error: 15 bins of the top probability.",
        "Disagreement: mean divergence of the members' probabilities from their mean, in nats. Finds errors: area "
        "under the ROC curve when disagreement picks out the wrong answers, 0.5 for chance.",
    ]
    if partly := sum("calibration_error" not in entry for entry in every):
        notes.append(
            f"Of {partly} of these {len(every)} the weights were gone: they count in n, accuracy and loss alone."
        )
    return Sheet("ensembles", "The points of Fig. 3", columns, tuple(rows), tuple(notes))


def generalization_sheet(group: Group) -> Sheet:
    """Fig. 4's right panel: the losses behind the ratio."""
    rows = []
    for kind in BY_HEADS + EQUAL:
        runs = group.of(kind)
        if ratios := ratios_of(runs):
            rows.append(
                (
                    sheets.name(KINDS[kind].pruned),
                    sheets.mean_of(ratios, digits=3),
                    sheets.seeds(len(ratios)),
                    sheets.mean_of([run.result["test"]["pruned"]["loss"] for run in runs], digits=4),
                    sheets.mean_of([run.result["train"]["loss"] for run in runs], digits=4),
                )
            )
    columns = ("model", "test loss / train loss", "n", "test loss", "train loss")
    notes = (
        "Cross-entropy of the identity head on untouched images, no mirroring; lower is better. A ratio says how far "
        "the two losses are apart, not how good the classifier is.",
    )
    return Sheet("generalization", "The scores of Fig. 4", columns, tuple(rows), notes)


def invariance_sheet(comparison: dict[str, Any]) -> Sheet:
    """The last layer of Fig. 5 by all four measures, over the seeds."""
    measures = comparison["last_layer"]
    rows = [
        (
            sheets.name(model),
            *(sheets.mean_of(values[model], digits=4) for values in measures.values()),
            sheets.seeds(len(measures["l2"][model])),
        )
        for model in measures["l2"]
    ]
    random = comparison["random"]
    rows.append(
        (
            sheets.name("random kernels"),
            *(sheets.mean_of(random[how], digits=4) for how in measures),
            sheets.seeds(len(random["l2"])),
        )
    )
    columns = ("model", "IS", "IS / norm", "cosine", "pearson", "n")
    notes = (
        f"Mean of the last layer's kernels under {comparison['group'].replace(',', ' ')}, mean ± standard error over "
        "seeds. IS and IS / norm: higher is less invariant. Cosine and Pearson, with the group mean: higher is more.",
        "Random kernels: of independent normal entries and the same shape, for IS of the mean norm that "
        f"{random['of']}'s have. The figures show seed {comparison['seed']}.",
        *_held_against_the_paper(comparison),
    )
    return Sheet("invariance", "The last layer of Figs. 5 and 6", columns, tuple(rows), notes)


def _held_against_the_paper(comparison: dict[str, Any]) -> list[str]:
    """What section 5.3 claims of IS, and what these runs say to it."""
    values = comparison["last_layer"]["l2"]
    models = [model for model in ("base", "T2", "T3", "T4") if model in values]
    if models[:1] != ["base"] or len(models) < 2:
        return []
    notes = ["The paper: the last layer becomes more invariant with every head. " + _growing(comparison, models)]
    if {"base", "T2"} <= comparison["runs"].keys():
        notes += _alone(comparison["runs"]["base"]["layers"], comparison["runs"]["T2"]["layers"])
    return notes


def _growing(comparison: dict[str, Any], models: list[str]) -> str:
    """Whether every head makes the last layer more invariant; with one run nothing but the order is told.

    IS alone falls with the norm of the kernels too, so IS / norm must fall with it, both by more than the error.
    """
    measures = comparison["last_layer"]
    single = [model for model in models if len(measures["l2"][model]) == 1]
    seen = "in the mean over seeds"
    if single == models:
        seen = "in one seed" if all(model in comparison["runs"] for model in models) else "in one run of each"
    elif single:
        seen = f"with one run of {' and of '.join(single)}"
    said: dict[str, list[str]] = {}
    for before, model in pairwise(models):
        by_size, for_its_size = (difference(measures[how][model], measures[how][before]) for how in ("l2", "relative"))
        said.setdefault(_step(by_size, for_its_size), []).append(f"{model} against {before}")
    order = f"IS and IS / norm fall, {' > '.join(models)}"
    if list(said) == [_CERTAIN]:
        return f"So it is here, beyond the error over seeds: {order}."
    if list(said) == [_ORDER]:
        return f"The order is the same here, {seen}, without an error to hold it against: {order}."
    if said.keys() == {_CERTAIN, _ORDER}:
        return (
            f"The order is the same here: {order}. Beyond the error over seeds: {', '.join(said[_CERTAIN])}; without "
            f"an error to hold it against: {', '.join(said[_ORDER])}."
        )
    found = "; ".join(f"{what} ({', '.join(steps)})" for what, steps in said.items())
    return f"{'Only in part' if {_CERTAIN, _ORDER} & said.keys() else 'Not'} here, {seen}: {found}."


def _step(by_size: Difference, for_its_size: Difference) -> str:
    """What one head more did to IS and to IS / norm."""
    if by_size.mean >= 0:
        return "IS / norm falls, but IS does not" if for_its_size.mean < 0 else "neither IS nor IS / norm falls"
    if for_its_size.mean >= 0:
        return "IS falls, but IS / norm does not, so kernels are smaller, not more invariant"
    if min(by_size.n) == 1:
        return _ORDER
    return _CERTAIN if by_size.certain and for_its_size.certain else "both fall, but not beyond the error"


def _alone(base: dict[str, Any], ours: dict[str, Any]) -> list[str]:
    """Whether T2 differs from base in the last layer alone; nothing where there is no other."""
    change = {layer: 100 * (ours[layer]["mean"] / base[layer]["mean"] - 1) for layer in base if layer in ours}
    *others, last = change
    if not others:
        return []
    most = max(others, key=lambda layer: abs(change[layer]))
    more = sum(abs(change[layer]) > abs(change[last]) for layer in others)
    return [
        "The paper: T2 is like base in all layers but the last. Here, in one seed, its mean IS is "
        f"{_percent(change[last])} in the last layer. Of the other layers {more or 'none'} of {len(others)} "
        f"{'differs' if more < 2 else 'differ'} by more; {most} differs most and is {_percent(change[most])}."
    ]


def _percent(change: float) -> str:
    shown = f"{abs(change):.1f}"
    return "as good as the same" if shown == "0.0" else f"{shown} % {'lower' if change < 0 else 'higher'}"


def _ensemble(curve: str, m: int) -> str:
    if curve == "Tm":
        return f"one T{m}" if m > 1 else "one base, as T1"
    return f"{m} {curve}"
