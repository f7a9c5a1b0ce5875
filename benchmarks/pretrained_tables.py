"""What T3 runs from ImageNet's weights reached, as text for the docs."""

import json
import statistics

from anytime_tables import repeated
from study_tables import bare, made_with
from transnet.report import table_format as sheets
from transnet.study.statistics import as_text
from tuning_tables import finetuning

RUNS = ("pretrained_run", "anytime_runs/t3-pretrained-s*")


def pretrained(results):
    """A column for each setting: every head, and all together."""
    paths = [path for pattern in RUNS for path in sorted(results.glob(f"{pattern}/result.json"))]
    if not paths:
        return "Not measured yet."
    groups = {}
    for path in paths:
        found = json.loads(path.read_text())
        groups.setdefault(title(found["config"]["train"]), []).append(found)
    one = next(iter(groups.values()))[0]
    trained, data = one["config"]["train"], one["config"]["data"]
    side, sizes, names = data["image_size"], data["sizes"], [head["name"] for head in one["test"]["heads"]]
    rows = [(f"head {name}", *(percent(runs, lambda test, i=i: test["heads"][i]) for runs in groups.values()), "1")
            for i, name in enumerate(names)]  # fmt: skip
    rows.append(("all heads", *(percent(runs, lambda test: test["full"]) for runs in groups.values()), str(len(names))))
    gains = ", ".join(f"{as_text(gain(runs), '+.2f')} ({name.partition(',')[0]})" for name, runs in groups.items())
    commits = dict.fromkeys(run["commit"] for runs in groups.values() for run in runs)
    made = made_with(one["device"], one["versions"]["torch"], ", ".join(commits))
    columns = ("", *(f"% after {name} ({repeated(len(runs))})" for name, runs in groups.items()))
    return "\n\n".join([
        f"T{len(names)} runs on {data['name']} from ImageNet's weights: {trained['model']}, images of {side}×{side} "
        f"pixels, {sizes['train']:,} training images, no label smoothing. In points, all heads together gain over the "
        f"identity's {gains}. These are accuracies on the {sizes['test']:,} test images, each seen once, without its "
        "mirror image. No base was trained beside them, so what is gained over that is not known. "
        f"{made} ([results/pretrained_run](results/pretrained_run), "
        "[results/anytime_runs](results/anytime_runs)):",
        bare("pretrained", (*columns, "passes per image"), [tuple(map(sheets.Cell, row)) for row in rows]),
        finetuning(results),
    ])  # fmt: skip


def title(train):
    """What tells the settings apart."""
    return f"{train['epochs']} epochs, learning rate {train['lr']:g}, decay {train['weight_decay']:g}"


def percent(runs, part):
    """Of that part of the test, over the runs."""
    return sheets.mean_of([100 * part(run["test"])["accuracy"] for run in runs], digits=2).text


def gain(runs):
    """Points by which all heads are ahead of the identity's, on average."""
    return statistics.fmean(100 * (run["test"]["full"]["accuracy"] - run["test"]["pruned"]["accuracy"]) for run in runs)
