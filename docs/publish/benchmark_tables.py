"""The benchmarks in results/*.json, as tables."""

import json
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from source import RESULTS, counted, figure, grid, link, percent, read
from transnet.report import table_format as cells
from transnet.study.statistics import as_text, difference

Benchmark = dict[str, Any]  # a file, or one of its rows
EARLY_EXIT = ("anytime_plain", "anytime_taught", "anytime_200_epochs", "anytime_wrn", "anytime_pretrained")
TUTORIAL = ("train", "evaluate", "prune", "onnx", "predict")
WAYS = ("first head", "anytime", "full")  # to predict


def demo() -> str:
    found = read("demo.json")
    kinds: dict[str, list[Benchmark]] = {}
    for row in found["rows"]:
        kinds.setdefault(row["kind"].replace("base", "baseline", 1), []).append(row)
    rows = []
    for kind, runs in kinds.items():
        m, passes = runs[0]["predict_passes"], f"{runs[0]['train_passes']:,}"
        for part in ("pruned", "full") if m > 1 else ("pruned",):
            name = kind if m == 1 else f"P{kind}, pruned" if part == "pruned" else f"{kind}, all heads"
            values = [100 * run[part] for run in runs]
            longer = [100 * run["pruned"] for run in kinds.get(f"baseline, {m}× epochs", [])]
            gap = cells.gap(difference(values, longer)) if longer else "–"
            ratio = figure([run["generalization"] for run in runs], ".1f") if part == "pruned" else ""
            rows.append((name, figure(values), gap, ratio, passes, m if part == "full" else 1))
    columns = ("model", "accuracy %", "to baseline at equal training compute", "test / train loss", "training passes",
               "passes per image")  # fmt: skip
    return (
        f"{grid(columns, rows)}\n\nscikit-learn's digits, {found['train_images']} training images, others for each "
        f"seed, and {found['test_images']} test images, {counted(len(next(iter(kinds.values()))))}. {found['origin']}"
    )


def _by_device(name: str, columns: Sequence[str], cells_of: Callable[[Benchmark, Benchmark], Sequence[object]]) -> str:
    """The rows of a benchmark's files, one per device."""
    files = [read(path.name) for path in sorted(RESULTS.glob(f"{name}_*.json"))]
    rows = [(found["device"], *cells_of(row, found["rows"][0])) for found in files for row in found["rows"]]
    return "\n\n".join([grid(("device", *columns), rows), " ".join(found["origin"] for found in files)])


def training_cost() -> str:
    def row(found: Benchmark, one: Benchmark) -> Sequence[object]:
        return (
            found["m"], *(f"{found[of]['transnet'] / one[of]['transnet']:.2f}" for of in ("seconds", "bytes")),
            f"{found['time_ratio']:.3f}", f"{found['memory_ratio']:.3f}",
        )  # fmt: skip

    columns = ("heads", "time / one head", "memory / one head", "time / by hand", "memory / by hand")
    return _by_device("loss_overhead", columns, row)


def fold_cost() -> str:
    def row(found: Benchmark, _: Benchmark) -> Sequence[object]:
        return found["model"], found["transform"], found["batch"], found.get("clock", "wall"), f"{found['ratio']:.3f}"

    return _by_device("fold_latency", ("model", "transform", "batch", "clock", "folded / plain"), row)


def prediction_cost() -> str:
    def row(found: Benchmark, _: Benchmark) -> Sequence[object]:
        ratios = [f"{found[f'{name}_ratio']:.3f}" for name in ("pruned", "again", "full")]
        return found["model"], f"{found['side']}×{found['side']}", found["batch"], found["clock"], *ratios

    columns = ("model", "images", "batch", "clock", "pruned", "copy of the baseline", "both heads")
    return _by_device("pruned_latency", columns, row)


def kill_and_resume() -> str:
    found = read("kill_resume.json")
    return (
        f"{found['same']} of {found['killed']} killed runs ended with the same weights as the undisturbed run, bit for "
        f"bit. {found['origin']}"
    )


def queue_killed() -> str:
    found = read("queue_resume.json")
    return (
        f"{found['same']} of {found['repetitions']} queues, killed {found['kills']} times in all, ended like an "
        f"undisturbed one: {found['files']} files of weights, predictions, results, curves and tables are equal, bit "
        f"for bit. {found['origin']}"
    )


def speed() -> str:
    found, growth = read("training_speed.json"), read("training_growth.json")
    columns = ("model", "heads", "batch", "images", "seconds per epoch", "passes per second", "bare step", "overhead")

    def table(rows: list[Benchmark]) -> str:
        shown = [
            (row["model"], row["m"], row["batch"], f"{row['images']:,}", f"{row['seconds_per_epoch']:.3f}",
             f"{row['passes_per_second']:,.0f}", f"{bare:,.0f}" if (bare := row["bare_passes_per_second"]) else "",
             f"{as_text(100 * row['overhead'], '.1f')} %" if bare else "")
            for row in rows
        ]  # fmt: skip
        return grid(columns, list(dict.fromkeys(shown)))

    naive = found["naive"]
    rates = [f"{statistics.median(naive[loop]):,.0f}" for loop in ("ours", "naive")]
    return "\n\n".join([
        table(found["speed"] + found["heads"]), f"{found['data']}, {found['origin']}",
        f"Compared with a simple loop (a DataLoader with {naive['workers']} workers, one eager forward per transform, "
        f"TF32), interleaved, {naive['m']} heads, batch {naive['batch']}, in the same file:",
        grid(("transnet train, passes per second", "simple loop", "ratio"), [(*rates, f"{naive['ratio']:.1f}")]),
        "An eighth, a quarter, half and all of the data, and larger networks and images, the latter synthetic:",
        table(growth["data_shares"] + growth["large"]), growth["origin"],
    ])  # fmt: skip


def fold_errors() -> str:
    worst = {(row["model"], row["size"]): row for row in read("fold_exactness.json")["compared"]}

    def cell(name: str, side: int, rule: str) -> str:
        value = max(worst[name, side][rule].values())
        return f"{100 * value:.1f} %" if value > 1e-6 else f"{value:.0e}"

    rules = [(64, "plain"), (64, "exact"), (96, "plain"), (96, "exact"), (65, "plain")]
    columns = ("network", *(f"{rule} rule, {side}×{side}" for side, rule in rules))
    names = dict.fromkeys(name for name, _ in worst)
    return grid(columns, [(name, *(cell(name, side, rule) for side, rule in rules)) for name in names])


def folds() -> str:
    found = read("fold_exactness.json")
    names = dict.fromkeys([*(row["model"] for row in found["compared"]), *found["exact"]])
    bound = max([*found["exact"].values(), *(max(row["exact"].values()) for row in found["compared"])])
    return f"{len(names)} networks fold, none with an error above {bound:.0e}: " + ", ".join(names) + "."


def refused() -> str:
    reasons = read("fold_exactness.json")["refused"]
    return grid(("network", "reason"), [(name, reason.removeprefix("fold: ")) for name, reason in reasons.items()])


def tutorial_times() -> str:
    found = read("new_user_path.json")
    rows = [(f"`{row['command']}`", f"{row['seconds']:.1f}") for row in found["rows"]]
    table = grid(("command", "seconds"), [*rows, ("all", f"{found['seconds']:.1f}")])
    return f"{table}\n\n{found['images']:,} images of 8×8 pixels, start-up included. {found['origin']}"


def printed(command: str) -> str:
    """The output of one of the tutorial's commands."""
    return f"```text\n{read('new_user_path.json')['rows'][TUTORIAL.index(command)]['printed'].rstrip()}\n```"


def architectures() -> str:
    found = read("architectures.json")
    share = percent(found["wrapped"] / found["with_classifier"], ".1f")
    return (
        f"TransNet wraps {found['wrapped']:,} of the {found['with_classifier']:,} architectures of timm and "
        f"torchvision that have a classifier ({share} %). The {found['with_numbers']} of them with fewer than "
        f"{found['largest_with_numbers'] / 1e6:g} M parameters were compared with the plain model in numbers: every "
        "head's outputs and those of the pruned network agree with a relative error of at most "
        f"{found['largest_error']:.0e}. {found['origin']}"
    )


def not_wrapped() -> str:
    found = read("architectures.json")
    rest = {name: reason for name, reason in found["rest"].items() if name not in found["encoders"]}
    encoders = ", ".join(f"`{name}`" for name in found["encoders"])
    table = grid(("architecture", "reason"), [(f"`{name}`", reason) for name, reason in rest.items()])
    return f"These are not wrapped:\n\n{table}\n\nEncoders without a classifier, which are refused: {encoders}."


def files() -> str:
    paths = sorted(RESULTS.glob("*.json"))
    found = {path.name: read(path.name) for path in paths if "device" in json.loads(path.read_text())}
    rows = [(link(name), f"`{one['command']}`", one["commit"], one["device"]) for name, one in found.items()]
    return grid(("file", "command", "commit", "device"), rows)


def early_exit() -> str:
    files = {_title(found): found for name in EARLY_EXIT if (found := read(f"{name}_h200.json"))}
    first = next(iter(files.values()))["runs"][0]
    rows, details = [], []
    for name, found in files.items():
        accuracies = [percent(_mean(found, way, "accuracy")) for way in WAYS]
        rows.append((name, *accuracies, f"{_mean(found, 'anytime', 'passes'):.3f}", _kept(found)))
        speeds = [f"{_mean(found, way, 'images_per_second'):,.0f}" for way in WAYS]
        runs = ", ".join(percent(run["share_of_gain_kept"], ".1f") for run in found["runs"])
        details.append((name, *speeds, runs, _on_validation(found)))
    columns = ("networks", "first head %", "early exit %", "all heads %", "passes per image", "of the gain kept %")
    return "\n\n".join([
        grid(columns, rows),
        f"{first['n_val']:,} training images of CIFAR-100 were held out to set the threshold; accuracies are those of "
        f"the {first['n_test']:,} test images. Images per second, and the share of the gain that each run keeps and "
        "that is kept on the validation images:",
        grid(("networks", "first head", "early exit", "all heads", "each run %", "validation %"), details),
        "\n".join(f"- {name}: {found['origin']}" for name, found in files.items()),
    ])  # fmt: skip


def _title(found: Benchmark) -> str:
    """The settings that tell the networks apart."""
    run = found["runs"][0]
    side = run.get("image_size")
    parts = (
        run["model"], run.get("pretrained") and "pretrained", side and f"{side}×{side} pixels",
        f"{run['epochs']} epochs", run["cutmix"] and f"CutMix α {run['cutmix']:g}",
        not run["label_smoothing"] and "no smoothing", run["distillation"] and "self-distilled",
        counted(len(found["runs"])),
    )  # fmt: skip
    return ", ".join(part for part in parts if part)


def _mean(found: Benchmark, way: str, what: str) -> float:
    return statistics.fmean(run["rows"][way][what] for run in found["runs"])


def _kept(found: Benchmark) -> str:
    interval = ", ".join(percent(end, ".1f") for end in found["interval"] or ())
    return percent(found["share_of_gain_kept"], ".1f") + (f" [{interval}]" if interval else "")


def _on_validation(found: Benchmark) -> str:
    if not all(run.get("val") for run in found["runs"]):
        return "–"
    one, some, full = (statistics.fmean(run["val"]["accuracy"][i] for run in found["runs"]) for i in range(3))
    return percent((some - one) / (full - one), ".1f")
