"""Class counts, recalls and notes on a collapsed classifier, as `transnet train` and `transnet evaluate` print them."""

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from transnet.cli.scores import classifiers
from transnet.console import listed, printable
from transnet.runs.records import ClassRecall, Scores
from transnet.train.evaluate import ClassScore
from transnet.train.user_warnings import imbalance_notes

_MOST_ROWS = 10


def print_classes(scores: Scores, classes: Sequence[ClassRecall], split: str) -> None:
    """Print the recall of each class (the ten lowest of many), the class counts, the balanced accuracy and all notes.

    Args:
        scores: on the images alone.
        classes: every class; if there are none, nothing is printed.
        split: the name of the split, for the sentences.
    """
    if not classes:
        return
    console = Console()
    console.print(_table(classes))
    for sentence in (_class_counts(classes, split), balanced_accuracy(scores, len(classes), split)):
        console.print(sentence, highlight=False, markup=False)
    print_notes(notes(scores, classes, split))


def classes_of(scores: Scores) -> tuple[ClassRecall, ...]:
    """The recall of each class in a result."""
    return (scores.pruned or scores.full).classes


def print_notes(found: Iterable[str], *, stderr: bool = False) -> None:
    """Print notes in bold, each on one line."""
    console = Console(stderr=stderr)
    for note in found:
        console.print(Text(note, style="bold yellow"), soft_wrap=True)


def notes(scores: Scores, classes: Sequence[ClassRecall], split: str) -> list[str]:
    """Notes on imbalanced training data, if its class counts are known, and on classes with a recall of 0."""
    known = {entry.name: entry.n_train for entry in classes if entry.n_train is not None}
    imbalance = imbalance_notes(list(known), list(known.values())) if known else []
    return [*imbalance, *zero_recall_notes(scores, classes, split)]


def zero_recall_notes(scores: Scores, classes: Sequence[ClassRecall], split: str) -> list[str]:
    """A note for each classifier that recognises no image of some class.

    Args:
        scores: on the images alone.
        classes: every class, with the recall of the pruned classifier (without r0, of the full model).
        split: the name of the split.
    """
    found = []
    for i, (kind, score) in enumerate(classifiers(scores).items()):
        if score.zero_recall_classes:
            names = [printable(entry.name) for entry in classes if entry.recall == 0] if i == 0 else []
            present = score.present_classes or 0
            found.append(
                f"note: {_title(kind, scores)} has a recall of 0 for {score.zero_recall_classes:,} of {present:,} "
                f"class{'' if present == 1 else 'es'} of the {split} split"
                f"{f' ({listed(names, 10)})' if names else ''}; the accuracy alone does not show this"
            )
    return found


def balanced_accuracy(scores: Scores, n: int, split: str) -> str:
    """A sentence with the balanced accuracy, and the classes out of all ``n`` that it averages over."""
    kind, score = next(iter(classifiers(scores).items()))
    classes = f"{n:,} classes"
    if score.present_classes is not None and score.present_classes < n:
        classes = f"the {score.present_classes:,} of {classes} that have images in the {split} split"
    balanced = f"{100 * (score.balanced_accuracy or 0):.2f} %"
    return f"balanced accuracy of {_title(kind, scores)}: {balanced}, the mean recall of {classes}"


def _table(classes: Sequence[ClassRecall]) -> Table:
    present = sorted((entry for entry in classes if entry.n), key=lambda entry: entry.recall or 0.0)
    shown = present[:_MOST_ROWS]
    which = f"{len(shown)} lowest of {len(present):,}" if len(shown) < len(present) else "lowest first"
    table = Table(title=f"recall per class, {which}", title_justify="left")
    trained = classes[0].n_train is not None
    table.add_column("class")
    for column in [*(["training images"] if trained else []), "images", "recall %"]:
        table.add_column(column, justify="right")
    if isinstance(classes[0], ClassScore):
        table.add_column("most often taken for")
        table.add_column("times", justify="right")
    for entry in shown:
        cells = [f"{entry.n_train:,}"] if trained else []
        cells += [f"{entry.n:,}", f"{100 * (entry.recall or 0):.1f}"]
        if isinstance(entry, ClassScore):
            cells += [printable(entry.taken_for or ""), f"{entry.mistakes:,}" if entry.mistakes else ""]
        table.add_row(*(Text(cell) for cell in (printable(entry.name), *cells)))
    return table


def _class_counts(classes: Sequence[ClassRecall], split: str) -> str:
    n_train = [entry.n_train for entry in classes if entry.n_train is not None]
    counts = [*([_range(n_train, "training")] if n_train else []), _range([entry.n for entry in classes], split)]
    return f"class counts: {len(classes):,} classes with {' and '.join(counts)} images each"


def _range(counts: Sequence[int], name: str) -> str:
    low, high = min(counts), max(counts)
    return f"{low:,} {name}" if low == high else f"{low:,} to {high:,} {name}"


def _title(kind: str, scores: Scores) -> str:
    if len(scores.heads) == 1:
        return "the network"
    if not scores.heads and scores.pruned == scores.full:  # networks with one head each
        return "the ensemble"
    name = {"pruned": "pruned classifier", "full": "full model"}[kind]
    return f"the {name}" if scores.heads else f"the ensemble of {name}s"
