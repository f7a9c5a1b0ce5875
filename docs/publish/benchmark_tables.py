"""The benchmarks in results/*.json, as tables."""

import statistics
from typing import Any

from source import RESULTS, counted, figure, grid, link, origin, read
from transnet.report import table_format as cells
from transnet.study.statistics import as_text, difference


def on_devices(name: str) -> list[tuple[dict[str, Any], str]]:
    """A benchmark's files, one per device: their content, and where it comes from."""
    names = [f"{name}_{device}.json" for device in ("cpu", "h200")]
    return [(found := read(file), origin(found, file)) for file in names if (RESULTS / file).exists()]


def demo() -> str:
    """What `transnet demo` measured."""
    found = read("demo.json")
    of: dict[str, list[dict[str, Any]]] = {}
    for row in found["rows"]:
        of.setdefault(row["kind"].replace("base", "baseline", 1), []).append(row)

    def values(kind: str, part: str) -> list[float]:
        return [100 * run[part] for run in of[kind]]

    rows = []
    for kind, runs in of.items():
        m, passes = runs[0]["predict_passes"], f"{runs[0]['train_passes']:,}"
        longer = values(f"baseline, {m}× epochs", "pruned") if m > 1 else []
        for part in ("pruned", "full") if m > 1 else ("pruned",):
            name = kind if m == 1 else f"P{kind}, pruned" if part == "pruned" else f"{kind}, all heads"
            gap = cells.gap(difference(values(kind, part), longer)) if longer else "–"
            ratio = figure([run["generalization"] for run in runs], ".1f") if part == "pruned" else ""
            rows.append((name, figure(values(kind, part)), gap, ratio, passes, m if part == "full" else 1))
    columns = ("model", "accuracy %", "to baseline at equal training compute", "test / train loss", "training passes",
               "passes per image")  # fmt: skip
    return (
        f"{grid(columns, rows)}\n\nscikit-learn's digits, {found['train_images']} training and {found['test_images']} "
        f"test images, {counted(len(next(iter(of.values()))))}, mean ± standard error; differences in points with "
        f"Welch's 95 % interval. {origin(found, 'demo.json')}."
    )


def costs() -> str:
    """Cost of training with heads, of folded networks and of prediction."""
    parts = []
    for found, where in on_devices("loss_overhead"):
        one = found["rows"][0]
        rows = [
            (r["m"], *(f"{r[what]['transnet'] / one[what]['transnet']:.2f}" for what in ("seconds", "bytes")),
             f"{r['time_ratio']:.3f}", f"{r['memory_ratio']:.3f}")
            for r in found["rows"]
        ]  # fmt: skip
        columns = ("heads", "time / one head", "memory / one head", "time / by hand", "memory / by hand")
        about = "`net.loss` and backward of ResNet-18, relative to one head and to a loop over the heads by hand. "
        parts.append(f"{about}{where}:\n\n{grid(columns, rows)}")
    for found, where in on_devices("fold_latency"):
        rows = [(row["model"], row["transform"], row["batch"], f"{row['ratio']:.3f}") for row in found["rows"]]
        about = "Latency of a network with its transform folded in, relative to the plain network. "
        parts.append(f"{about}{where}:\n\n{grid(('model', 'transform', 'batch', 'ratio'), rows)}")
    found = read("kill_resume.json")
    parts.append(
        "Runs on digits that were killed with SIGKILL at a random moment and resumed: "
        f"{found['same']} of {found['killed']} ended with the same weights as the undisturbed run, bit for bit. "
        f"{origin(found, 'kill_resume.json')}."
    )
    return "\n\n".join([*parts, prediction()])


def prediction() -> str:
    """Prediction time relative to the baseline."""
    files = on_devices("pruned_latency")
    rows = [
        (found["device"], row["model"], f"{row['side']}×{row['side']}", row["batch"], row["clock"],
         f"{row['pruned_ratio']:.3f}", f"{row['again_ratio']:.3f}", f"{row['full_ratio']:.2f}")
        for found, _ in files
        for row in found["rows"]
    ]  # fmt: skip
    columns = ("device", "model", "images", "batch", "clock", "pruned", "copy of the baseline", "both heads")
    return (
        "Prediction time relative to the baseline; the copy of the baseline shows the noise of the measurement. "
        f"{'; '.join(where for _, where in files)}.\n\n{grid(columns, rows)}"
    )


def prediction_in_brief() -> str:
    """The same as ranges, for README."""
    files = on_devices("pruned_latency")

    def span(name: str, form: str) -> str:
        values = [row[name] for found, _ in files for row in found["rows"]]
        return f"{min(values):{form}} to {max(values):{form}}"

    return (
        f"Prediction time relative to the baseline: pruned {span('pruned_ratio', '.3f')}, a copy of the baseline "
        f"{span('again_ratio', '.3f')}, both heads {span('full_ratio', '.2f')}, for ResNet-18 at 32×32 and 224×224. "
        f"{'; '.join(where for _, where in files)}."
    )


def speed() -> str:
    """Training speed, and how it changes with the heads and the data."""
    found, growth = read("training_speed.json"), read("training_growth.json")
    columns = ("model", "heads", "batch", "images", "seconds per epoch", "passes per second", "bare step", "overhead")

    def measured(*parts: list[dict[str, Any]]) -> str:
        rows = [
            (row["model"], row["m"], row["batch"], f"{row['images']:,}", f"{row['seconds_per_epoch']:.3f}",
             f"{row['passes_per_second']:,.0f}", f"{bare:,.0f}" if (bare := row["bare_passes_per_second"]) else "",
             f"{as_text(100 * row['overhead'], '.1f')} %" if bare else "")
            for part in parts
            for row in part
        ]  # fmt: skip
        return grid(columns, list(dict.fromkeys(rows)))

    naive = found["naive"]
    ours, theirs = (statistics.median(naive[who]) for who in ("ours", "naive"))
    return "\n\n".join([
        "Image passes per second of `transnet train` over whole epochs at the start of a run, without evaluation "
        "(median of 3 to 9). An image pass is one image under one transform. The bare step is the captured step alone; "
        "overhead is the additional time of an epoch: data, bookkeeping, and the smaller last batch, which is not "
        f"compiled. {found['data']}, {origin(found, 'training_speed.json')}:",
        measured(found["speed"], found["heads"]),
        f"Compared with a simple loop (a DataLoader with {naive['workers']} workers, one eager forward per transform, "
        f"TF32), interleaved, {naive['m']} heads, batch {naive['batch']}, in the same file:",
        grid(("transnet train, passes per second", "simple loop", "ratio"),
             [(f"{ours:,.0f}", f"{theirs:,.0f}", f"{naive['ratio']:.1f}")]),
        "An eighth, a quarter, half and all of the data, and larger networks and images, the latter synthetic. "
        f"{origin(growth, 'training_growth.json')}:",
        measured(growth["data_shares"], growth["large"]),
    ])  # fmt: skip


def fold_errors() -> str:
    """Relative errors of the paper's rule and of the exact one."""
    found = read("fold_exactness.json")
    worst = {(row["model"], row["size"]): row for row in found["compared"]}

    def cell(name: str, side: int, rule: str) -> str:
        value = max(worst[name, side][rule].values())
        return f"{100 * value:.1f} %" if value > 1e-6 else f"{value:.0e}"

    rules = [(64, "plain"), (64, "exact"), (96, "plain"), (96, "exact"), (65, "plain")]
    columns = ("network", *(f"{rule} rule, {side}×{side}" for side, rule in rules))
    names = dict.fromkeys(row["model"] for row in found["compared"])
    return grid(columns, [(name, *(cell(name, side, rule) for side, rule in rules)) for name in names])


def folds() -> str:
    """The networks that fold."""
    found = read("fold_exactness.json")
    names = dict.fromkeys([*(row["model"] for row in found["compared"]), *found["exact"]])
    bound = max([*found["exact"].values(), *(max(row["exact"].values()) for row in found["compared"])])
    return f"{len(names)} networks fold, none with an error above {bound:.0e}: " + ", ".join(names) + "."


def refused() -> str:
    """The networks that do not fold."""
    reasons = read("fold_exactness.json")["refused"]
    return grid(("network", "reason"), [(name, reason.removeprefix("fold: ")) for name, reason in reasons.items()])


def new_user() -> str:
    """The time from a folder of images to a prediction."""
    found = read("new_user_path.json")
    return (
        f"From a folder of {found['images']:,} images of 8×8 pixels to a prediction by an ONNX file: "
        f"{len(found['rows'])} commands, {found['seconds']:.0f} s in all, start-up included. "
        f"{origin(found, 'new_user_path.json')}."
    )


def tutorial_times() -> str:
    """The same, command by command."""
    found = read("new_user_path.json")
    rows = [(f"`{row['command']}`", f"{row['seconds']:.1f}") for row in found["rows"]]
    return grid(("command", "seconds"), [*rows, ("all", f"{found['seconds']:.1f}")]) + "\n\n" + new_user()


def printed(step: int) -> str:
    """The output of one of the tutorial's commands when it was last measured."""
    return f"```text\n{read('new_user_path.json')['rows'][step]['printed'].rstrip()}\n```"


def files() -> str:
    """Every file with its command, commit and device."""
    rows = [
        (link(path.name), f"`{found['command']}`", found.get("commit", ""), found["device"])
        for path in sorted(RESULTS.glob("*.json"))
        if (found := read(path.name))
    ]
    return grid(("file", "command", "commit", "device"), rows)
