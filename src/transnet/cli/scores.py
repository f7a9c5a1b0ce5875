"""Tables and notes about a network's scores, as `transnet train` and `transnet evaluate` print them."""

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from transnet.console import listed, print_table, printable
from transnet.runs.records import ClassRecall, Score, Scores
from transnet.train.evaluate import ClassScore
from transnet.train.evaluate_runs import EarlyExit
from transnet.train.progress import loss_text
from transnet.train.user_warnings import imbalance_notes

_MOST_CLASSES = 10


def print_scores(plain: Scores, flip: Scores | None) -> None:
    """Print tables of the pruned classifier, the full model and every head, and how far the members disagree."""
    views = {"without flip TTA": plain} | ({"with flip TTA": flip} if flip else {})
    for title, scores in views.items():
        rows = _rows(scores)
        columns = {"passes": [str(score.passes) for score in rows.values()],
                   "accuracy\n%": [_percent(score.accuracy) for score in rows.values()]}  # fmt: skip
        # Results that were published before it existed have no balanced accuracy.
        if balanced := [score.balanced_accuracy for score in rows.values() if score.balanced_accuracy is not None]:
            columns["balanced\naccuracy %"] = list(map(_percent, balanced))
        columns["loss"] = [loss_text(score.loss) for score in rows.values()]
        # Only `transnet evaluate` measures the calibration.
        if measured := [score.uncertainty for score in rows.values() if score.uncertainty]:
            columns["calibration\nerror %"] = [_percent(found.calibration_error) for found in measured]
        print_table(["", *columns], zip(rows, *columns.values(), strict=True), title if flip else None)
    for title, scores in views.items():
        for _, members, score in classifiers(scores):
            if (found := score.uncertainty) and found.disagreement is not None and found.split_votes is not None:
                sentence = (
                    f"The {members}{f' {title}' if flip else ''} do not all choose the same class on "
                    f"{100 * found.split_votes:.1f} % of the images, and their probabilities differ by "
                    f"{found.disagreement:.4f} nats (0: they agree)"
                )
                if found.error_auroc is not None:
                    sentence += "; this separates errors from correct predictions with an AUROC of "
                    sentence += f"{found.error_auroc:.3f} (0.5: chance, 1: perfect)"
                _print(f"{sentence}.")


def _rows(scores: Scores) -> dict[str, Score]:
    """Each classifier once: the pruned classifier is also a head, and with a single head all are the same."""
    heads: dict[str, Score] = {f"head {i}: {head.name}": head for i, head in enumerate(scores.heads)}
    if len(heads) == 1:
        return {f"the one head: {scores.heads[0].name}": scores.full}
    if scores.pruned is None:
        return {"full": scores.full, **heads}
    if not heads:
        equal = scores.pruned == scores.full
        return {"pruned and full": scores.full} if equal else {"pruned": scores.pruned, "full": scores.full}
    first = next(title for title in heads if title.endswith(": r0"))
    del heads[first]
    return {f"pruned ({first})": scores.pruned, "full": scores.full, **heads}


def classifiers(scores: Scores) -> list[tuple[str, str, Score]]:
    """Title, members and score of the pruned classifier and of the full model, or of both if they are the same."""
    if len(scores.heads) == 1:
        return [("the network", "head", scores.full)]
    if not scores.heads and scores.pruned == scores.full:  # networks with one head each
        return [("the ensemble", "runs", scores.full)]
    found = []
    for name, score in (("pruned classifier", scores.pruned), ("full model", scores.full)):
        if score and scores.heads:
            found.append((f"the {name}", "heads", score))
        elif score:
            found.append((f"the ensemble of {name}s", f"runs' {name}s", score))
    return found


def print_early_exit(found: EarlyExit) -> None:
    """Print a table of accuracy and cost of early exit, and which split chose the thresholds."""
    rows = [
        (f"{passes:.2f}", _percent(accuracy), f"{confidence:.4f}")
        for confidence, passes, accuracy in zip(*found.points.columns().values())
    ]
    print_table(["passes", "accuracy %", "confidence"], rows, "early exit, without flip TTA")
    choice = "The confidence was chosen on the validation split, for round numbers of passes there."
    if found.chosen_on == found.judged_by:
        choice = (
            "The confidence was chosen on the same images that it is measured on, which is optimistic; a run with "
            "--val-fraction can choose it on other images than those of its test split."
        )
    _print(f"{choice} Pass it to transnet predict --confidence.")


def print_classes(scores: Scores, classes: Sequence[ClassRecall], split: str) -> None:
    """Print the recall of each class (the ten lowest of many), the class counts, the balanced accuracy and all notes.

    ``split`` is the split's name. Without classes, nothing is printed.
    """
    if not classes:
        return
    present = sorted((entry for entry in classes if entry.n), key=lambda entry: entry.recall or 0.0)
    shown = present[:_MOST_CLASSES]
    columns = {"class": [entry.name for entry in shown]}
    counts = []
    if classes[0].n_train is not None:
        columns["training images"] = [f"{entry.n_train:,}" for entry in shown]
        counts = [_range([entry.n_train or 0 for entry in classes], "training")]
    columns["images"] = [f"{entry.n:,}" for entry in shown]
    columns["recall %"] = [f"{100 * (entry.recall or 0):.1f}" for entry in shown]
    if found := [entry for entry in shown if isinstance(entry, ClassScore)]:
        columns["most often taken for"] = [entry.taken_for or "" for entry in found]
        columns["times"] = [f"{entry.mistakes:,}" if entry.mistakes else "" for entry in found]
    which = f"{len(shown)} lowest of {len(present):,}" if len(shown) < len(present) else "lowest first"
    rows = zip(*columns.values(), strict=True)
    print_table(list(columns), rows, f"recall per class, {which}", left=["most often taken for"])
    counts.append(_range([entry.n for entry in classes], split))
    _print(f"class counts: {len(classes):,} classes with {' and '.join(counts)} images each")
    print_balance(scores, classes, split, notes(scores, classes, split))


def print_balance(scores: Scores, classes: Sequence[ClassRecall], split: str, found: Sequence[str]) -> None:
    """Print the balanced accuracy, with the classes out of all that it averages over, and notes."""
    title, _, score = classifiers(scores)[0]
    averaged = f"{len(classes):,} classes"
    if score.present_classes is not None and score.present_classes < len(classes):
        averaged = f"the {score.present_classes:,} of {averaged} that have images in the {split} split"
    _print(f"balanced accuracy of {title}: {_percent(score.balanced_accuracy or 0)} %, the mean recall of {averaged}")
    for note in found:
        Console().print(Text(note, "bold yellow"), soft_wrap=True)


def notes(scores: Scores, classes: Sequence[ClassRecall], split: str) -> list[str]:
    """Notes on imbalanced training data, if its class counts are known, and on classes with a recall of 0."""
    known = {entry.name: entry.n_train for entry in classes if entry.n_train is not None}
    imbalance = imbalance_notes(list(known), list(known.values())) if known else []
    return [*imbalance, *zero_recall_notes(scores, classes, split)]


def zero_recall_notes(scores: Scores, classes: Sequence[ClassRecall], split: str) -> list[str]:
    """A note for each classifier that recognises no image of some class.

    ``classes`` has the recall of the pruned classifier (without r0, of the full model), so the classes of the first
    note only can be named.
    """
    found = []
    names = f" ({listed([printable(entry.name) for entry in classes if entry.recall == 0], 10)})"
    for title, _, score in classifiers(scores):
        if score.zero_recall_classes:
            found.append(
                f"note: {title} has a recall of 0 for {score.zero_recall_classes:,} of {score.present_classes:,} "
                f"classes of the {split} split{names}; the accuracy alone does not show this"
            )
        names = ""
    return found


def _range(counts: Sequence[int], name: str) -> str:
    low, high = min(counts), max(counts)
    return f"{low:,} {name}" if low == high else f"{low:,} to {high:,} {name}"


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.2f}"


def _print(sentence: str) -> None:
    Console().print(Text(sentence))
