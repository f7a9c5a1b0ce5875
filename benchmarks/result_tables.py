"""What results/ says, as text for README.md and docs/: a function a table.

Nobody types a result: a table that cannot be made from a file is not made. A study's tables are those that
`transnet report` wrote: results/NAME/tables/*.md.
"""

import json
import statistics
from pathlib import Path

import tuning_tables
from anytime_tables import anytime, anytime_in_brief
from pretrained_tables import pretrained
from study_tables import accuracy, brief, groups, headline, made_with, source, taught
from transnet.report import table_format as sheets
from transnet.study.demo import equal_passes
from transnet.study.plan import TARGETS
from transnet.study.statistics import as_text

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"


def read(name):
    path = RESULTS / name
    return json.loads(path.read_text()) if path.exists() else None


def table(header, rows):
    lines = ["| " + " | ".join(header) + " |", "|" + "|".join(" --- " for _ in header) + "|"]
    return "\n".join(lines + ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows])


def figure(values, digits):
    return sheets.mean_of(values, digits=digits).text + (" (one seed)" if len(values) == 1 else "")


def demo():
    found = read("demo.json")
    if not found:
        return "Not measured yet: `transnet demo --json results/demo.json`."
    rows = []
    for kind in dict.fromkeys(row["kind"] for row in found["rows"]):
        runs = [row for row in found["rows"] if row["kind"] == kind]
        m = runs[0]["predict_passes"]
        ratio = figure([run["generalization"] for run in runs], 1)
        pruned = figure([100 * run["pruned"] for run in runs], 2)
        rows.append([kind if m == 1 else f"PT{m}, pruned", pruned, ratio, f"{runs[0]['train_passes']:,}", 1])
        if m > 1:
            full = figure([100 * run["full"] for run in runs], 2)
            rows.append([f"T{m}, all heads", full, "", f"{runs[0]['train_passes']:,}", m])
    n = len({row["seed"] for row in found["rows"]})
    caption = (
        f"scikit-learn's digits, {found['train_images']} training and {found['test_images']} test images, "
        f"{'one seed' if n == 1 else f'n = {n} seeds, mean ± standard error'}. "
        f"{made_with(found['device'], found['versions']['torch'], found['commit'])} "
        "([results/demo.json](results/demo.json)). " + equal_passes(found["rows"])
    )
    head = ["", "accuracy %", "test / train loss", "training passes", "passes per image"]
    return table(head, rows) + "\n\n" + caption


def on_devices(name):
    """A benchmark's files, one a device: their content, each with a link to it."""
    files = [f"{name}_{device}.json" for device in ("cpu", "h200")]
    return [(found, f"[results/{file}](results/{file})") for file in files if (found := read(file))]


def costs():
    parts = []
    for found, link in on_devices("loss_overhead"):
        one = found["rows"][0]
        rows = [
            [r["m"], *(f"{r[what]['transnet'] / one[what]['transnet']:.2f}" for what in ("seconds", "bytes")),
             f"{r['time_ratio']:.3f}", f"{r['memory_ratio']:.3f}"]
            for r in found["rows"]
        ]  # fmt: skip
        heads = ["heads", *(f"{what}, over {than}" for than in ("one head", "by hand") for what in ("time", "memory"))]
        parts.append(
            "What `net.loss` and backward take, over the same with one head and over a loop of as many heads written "
            f"by hand, ResNet-18, {found['device']} ({link}):\n\n" + table(heads, rows)
        )
    for found, link in on_devices("fold_latency"):
        rows = [[row["model"], row["transform"], row["batch"], f"{row['ratio']:.3f}"] for row in found["rows"]]
        parts.append(
            "Latency of a network with its transform folded in, over the plain one, "
            f"{found['device']} ({link}):\n\n" + table(["model", "transform", "batch", "ratio"], rows)
        )
    if found := read("kill_resume.json"):
        parts.append(
            "Runs on digits on a CPU, killed with SIGKILL at a random moment and resumed: "
            f"{found['same']} of {found['killed']} ended with the same weights, bit for bit, as the undisturbed run "
            "([results/kill_resume.json](results/kill_resume.json))."
        )
    return "\n\n".join([*parts, prediction()])


def speed():
    """How fast training is, and how its time grows with the heads and the data."""
    found, growth = read("training_speed.json"), read("training_growth.json")
    if not found or not growth:
        return "Not measured yet: `python benchmarks/training_speed.py`."

    def cells(row):
        bare = row["bare_passes_per_second"]
        overhead = f"{as_text(100 * row['overhead'], '.1f')} %" if bare else ""
        return [row["model"], row["m"], row["batch"], f"{row['images']:,}", f"{row['seconds_per_epoch']:.3f}",
                f"{row['passes_per_second']:,.0f}", f"{bare:,.0f}" if bare else "", overhead]  # fmt: skip

    def measured(*parts):
        rows = dict.fromkeys(tuple(cells(row)) for part in parts for row in part)
        head = ["model", "heads", "batch", "images", "seconds an epoch", "passes a second", "bare step's", "overhead"]
        return table(head, rows)

    def made(file, name):
        where = made_with(file["device"], file["versions"]["torch"], file["commit"])
        return f"{where} ([results/{name}](results/{name}))"

    ours, theirs = (statistics.median(found["naive"][who]) for who in ("ours", "naive"))
    naive = found["naive"]
    rounds = [
        len(row["rounds"]) for row in (*found["speed"], *found["heads"], *growth["data_shares"], *growth["large"])
    ]
    return (
        "Image passes a second of `transnet train`, over whole epochs at the start of a run without evaluation, median "
        f"of {min(rounds)} to {max(rounds)}; the bare step is the captured one alone, and what an epoch costs over as "
        "many images in bare steps is called overhead: data, bookkeeping, and the smaller last batch, which is not "
        f"compiled. An image pass is one image under one transform. {found['data']}, "
        f"{made(found, 'training_speed.json')}:\n\n{measured(found['speed'], found['heads'])}"
        f"\n\nBeside a loop as one writes it first (a DataLoader with {naive['workers']} workers, one eager forward "
        f"per transform, TF32), in turns, {naive['m']} heads, batch {naive['batch']}: {ours:,.0f} passes a second "
        f"against {theirs:,.0f}, {naive['ratio']:.1f} times.\n\nAn eighth, a quarter, half and all of the data, and "
        f"larger networks and images, the latter made up. {made(growth, 'training_growth.json')}:\n\n"
        f"{measured(growth['data_shares'], growth['large'])}"
    )


def prediction():
    rows, links = [], []
    for found, link in on_devices("pruned_latency"):
        links.append(link)
        rows += [
            [found["device"], row["model"], f"{row['side']}×{row['side']}", row["batch"], row["clock"],
             f"{row['pruned_ratio']:.3f}", f"{row['again_ratio']:.3f}", f"{row['full_ratio']:.2f}"]
            for row in found["rows"]
        ]  # fmt: skip
    if not rows:
        return "What prediction costs is not measured yet: `python benchmarks/pruned_latency.py`."
    head = ["", "model", "images", "batch", "clock", "pruned / base", "a copy of base / base", "both heads / base"]
    return (
        f"Prediction time relative to base; the copy of base shows the noise of measuring ({', '.join(links)}):\n\n"
        + table(head, rows)
    )


def in_brief():
    return "\n\n".join([brief(RESULTS), prediction_in_brief(), anytime_in_brief(RESULTS), new_user()])


def prediction_in_brief():
    files = on_devices("pruned_latency")
    if not files:
        return prediction()
    rows = [row for found, _ in files for row in found["rows"]]

    def span(name, digits):
        low, high = (f"{pick(row[name] for row in rows):.{digits}f}" for pick in (min, max))
        return f"{low} to {high}"

    return (
        f"Prediction time relative to base: pruned {span('pruned_ratio', 3)}, a second copy of base "
        f"{span('again_ratio', 3)}, both heads {span('full_ratio', 2)}, over ResNet-18 at 32×32 and 224×224 on "
        f"{' and '.join(found['device'] for found, _ in files)} ({', '.join(link for _, link in files)})."
    )


def studies():
    """Every study under a heading of its own: what was trained, then its tables in the paper's order."""
    parts = []
    for group, folder, title in groups(RESULTS):
        order = (key for target in TARGETS for key in ((target, "unmirrored") if target == "full" else (target,)))
        paths = [folder / "tables" / f"{group.name}-{key}.md" for key in order]
        tables = ["#" + path.read_text().strip() for path in paths if path.exists()]  # a heading one level below
        if tables:  # one that has just been begun has none
            parts += [f"### {title}", source(group, folder, "all"), *tables]
    missing = "No study is in `results/` yet. [Reproducing the paper](reproducing.md) says how one is made."
    return "\n\n".join(parts) or missing


def errors():
    found = read("fold_exactness.json")
    worst = {(row["model"], row["size"]): row for row in found["compared"]}

    def cell(name, side, rule):
        value = max(worst[name, side][rule].values())
        return f"{100 * value:.1f} %" if value > 1e-6 else f"{value:.0e}"

    columns = [(64, "plain"), (64, "exact"), (96, "plain"), (96, "exact"), (65, "plain")]
    head = ["network", *(f"{'plain rule' if rule == 'plain' else rule}, {side}×{side}" for side, rule in columns)]
    names = dict.fromkeys(row["model"] for row in found["compared"])
    return table(head, [[name, *(cell(name, side, rule) for side, rule in columns)] for name in names])


def folds():
    found = read("fold_exactness.json")
    names = dict.fromkeys([*(row["model"] for row in found["compared"]), *found["exact"]])
    bound = max([*found["exact"].values(), *(max(row["exact"].values()) for row in found["compared"])])
    return f"{len(names)} fold, none with an error above {bound:.0e}: " + ", ".join(names) + "."


def refused():
    found = read("fold_exactness.json")
    rows = [[name, reason.removeprefix("fold: ")] for name, reason in found["refused"].items()]
    return table(["network", "why not"], rows)


def new_user():
    found = read("new_user_path.json")
    if not found:
        return "Not measured yet: `python benchmarks/new_user_path.py`."
    return (
        f"From a folder of {found['images']:,} images of 8×8 pixels to a prediction by an ONNX file: "
        f"{len(found['rows'])} commands, {found['seconds']:.0f} s in all, start-up included, {found['device']} "
        "([results/new_user_path.json](results/new_user_path.json))."
    )


def times():
    found = read("new_user_path.json")
    if not found:
        return new_user()
    rows = [[f"`{row['command']}`", f"{row['seconds']:.1f}"] for row in found["rows"]]
    return table(["command", "seconds"], [*rows, ["all", f"{found['seconds']:.1f}"]]) + "\n\n" + new_user()


def printed(step):
    """What a command of the tutorial printed when it was last measured."""

    def fence():
        found = read("new_user_path.json")
        return f"```text\n{found['rows'][step]['printed'].rstrip()}\n```" if found else new_user()

    return fence


def files():
    rows = []
    for path in sorted(RESULTS.glob("*.json")):
        found = read(path.name)
        where = f"[results/{path.name}](results/{path.name})"
        rows.append([where, f"`{found['command']}`", found.get("commit", ""), found["device"]])
    return table(["file", "command", "commit", "device"], rows)


TABLES = {
    "headline": lambda: headline(RESULTS), "in brief": in_brief, "overview": lambda: accuracy(RESULTS), "demo": demo,
    "speed": speed, "costs": costs,
    "anytime": lambda: anytime(RESULTS), "pretrained": lambda: pretrained(RESULTS), "studies": studies,
    "tuning": lambda: tuning_tables.recipe(RESULTS), "teaching": lambda: tuning_tables.teaching(RESULTS),
    "taught": lambda: taught(RESULTS),
    "files": files, "errors": errors, "folds": folds, "refused": refused, "new user": new_user,
    "tutorial times": times,
    **{f"tutorial {name}": printed(i) for i, name in enumerate(("train", "evaluate", "prune", "onnx", "predict"))},
}  # fmt: skip
