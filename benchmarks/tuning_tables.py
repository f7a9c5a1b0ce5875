"""How settings were chosen, by images that judge nothing else: results/tune_*.json as text for the docs."""

import json
import statistics

from study_tables import bare
from transnet.report import table_format as sheets
from transnet.runs import recipes
from transnet.study.statistics import as_text


def recipe(results):
    """The candidates for the recipe `fast`."""
    found = json.loads((results / "tune_fast.json").read_text())
    kinds = (("base", "pruned"), ("T2", "pruned"), ("T2", "full"))
    rows = [(row["candidate"], *(percent(row[kind][part]) for kind, part in kinds)) for row in found["rows"]]
    chosen = recipes.settings("fast", "cifar100")
    return (
        f"The recipe `fast`: accuracy on validation images, {found['split']} of CIFAR-100, {found['epochs']} epochs, "
        f"one seed, {found['device']} ([results/tune_fast.json](results/tune_fast.json)). The first row is the "
        "starting point, the others change one thing. These images chose the recipe, so they do not judge it. It has "
        f"learning rate {chosen['lr']:g}, decay {chosen['weight_decay']:g} and smoothing "
        f"{chosen['label_smoothing']:g}: the row with the best base.{remark(found)}\n\n"
        + shown(("candidate", "base %", "PT2 %", "T2 %"), rows)
    )


def teaching(results):
    """The candidates for what teaches the head that is kept: means over their seeds."""
    found = json.loads((results / "tune_teaching.json").read_text())
    runs = {}
    for run in found["rows"]:
        runs.setdefault(run["candidate"], []).append(run)

    def mean(name, view, part):
        return statistics.fmean(run[view][part] for run in runs[name])

    def changed(view, part):
        """What weight 1 changes, in points, of each pair that differs in nothing else."""
        pairs = [(name, f"{name} taught 1") for name in runs if f"{name} taught 1" in runs]
        gaps = (100 * (mean(taught, view, part) - mean(plain, view, part)) for plain, taught in pairs)
        return " and ".join(as_text(gap, "+.2f") for gap in gaps)

    rows = [
        (name_of(name), sheets.seeds(len(of)).text,
         *(percent(mean(name, view, part)) for view in ("alone", "mirrored") for part in ("pruned", "full")))
        for name, of in runs.items()
    ]  # fmt: skip
    base, other = runs["base-long"][0], runs["r0,r1"][0]
    return (
        f"Teaching the head that is kept: accuracy on {base['judged_by']:,} training images of CIFAR-100 that were cut "
        f"off, {other['epochs']} epochs, base {base['epochs']}, {found['device']} "
        "([results/tune_teaching.json](results/tune_teaching.json)). m3 is r1 of the mirror image, so that the second "
        "head would see each image mirrored; m0 is the mirror image itself. With r0,r1 and r0,m3, weight 1 changed "
        f"the head that is kept by {changed('alone', 'pruned')} points on the image alone and by "
        f"{changed('mirrored', 'pruned')} with the mirror image, and all heads on the image alone by "
        f"{changed('alone', 'full')}. How far two seeds of one candidate would differ was not measured. Weight 1 with "
        f"r0,r1 was taken on, for its head on the image alone.{remark(found)}\n\n"
        + shown(("candidate", "n", "one head %", "all heads %", "one, mirrored %", "all, mirrored %"), rows)
    )


def finetuning(results):
    """What was tried before the longer runs from pretrained weights; nothing where nothing was."""
    path = results / "tune_finetuning.json"
    rows = json.loads(path.read_text())["rows"] if path.exists() else []
    if not rows:
        return ""
    shown = "; ".join(
        f"{row['candidate'].replace('lr', 'learning rate').replace(' bn-separate', ' and batch norm per transform')}: "
        f"{percent(row['alone']['pruned'])} % with one head, {percent(row['alone']['full'])} % with all"
        for row in rows
    )
    return (
        f"The shorter run was not tuned. Before the longer ones these were tried on {rows[0]['judged_by']:,} training "
        f"images that had been cut off, {rows[0]['epochs']} epochs, one seed: {shown} "
        "([results/tune_finetuning.json](results/tune_finetuning.json)). The first was taken; decay and epochs were "
        f"not tried.{remark(json.loads(path.read_text()))}"
    )


def remark(found):
    """What the file says of itself, where it does."""
    return f" The file's remark: {found['remark']}" if "remark" in found else ""


def name_of(candidate):
    """As one would ask for it."""
    transforms, _, change = candidate.partition(" ")
    if transforms == "base-long":
        return "base"
    words = change.replace("taught", "--distillation").replace("bn-separate", "--bn separate")
    return f"`{f'{transforms} {words}'.strip()}`"


def percent(accuracy):
    return f"{100 * accuracy:.2f}"


def shown(columns, rows):
    return bare("tuning", columns, [tuple(sheets.Cell(text) for text in row) for row in rows])
