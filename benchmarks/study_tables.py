"""Accuracy by the studies in results/, for README: every classifier with its n, its price and the paper's number.

A study is kept there as `transnet reproduce` made it, without the weights (*.safetensors) and state/ of its runs.
"""

from transnet import recipes
from transnet.study import sheets
from transnet.study.finished import read_folder
from transnet.study.paper import N
from transnet.study.report import facts
from transnet.study.tables import rows_of
from transnet.train.config import TrainConfig

STUDIES = {
    "cifar100-fast": "CIFAR-100, recipe `fast`",
    "cifar100-paper": "CIFAR-100, recipe `paper`",
    "cifar10-fast": "CIFAR-10, recipe `fast`",
}
ORDER = ("base", *(f"base, {m}× epochs" for m in (2, 3, 4)), "PT2", "T2", "PT3", "T3", "PT4", "T4")
COLUMNS = (
    "model", "accuracy %", "to base", "to base of equal passes", "paper %", "training passes", "passes an image",
    "seconds of training",
)  # fmt: skip


def accuracy(results):
    """A table of each study in the folder, and which are not there."""
    parts, missing = [], dict(STUDIES)
    for folder in sorted(path.parent for path in results.glob("*/runs")):
        for group in read_folder(folder):
            if group.name in missing and (text := study(group, folder)):
                parts.append((list(STUDIES).index(group.name), text))
                del missing[group.name]
    texts = [text for _, text in sorted(parts)]
    if missing:
        titles = "; ".join(missing.values())
        texts.append(f"Accuracy not measured yet: {titles}. A figure is shown only when its runs are in `results/`.")
    return "\n\n".join(texts)


def study(group, folder):
    """The table of one data set and recipe; None where base or every other classifier is missing."""
    # Base and base of equal passes stand in both tables.
    found = {row.name: row for target in ("full", "pruned") for row in rows_of(group, target)}
    rows = [found[name] for name in ORDER if name in found]
    if not rows:
        return None
    sheet = sheets.Sheet("accuracy", STUDIES[group.name], COLUMNS, tuple(cells(row) for row in rows), notes(rows))
    about, where = facts(group), f"results/{folder.name}"
    source = (
        f"{about['data']}; {about['backbone']}; {about['recipe']}. Tested on {about['tested on']}. {about['device']}, "
        f"torch {about['torch']}, commit {about['commit']} ([{where}]({where})). Again: `{again(group)}`."
    )
    return sheet.markdown() + "\n" + source


def cells(row):
    n = "one seed" if len(row.values) == 1 else f"n = {len(row.values)}"
    return (
        sheets.name(row.name),
        sheets.Cell(f"{sheets.mean_of(row.values).text} ({n})"),
        sheets.gap(row.to_base),
        sheets.gap(row.to_equal),
        sheets.figure(*row.paper) if row.paper else sheets.NOTHING,
        sheets.count(row.train_passes),
        sheets.count(row.predict_passes),
        sheets.mean_of(row.seconds, digits=1),
    )


def notes(rows):
    """What may be concluded, computed from the intervals."""
    gains = [row for row in rows if not row.name.startswith("base")]
    return (
        f"Against base: {verdict([(row.name, row.to_base) for row in gains])}.",
        f"Against base of equal training passes: {verdict([(row.name, row.to_equal) for row in gains])}.",
        "± is the standard error over seeds; differences are in points with Welch's 95 % interval. "
        f"The paper: mean ± standard error of {N} repetitions.",
    )


def verdict(gaps):
    """Which classifiers are ahead or behind by more than the error, and which are not."""

    def found(gap):
        if gap is None:
            return "not measured"
        if gap.low is None:
            return "for want of seeds nothing can be said of"
        if not gap.certain:
            return "inside the error"
        return "ahead" if gap.mean > 0 else "behind"

    said = {}
    for name, gap in gaps:
        said.setdefault(found(gap), []).append(name)
    return "; ".join(f"{what} {' '.join(names)}" for what, names in said.items())


def again(group):
    base = group.compared("base")[0].settings
    words = [
        "transnet reproduce pruned",
        "--data",
        base["data"],
        "--seeds",
        str(group.seeds or len(group.runs["base"])),
    ]
    if base["recipe"] != TrainConfig.recipe:
        words += ["--recipe", base["recipe"]]
    if base["epochs"] != recipes.settings(base["recipe"], base["data"]).get("epochs", TrainConfig.epochs):
        words += ["--epochs", str(base["epochs"])]
    return " ".join(words)
