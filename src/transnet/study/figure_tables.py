"""The numbers behind Figs. 3 to 6, as tables."""

from itertools import pairwise
from typing import Any

from transnet.study import sheets
from transnet.study.figures import ratios_of
from transnet.study.finished import Group
from transnet.study.sheets import NOTHING, Sheet

_MODELS = {
    "base": "base", "t2": "PT2", "t3": "PT3", "t4": "PT4", "base-x2": "base, 2× epochs", "base-x3": "base, 3× epochs",
    "base-x4": "base, 4× epochs",
}  # fmt: skip


def ensembles_sheet(curves: dict[str, list[dict[str, Any]]]) -> Sheet:
    """Fig. 3's points: accuracy, loss, calibration and disagreement of every kind of ensemble."""
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
        "passes an image",
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
    for kind, title in _MODELS.items():
        runs = group.compared(kind)
        if ratios := ratios_of(runs):
            rows.append(
                (
                    sheets.name(title),
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
    n = min(len(values[model]) for model in models)
    same = all(model in comparison["runs"] for model in models)
    seen = f"in the mean of {n} seeds or more" if n > 1 else "in one seed" if same else "in one run of each"
    means = _means(values)
    against = [f"{b} is not below {a}" for a, b in pairwise(models) if means[b] >= means[a]]
    notes = [
        "The paper: the last layer becomes more invariant with every head. "
        + (f"Not here, {seen}: {', '.join(against)}." if against else f"So it is here, {seen}: {' > '.join(models)}.")
    ]
    runs = comparison["runs"]
    if "T2" in runs and "base" in runs:
        base, ours = runs["base"]["layers"], runs["T2"]["layers"]
        change = {layer: 100 * (ours[layer]["mean"] / base[layer]["mean"] - 1) for layer in base if layer in ours}
        *others, last = change
        if others:
            most = max(others, key=lambda layer: abs(change[layer]))
            more = [layer for layer in others if abs(change[layer]) > abs(change[last])]
            notes.append(
                "The paper: T2 is like base in all layers but the last. Here, in one seed, its mean IS is "
                f"{change[last]:+.0f} % in the last; of the other {len(others)} layers {len(more) or 'none'} "
                f"{'differs' if len(more) == 1 else 'differ'} by more, furthest {most} with {change[most]:+.0f} %."
            )
    return notes


def _means(values: dict[str, list[float]]) -> dict[str, float]:
    return {model: sum(found) / len(found) for model, found in values.items()}


def _ensemble(curve: str, m: int) -> str:
    if curve == "Tm":
        return f"one T{m}" if m > 1 else "one base, as T1"
    return f"{m} {curve}"
