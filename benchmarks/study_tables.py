"""Accuracy by the studies in results/, for README: every classifier with its n, its price and the paper's number.

A study is kept there as `transnet reproduce` made it, without the weights (*.safetensors) and state/ of its runs.
"""

from collections import Counter

from transnet import recipes
from transnet.study import sheets
from transnet.study.finished import read_folder
from transnet.study.paper import N
from transnet.study.report import facts
from transnet.study.tables import cautions, rows_of, verdict
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
    found = [(group, text) for group, folder, title in groups(results) if (text := study(group, folder, title))]
    texts = [text for _, text in found]
    measured = {group.name for group, _ in found}
    if missing := [title for name, title in STUDIES.items() if name not in measured]:
        titles = "; ".join(missing)
        texts.append(f"Accuracy not measured yet: {titles}. A figure is shown only when its runs are in `results/`.")
    return "\n\n".join(texts)


def headline(results):
    """What two heads gain, against base and against base of equal passes, where that was measured."""
    for group, _, title in groups(results):
        found = by_name(group)
        pruned, full = found.get("PT2"), found.get("T2")
        if pruned and full and pruned.to_base and pruned.to_equal and full.to_equal:
            return (
                f"On {title.partition(',')[0]} ({group.some.settings['model']}, n = {len(pruned.values)} seeds) a "
                "network trained with two heads and pruned back is "
                f"{sheets.gap(pruned.to_base).text} points better than the same network trained plainly, at equal "
                f"cost of prediction. Training cost twice as much; against one trained plainly for as long it is "
                f"{sheets.gap(pruned.to_equal).text}. Both heads kept, at twice the cost of prediction, gain "
                f"{sheets.gap(full.to_base).text} and {sheets.gap(full.to_equal).text}. In brackets: 95 % intervals. "
                "All of it is under [Results](#results)."
            )
    return "What it gains is not measured yet."


def by_name(group):
    """The rows of Tables 2 and 3; base and base of equal passes stand in both."""
    return {row.name: row for target in ("full", "pruned") for row in rows_of(group, target)}


def groups(results):
    """Every group of every study: (group, its folder, title), those of `STUDIES` first, in their order.

    Another one is called by its own name; of two folders with the same group, the title names the folder.
    """
    found = [(group, path.parent) for path in sorted(results.glob("*/runs")) for group in read_folder(path.parent)]
    order = list(STUDIES)
    found.sort(key=lambda one: (order.index(one[0].name) if one[0].name in STUDIES else len(order), one[0].name))
    often = Counter(group.name for group, _ in found)
    return [
        (group, folder, STUDIES.get(group.name, group.name) + (f", {folder.name}" if often[group.name] > 1 else ""))
        for group, folder in found
    ]


def study(group, folder, title):
    """The table of one data set and recipe; None where base or every other classifier is missing."""
    found = by_name(group)
    rows = [found[name] for name in ORDER if name in found]
    if not rows:
        return None
    sheet = sheets.Sheet("accuracy", title, COLUMNS, tuple(cells(row) for row in rows), notes(rows))
    return sheet.markdown() + "\n" + source(group, folder)


def source(group, folder, target="pruned"):
    """What was trained on what and how, where it lies, and what does it again."""
    about, where = facts(group), f"results/{folder.name}"
    made = made_with(about["device"], about["torch"], about.get("commit"))
    return (
        f"{about['data']}; {about['backbone']}; {about['recipe']}. Tested on {about['tested on']}. {made} "
        f"([{where}]({where})). Again: `{again(group, target)}`."
    )


def made_with(device, torch, commit):
    return f"{device}, torch {torch}" + (f", commit {commit}" if commit else "")


def cells(row):
    others = f" ({row.at_once} at once)" if row.at_once > 1 else ""
    n = "one seed" if len(row.values) == 1 else f"n = {len(row.values)}"
    return (
        sheets.name(row.name),
        sheets.Cell(f"{sheets.mean_of(row.values).text} ({n})"),
        sheets.gap(row.to_base),
        sheets.gap(row.to_equal),
        sheets.figure(*row.paper) if row.paper else sheets.NOTHING,
        sheets.count(row.train_passes),
        sheets.count(row.predict_passes),
        sheets.Cell(sheets.mean_of(row.seconds, digits=1).text + others),
    )


def notes(rows):
    """What may be concluded, computed from the intervals."""
    gains = [row for row in rows if not row.name.startswith("base")]
    return (
        f"Against base: {verdict([(row.name, row.to_base) for row in gains])}.",
        f"Against base of equal training passes: {verdict([(row.name, row.to_equal) for row in gains])}.",
        "Passes an image count its mirror image too, as the paper tests: without it they are half.",
        "± is the standard error over seeds; differences are in points with Welch's 95 % interval. "
        f"The paper: mean ± standard error of {N} repetitions.",
        *cautions(rows),
    )


def again(group, target):
    """The command of the study, with what differs from its defaults."""
    run = next(iter(group.compared("base")), group.some)
    base, data = run.settings, run.result["config"]["data"]
    seeds = group.seeds or max(len(runs) for runs in group.runs.values())
    words = ["transnet reproduce", target, "--data", base["data"], "--seeds", str(seeds)]
    if base["recipe"] != TrainConfig.recipe:
        words += ["--recipe", base["recipe"]]
    if base["epochs"] != recipes.settings(base["recipe"], base["data"]).get("epochs", TrainConfig.epochs):
        words += ["--epochs", str(base["epochs"])]
    if base["model"] != recipes.default_model(data["name"], image_size=data["image_size"], channels=data["channels"]):
        words += ["--model", base["model"]]
    if base["train_fraction"] != TrainConfig.train_fraction:
        words += ["--train-fraction", str(base["train_fraction"])]
    return " ".join(words)
