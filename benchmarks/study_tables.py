"""Accuracy by the studies in results/, for README and docs: every classifier with its n, its price and the paper's.

A study is kept there as `transnet reproduce` made it, without the weights (*.safetensors) and state/ of its runs.
"""

from collections import Counter

from transnet.report import table_format as sheets
from transnet.report.page import facts
from transnet.report.paper import N
from transnet.report.tables import accuracies, cautions, rows_of, table, verdict
from transnet.runs import recipes
from transnet.runs.config import TrainConfig
from transnet.study.old_results import read_folder
from transnet.study.statistics import difference

STUDIES = {
    "cifar100-fast": "CIFAR-100, recipe `fast`",
    "cifar100-paper": "CIFAR-100, recipe `paper`",
    "cifar10-fast": "CIFAR-10, recipe `fast`",
    "digits-fast": "scikit-learn's digits, recipe `fast`",
}
ORDER = (
    "base", *(f"base, {m}× epochs" for m in (2, 3, 4)),
    "PT2", "PT2 taught", "T2", "T2 taught", "PT3", "T3", "PT4", "T4",
)  # fmt: skip
COLUMNS = (
    "model", "accuracy %", "to base", "to base of equal passes", "paper %", "training passes", "passes per image",
    "seconds of training",
)  # fmt: skip
SHORT = ("model", "accuracy %", "to base", "to base of equal passes", "passes per image")
BRIEF = (*SHORT, "seconds of training")


def accuracy(results):
    """A table of each study in the folder, and which are not there."""
    found = [(group, text) for group, folder, title in groups(results) if (text := study(group, folder, title))]
    texts = [text for _, text in found]
    if found:
        texts.insert(0, reading(all(group.some.protocol == "test_flip" for group, _ in found)))
    measured = {group.name for group, _ in found}
    if missing := [title for name, title in STUDIES.items() if name not in measured]:
        texts.append(f"No comparison yet, for want of runs: {'; '.join(missing)}.")
    return "\n\n".join(texts)


def reading(mirrored):
    """How the tables are read; ``mirrored``: all of them are of images that were mirrored in training."""
    lines = [
        "± is the standard error over seeds; differences are in points with Welch's 95 % interval. The paper: mean ± "
        f"standard error of {N} repetitions.",
        "Seconds of training leave out start-up, compilation and evaluation; “2 at once” or “3 at once” marks runs "
        "that shared the GPU and so took longer.",
    ]
    if mirrored:
        lines.insert(
            1,
            "Each study has two tables. The first is by the paper's test, the mean over an image and its mirror image, "
            "and its passes count both; the second is of the image alone, as an exported network sees it.",
        )
    return "\n".join(f"- {line}" for line in lines)


def headline(results):
    """What two heads gain, against base and against base of equal passes, where that was measured."""
    for group, _, title in groups(results):
        kinds = {kind: group.of(kind) for kind in ("base", "t2", "t2-taught", "base-x2")}
        if not (kinds["base"] and kinds["t2"] and kinds["base-x2"]) or group.some.protocol != "test_flip":
            continue
        alone, mirrored = "test", "test_flip"
        ways = {  # kind, part and view; the view in which base takes as many passes
            "both heads kept, two passes per image": ("t2", "full", alone, mirrored),
            "one head kept, one pass per image": ("t2", "pruned", alone, alone),
            "one head kept, taught by both, one pass per image": ("t2-taught", "pruned", alone, alone),
            "one head kept, the image and its mirror image": ("t2", "pruned", mirrored, mirrored),
            "one head kept, taught by both, the image and its mirror image": (
                "t2-taught", "pruned", mirrored, mirrored,
            ),
        }  # fmt: skip
        rows, behind = [], []
        for way, (kind, part, view, rival) in ways.items():
            if not kinds[kind]:
                continue
            values = accuracies(kinds[kind], part, view)
            to_base = difference(values, accuracies(kinds["base"], "pruned", view))
            to_equal = difference(values, accuracies(kinds["base-x2"], "pruned", rival))
            rows.append((sheets.name(way), sheets.gap(to_base), sheets.gap(to_equal)))
            behind += [way] if to_equal.certain and to_equal.mean < 0 else []
        columns = (
            "trained with two heads",
            "over the same network trained plainly",
            "over one trained plainly twice as long, with as many passes per image",
        )
        sizes = sheets.either(len(runs) for runs in kinds.values() if runs)
        taught = " Taught: `--distillation 1`, or `distillation_loss` in a script." if kinds["t2-taught"] else ""
        ahead = f" That rival is ahead of: {'; '.join(behind)}." if behind else ""
        return (
            f"Points of accuracy gained on {title.partition(',')[0]}, with 95 % intervals "
            f"({group.some.settings['model']}, n = {sizes} seeds):\n\n"
            f"{bare('headline', columns, rows)}\n\n"
            "Two heads take twice the passes in training, so the fair rival is the plain network trained for twice "
            "the epochs; its second pass over an image, where it gets one, is the mirror image. An interval with "
            f"zero in it shows no difference.{ahead}{taught} "
            "More under [Results](#results)."
        )
    return "What it gains is not measured yet."


def taught(results):
    """What teaching gives the head that is kept and takes from all heads, study by study."""
    said = []
    for group, folder, title in groups(results):
        if sheet := table(group, "taught"):
            where, notes = f"results/{folder.name}", [note for note in sheet.notes if " taught against " in note]
            said.append(
                f"{title}, on the image alone unless said otherwise ([{where}]({where})):\n\n"
                + "\n".join(f"- {n}" for n in notes)
            )
    return "\n\n".join(said) or "What it gains is not measured yet: `transnet reproduce taught`."


def brief(results):
    """README's results: the first study on the image alone, and every study beside the paper in a line."""
    found = [(group, folder, title) for group, folder, title in groups(results) if by_name(group)]
    texts = []
    for group, folder, title in found[:1]:
        rows, alone = views(group)
        kept = [i for i, column in enumerate(COLUMNS) if column in BRIEF]
        columns = tuple(COLUMNS[i] for i in kept)
        shown = [tuple(cells(row)[i] for i in kept) for row in alone or rows]
        said = (*judged(alone or rows), *cautions(alone or rows))
        tested = "the image alone, as an exported network sees it" if alone else facts(group)["tested on"]
        texts += [
            f"{title}, tested on {tested}:",
            bare("brief", columns, shown),
            "\n".join(f"- {line}" for line in said),
            source(group, folder, tested=False),
        ]
    lines = [line for group, _, title in found if (line := beside_the_paper(group, title))]
    if lines:
        texts += ["By the paper's test, the mean over an image and its mirror image, in brackets the paper's:"]
        texts += ["\n".join(f"- {line}" for line in lines)]
    texts += [line for group, _, title in found if (line := without_the_paper(group, title))]
    return "\n\n".join(texts) or "Nothing is measured yet."


def beside_the_paper(group, title):
    """A study's accuracies and the paper's, in a line."""
    rows = [row for row in in_order(by_name(group)) if row.paper]
    if not rows:
        return None
    figures = [f"{row.name} {sheets.mean_of(row.values).text} ({sheets.figure(*row.paper).text})" for row in rows]
    return f"{title}, {seeds(rows)}: {', '.join(figures)}."


def seeds(rows):
    """How many runs stand behind each row; one is called one seed."""
    sizes = {len(row.values) for row in rows}
    return "one seed" if sizes == {1} else f"n = {sheets.either(sizes)}"


def without_the_paper(group, title):
    """A study on data that the paper does not have, and what may be concluded, in a paragraph."""
    rows, _ = views(group)
    if any(row.paper for row in rows):
        return None
    figures = [f"{row.name} {sheets.mean_of(row.values).text}" for row in rows]
    tested = facts(group)["tested on"].partition(";")[0]
    about = f"{title}, {group.some.settings['model']}, tested on {tested}, {seeds(rows)}"
    return f"{about}: {', '.join(figures)}. {' '.join(judged(rows))}"


def bare(key, columns, rows):
    """A table without its heading."""
    return sheets.Sheet(key, "", columns, tuple(rows)).markdown().partition("\n\n")[2].strip()


def by_name(group, *targets):
    """The rows of these tables, by default of Tables 2 and 3; base and base of equal passes stand in both."""
    return {row.name: row for target in targets or ("full", "pruned") for row in rows_of(group, target)}


def views(group):
    """All its classifiers by the paper's test, and on the image alone where that is another."""
    if group.some.protocol == "test_flip":
        taught = {row.name: row for row in rows_of(group, "taught", mirrored=True)}
        return in_order(taught | by_name(group)), in_order(by_name(group, "unmirrored", "taught"))
    return in_order(by_name(group, "full", "pruned", "taught")), []


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
    """The tables of one data set and recipe; None where base or every other classifier is missing."""
    rows, alone = views(group)
    if not rows:
        return None
    said = (*judged(rows), *cautions(rows))
    texts = [sheets.Sheet("accuracy", title, COLUMNS, tuple(cells(row) for row in rows), said).markdown()]
    if alone:
        short = tuple(tuple(cell for i, cell in enumerate(cells(row)) if COLUMNS[i] in SHORT) for row in alone)
        said = (*judged(alone), *beside_mirror_images(rows, alone), *cautions(alone))
        texts.append("#" + sheets.Sheet("unmirrored", f"{title}, the image alone", SHORT, short, said).markdown())
    return "\n".join([*texts, source(group, folder)])


def in_order(rows):
    return [rows[name] for name in ORDER if name in rows]


def source(group, folder, target="pruned", *, tested=True):
    """What was trained on what and how, where it lies, and what does it again."""
    about, where = facts(group), f"results/{folder.name}"
    made = made_with(about["device"], about["torch"], about.get("commit"))
    targets = [target, "taught"] if group.of("t2-taught") else [target]
    how = f"Tested on {about['tested on']}." if tested else "Nothing was selected on the test set."
    return (
        f"{about['data']}; {about['backbone']}; {about['recipe']}. "
        f"{how} {made} "
        f"([{where}]({where})). To repeat it: {' and '.join(f'`{again(group, one)}`' for one in targets)}."
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


def judged(rows):
    """What may be concluded, computed from the intervals."""
    gains = [row for row in rows if not row.name.startswith("base")]
    if all(len(row.values) == 1 for row in rows):
        return ("One seed: how certain a difference is cannot be said.",)
    return (
        f"Against base: {verdict([(row.name, row.to_base) for row in gains])}.",
        f"Against base of equal training passes: {verdict([(row.name, row.to_equal) for row in gains])}.",
    )


def beside_mirror_images(mirrored, alone):
    """Two heads beside what anyone can have for the same passes: train longer, and average with the mirror image."""
    heads = next((row for row in alone if row.name == "T2"), None)
    plain = next((row for row in mirrored if row.name == "base, 2× epochs"), None)
    if heads is None or plain is None:
        return ()
    gap = difference(heads.values, plain.values)
    return (f"Both at two passes per image and equal training, T2 here against base, 2× epochs, above: {gap}.",)


def again(group, target):
    """The command of the study, with what differs from its defaults."""
    run = next(iter(group.of("base")), group.some)
    base, data = run.settings, run.result["config"]["data"]
    (seeds, _), *_ = Counter(len(runs) for runs in group.runs.values()).most_common()
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
