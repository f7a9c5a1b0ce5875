"""Tables of a network's scores, as `transnet train` and `transnet evaluate` print them."""

from rich.console import Console
from rich.table import Table

from transnet.runs.records import HeadScore, Score, Scores
from transnet.train.evaluate_runs import EarlyExit
from transnet.train.progress import loss_text


def print_scores(plain: Scores, flip: Scores | None, *, explained: bool = False) -> None:
    """Print tables of the pruned classifier, the full model and every head, and how far the members disagree.

    Args:
        plain: scores on the images alone.
        flip: scores with flip TTA, if there are any.
        explained: whether the meaning of disagreement was explained before, for another run.
    """
    console = Console()
    views = {"without flip TTA": plain} | ({"with flip TTA": flip} if flip else {})
    for title, scores in views.items():
        console.print(_table(scores, title if flip else None))
    for title, scores in views.items():
        for name, score in classifiers(scores).items():
            if score.uncertainty and score.uncertainty.disagreement is not None:
                members = f"{_members(name, scores)} {title}" if flip else _members(name, scores)
                console.print(_disagreement(f"The {members}", score, explained), highlight=False)
                explained = True


def print_early_exit(found: EarlyExit) -> None:
    """Print a table of accuracy and cost of early exit, and which split chose the thresholds."""
    table = Table(title="early exit, without flip TTA", title_justify="left")
    for column in ("passes", "accuracy %", "confidence"):
        table.add_column(column, justify="right")
    points = found.points.columns()
    for passes, accuracy, confidence in zip(points["passes"], points["accuracy"], points["confidence"], strict=True):
        table.add_row(f"{passes:.2f}", f"{100 * accuracy:.2f}", f"{confidence:.4f}")
    console = Console()
    console.print(table)
    if found.chosen_on != found.judged_by:
        choice = "The confidence was chosen on the validation split, for round numbers of passes there."
    else:
        choice = (
            "The confidence was chosen on the same images that it is measured on, which is optimistic; a run with "
            "--val-fraction can choose it on other images than those of its test split."
        )
    console.print(f"{choice} Pass it to transnet predict --confidence.", highlight=False)


def classifiers(scores: Scores) -> dict[str, Score]:
    """The pruned classifier and the full model, or only ``full`` if they are the same (one head, or one per run)."""
    same = len(scores.heads) == 1 or scores.pruned in (None, scores.full)
    return {"full": scores.full} if same or not scores.pruned else {"pruned": scores.pruned, "full": scores.full}


def _table(scores: Scores, title: str | None) -> Table:
    rows = _rows(scores)
    table = Table(title=title, title_justify="left")
    table.add_column("")
    columns = {"passes": [str(score.passes) for score in rows.values()],
               "accuracy\n%": [f"{100 * score.accuracy:.2f}" for score in rows.values()]}  # fmt: skip
    # Results that were published before it existed have no balanced accuracy.
    if balanced := [score.balanced_accuracy for score in rows.values() if score.balanced_accuracy is not None]:
        columns["balanced\naccuracy %"] = [f"{100 * value:.2f}" for value in balanced]
    columns["loss"] = [loss_text(score.loss) for score in rows.values()]
    # Only `transnet evaluate` measures the calibration.
    if measured := [score.uncertainty for score in rows.values() if score.uncertainty]:
        columns["calibration\nerror %"] = [f"{100 * found.calibration_error:.2f}" for found in measured]
    for column in columns:
        table.add_column(column, justify="right")
    for name, *cells in zip(rows, *columns.values(), strict=True):
        table.add_row(name, *cells)
    return table


def _rows(scores: Scores) -> dict[str, Score]:
    """Each classifier once: the pruned classifier is also a head, and with a single head all are the same."""
    heads: dict[str, HeadScore] = {f"head {i}: {head.name}": head for i, head in enumerate(scores.heads)}
    if len(heads) == 1:
        return {f"the one head: {scores.heads[0].name}": scores.full}
    rows = classifiers(scores)
    if len(rows) == 1 and scores.pruned:
        rows = {"pruned and full": scores.full}
    first = next((title for title, head in heads.items() if head.name == "r0"), None)
    if first and scores.pruned:
        del heads[first]
        rows = {f"pruned ({first})": scores.pruned, "full": scores.full}
    return {**rows, **heads}


def _members(name: str, scores: Scores) -> str:
    """The members whose mean a row is: the heads of a run, or the runs of an ensemble."""
    if scores.heads:
        return "heads"
    if len(classifiers(scores)) == 1 and scores.pruned:
        return "runs"
    return "runs' pruned classifiers" if name == "pruned" else "runs' full models"


def _disagreement(members: str, score: Score, explained: bool) -> str:
    found = score.uncertainty
    assert found is not None
    assert found.split_votes is not None
    votes, nats = f"{100 * found.split_votes:.1f} % of the images", f"{found.disagreement:.4f} nats"
    auroc = None if found.error_auroc is None else f"{found.error_auroc:.3f}"
    if explained:
        return f"{members} disagree on {votes}, by {nats}" + (f", with an AUROC of {auroc}." if auroc else ".")
    separates = (
        f" The disagreement separates errors from correct predictions with an AUROC of {auroc}, where 0.5 is chance "
        "and 1 is perfect."
    )
    return (
        f"{members} do not all choose the same class on {votes}; their probabilities differ by {nats} on average, and "
        f"0 means that they agree.{separates if auroc else ''}"
    )
