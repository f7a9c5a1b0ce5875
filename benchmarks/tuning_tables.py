"""How settings were chosen, by images that judge nothing else: results/tune_*.json as text for the docs."""

import json

from study_tables import bare
from transnet import recipes
from transnet.study import sheets


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
        f"{chosen['label_smoothing']:g}: the row with the best base. The file's remark: {found['remark']}\n\n"
        + shown(("candidate", "base %", "PT2 %", "T2 %"), rows)
    )


def teaching(results):
    """The candidates for what teaches the head that is kept."""
    found = json.loads((results / "tune_teaching.json").read_text())
    rows = [
        (name_of(row), *(percent(row[view][part]) for view in ("alone", "mirrored") for part in ("pruned", "full")))
        for row in found["rows"]
    ]
    epochs, judges = found["rows"][1]["epochs"], found["rows"][0]["judged_by"]
    return (
        f"Teaching the head that is kept: accuracy on {judges:,} training images of CIFAR-100 that were cut off, "
        f"{epochs} epochs, base {found['rows'][0]['epochs']}, one seed, {found['device']} "
        "([results/tune_teaching.json](results/tune_teaching.json)). m3 is r1 of the mirror image, so that the second "
        "head would see each image mirrored; m0 is the mirror image itself. Two networks of one kind differ by a few "
        "tenths of a point, so only large differences say something: teaching raises the head that is kept and lowers "
        "all heads together, the latter more with a larger weight. The mirror image in place of a rotation did as well "
        "for one head. Weight 1 with r0 and r1 was taken on. The file's remark: "
        f"{found['remark']}\n\n"
        + shown(("candidate", "one head %", "all heads %", "one head, mirrored %", "all heads, mirrored %"), rows)
    )


def name_of(row):
    """A candidate as one would ask for it."""
    transforms, _, change = row["candidate"].partition(" ")
    if transforms == "base-long":
        return "base"
    words = change.replace("taught", "--distillation").replace("bn-separate", "--bn separate")
    return f"`{f'{transforms} {words}'.strip()}`"


def percent(accuracy):
    return f"{100 * accuracy:.2f}"


def shown(columns, rows):
    return bare("tuning", columns, [tuple(sheets.Cell(text) for text in row) for row in rows])
