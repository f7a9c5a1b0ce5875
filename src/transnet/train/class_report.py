"""Class counts, recalls and the notes on a collapsed classifier that `transnet train` and `transnet evaluate` print."""

from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from transnet.console import counted, listed, printable
from transnet.train.progress import apart

IMBALANCED = 3  # images of the largest class for each one of the smallest, above which a note is printed
_MOST_ROWS = 10  # of the table of recalls


def print_classes(view: dict[str, Any], classes: Sequence[dict[str, Any]], split: str) -> None:
    """Print the recall of each class (the ten lowest of many), the class counts, the balanced accuracy and all notes.

    Args:
        view: the scores on the images alone, as in ``result.json``.
        classes: an entry for each class, from `classes_of` or `class_scores`; if there are none, nothing is printed.
        split: the name of the split, for the sentences.
    """
    if not classes:
        return
    console = Console()
    console.print(_table(classes))
    for sentence in (_class_counts(classes, split), balanced_accuracy(view, len(classes), split)):
        console.print(sentence, highlight=False, markup=False)
    print_notes([*imbalance_notes(classes), *zero_recall_notes(view, classes, split)])


def classes_of(view: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the entries for each class in a view of ``result.json``; results of earlier versions have none."""
    return (view["pruned"] or view["full"]).get("classes", [])  # type: ignore[no-any-return]


def print_notes(notes: Iterable[str], *, stderr: bool = False) -> None:
    """Print notes in bold, each on one line."""
    console = Console(stderr=stderr)
    for note in notes:
        console.print(Text(note, style="bold yellow"), soft_wrap=True)


def imbalance_notes(classes: Sequence[dict[str, Any]]) -> list[str]:
    """Return a note if a class has more than three times the training images of another.

    Args:
        classes: an entry for each class; without ``n_train``, the training set is unknown and there is no note.
    """
    known = [entry for entry in classes if "n_train" in entry]
    if not known:
        return []
    few, many = (choose(known, key=lambda entry: entry["n_train"]) for choose in (min, max))
    if many["n_train"] <= IMBALANCED * few["n_train"]:
        return []
    return [
        f"note: the training set is imbalanced: {_of(few)} and {_of(many)}; "
        "judge the network by its balanced accuracy and the recall of each class"
    ]


def zero_recall_notes(view: dict[str, Any], classes: Sequence[dict[str, Any]], split: str) -> list[str]:
    """Return a note for each classifier that recognises no image of some class.

    Args:
        view: the scores on the images alone.
        classes: an entry for each class, with the recall of the pruned classifier, or of the full model if there is
            no pruned one.
        split: the name of the split.
    """
    found = []
    for i, kind in enumerate(apart(view)):
        if n := view[kind].get("zero_recall_classes"):
            names = [printable(entry["class"]) for entry in classes if entry["recall"] == 0] if i == 0 else []
            found.append(
                f"note: {_classifier(kind, view)} has a recall of 0 for {n:,} of {_present(view[kind])} of the {split} "
                f"split{f' ({listed(names, 10)})' if names else ''}; the accuracy alone does not show this"
            )
    return found


def balanced_accuracy(view: dict[str, Any], n: int, split: str) -> str:
    """Return a sentence with the balanced accuracy, and the classes that it averages over out of all ``n``."""
    kind = apart(view)[0]
    entry, present = view[kind], view[kind]["present_classes"]
    whose = f"{n:,} classes"
    if present < n:
        whose = f"the {present:,} of {whose} that have images in the {split} split"
    balanced = f"{100 * entry['balanced_accuracy']:.2f} %"
    return f"balanced accuracy of {_classifier(kind, view)}: {balanced}, the mean recall of {whose}"


def _table(classes: Sequence[dict[str, Any]]) -> Table:
    present = sorted((entry for entry in classes if entry["n"]), key=lambda entry: float(entry["recall"]))
    shown = present[:_MOST_ROWS]
    which = f"{len(shown)} lowest of {len(present):,}" if len(shown) < len(present) else "lowest first"
    table = Table(title=f"recall per class, {which}", title_justify="left")
    trained, confused = "n_train" in classes[0], "taken_for" in classes[0]
    table.add_column("class")
    for column in [*(["training images"] if trained else []), "images", "recall %"]:
        table.add_column(column, justify="right")
    if confused:
        table.add_column("most often taken for")
        table.add_column("times", justify="right")
    for entry in shown:
        cells = [f"{entry['n_train']:,}"] if trained else []
        cells += [f"{entry['n']:,}", f"{100 * entry['recall']:.1f}"]
        if confused:
            cells += [printable(entry["taken_for"] or ""), f"{entry['mistakes']:,}" if entry["mistakes"] else ""]
        table.add_row(*(Text(cell) for cell in (printable(entry["class"]), *cells)))
    return table


def _class_counts(classes: Sequence[dict[str, Any]], split: str) -> str:
    trained = [_span([entry["n_train"] for entry in classes], "training")] if "n_train" in classes[0] else []
    parts = " and ".join([*trained, _span([entry["n"] for entry in classes], split)])
    return f"class counts: {len(classes):,} classes with {parts} images each"


def _span(counts: Iterable[int], name: str) -> str:
    low, high = min(counts := list(counts)), max(counts)
    return f"{low:,} {name}" if low == high else f"{low:,} to {high:,} {name}"


def _present(entry: dict[str, Any]) -> str:
    n = entry["present_classes"]
    return f"{n:,} class{'' if n == 1 else 'es'}"


def _classifier(kind: str, view: dict[str, Any]) -> str:
    if len(view["heads"]) == 1:
        return "the network"
    if not view["heads"] and view["pruned"] == view["full"]:  # of networks with one head each
        return "the ensemble"
    name = {"pruned": "pruned classifier", "full": "full model"}[kind]
    return f"the {name}" if view["heads"] else f"the ensemble of {name}s"


def _of(entry: dict[str, Any]) -> str:
    return f"{counted(entry['n_train'], 'image')} of {printable(entry['class'])}"
