"""Early exit: one pass for most images, more for the rest."""

import statistics
from typing import Any

from source import counted, grid, origin, read, remark

FILES = ("anytime_plain", "anytime_taught", "anytime_200_epochs", "anytime_wrn", "anytime_pretrained")
WAYS = ("first head", "anytime", "full")


def table() -> str:
    """What early exit keeps of all heads' gain, and what it saves."""
    files = {f"{name}_h200.json": read(f"{name}_h200.json") for name in FILES}
    first = next(iter(files.values()))["runs"][0]
    columns = ("networks", "first head %", "early exit %", "all heads %", "passes per image", "of the gain kept %")
    details = ("networks", "first head", "early exit", "all heads", "each run %", "validation %")
    rows = [
        (title(found), *(f"{100 * mean(found, way, 'accuracy'):.2f}" for way in WAYS),
         f"{mean(found, 'anytime', 'passes'):.3f}", kept(found))
        for found in files.values()
    ]  # fmt: skip
    more = [
        (title(found), *(f"{mean(found, way, 'images_per_second'):,.0f}" for way in WAYS),
         ", ".join(percent(run["share_of_gain_kept"]) for run in found["runs"]), on_validation(found))
        for found in files.values()
    ]  # fmt: skip
    return "\n\n".join([
        f"T3 runs on CIFAR-100. Of the training images, {first['n_val']:,} were cut off to set the threshold, for 1.38 "
        f"to 1.39 passes per image. The figures are those of the {first['n_test']:,} test images. All heads gain a few "
        "hundred images over the first head, so the share of the gain that is kept has a wide interval: 95 %, by "
        "bootstrap over the test images, for these networks and thresholds. It does not cover other seeds.",
        grid(columns, rows),
        "Images per second in the three ways, and the share of the gain that each run keeps and that is kept on the "
        "validation images:", grid(details, more),
        "\n".join(f"- {title(found)}: {origin(found, name)}.{remark(found)}" for name, found in files.items()),
    ])  # fmt: skip


def title(found: dict[str, Any]) -> str:
    """The settings that tell the networks apart."""
    run = found["runs"][0]
    parts = {
        run["model"]: True, "pretrained": run.get("pretrained"),
        f"{run.get('image_size')}×{run.get('image_size')} pixels": run.get("image_size"),
        f"{run['epochs']} epochs": True, f"CutMix α {run['cutmix']:g}": run["cutmix"],
        "no smoothing": not run["label_smoothing"], "self-distilled": run["distillation"],
        counted(len(found["runs"])): True,
    }  # fmt: skip
    return ", ".join(text for text, shown in parts.items() if shown)


def mean(found: dict[str, Any], way: str, what: str) -> float:
    """Over the runs, of a way to predict."""
    return statistics.fmean(run["rows"][way][what] for run in found["runs"])


def percent(share: float) -> str:
    return f"{100 * share:.1f}"


def kept(found: dict[str, Any]) -> str:
    """The share of the gain that is kept, with its interval if there is one."""
    low_and_high = found["interval"]
    interval = f" [{percent(low_and_high[0])}, {percent(low_and_high[1])}]" if low_and_high else ""
    return percent(found["share_of_gain_kept"]) + interval


def on_validation(found: dict[str, Any]) -> str:
    """The same share on the images that set the threshold."""
    if not all(run.get("val") for run in found["runs"]):
        return "–"
    one, some, full = (statistics.fmean(run["val"]["accuracy"][i] for run in found["runs"]) for i in range(3))
    return percent((some - one) / (full - one))
