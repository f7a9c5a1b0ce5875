"""Images a second of anytime prediction against one head and all heads: saved time, not only saved passes.

    python benchmarks/anytime_speed.py runs/t3 --out results/anytime_speed.json
    python benchmarks/anytime_speed.py runs/t3 --device cuda --batch 1024 --out results/anytime_speed_h200.json

RUN is a finished run with a validation split and its data. The threshold is calibrated on the validation split, for
staying within so many points of all heads, or for so many passes; accuracy and speed are then measured on the test
split, each way of predicting in turn, and the median over the rounds is kept. The images lie on the device before the
clock starts.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from environment import environment
from transnet import anytime, load
from transnet.ship.anytime import calibrate, curve, draw
from transnet.ship.models import model_of
from transnet.train.description import of_run
from transnet.train.evaluation import collect, some_images
from transnet.train.run import Run

Way = Callable[[Tensor], tuple[Tensor, Tensor]]


@torch.inference_mode()
def measure(way: Way, parts: tuple[Tensor, ...]) -> tuple[float, Tensor, Tensor]:
    """Seconds, classes and heads used over all images."""
    start = time.perf_counter()
    results = [way(part) for part in parts]
    classes, used = (torch.cat(values).cpu() for values in zip(*results, strict=True))
    return time.perf_counter() - start, classes, used


def share_kept(first: float, some: float, full: float) -> float | None:
    """What share of all heads' gain over the first is left; None where they gain nothing."""
    return (some - first) / (full - first) if full > first else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--within", type=float, default=0.1, help="points of accuracy that may be lost")
    parser.add_argument("--passes", type=float, help="instead: passes per image that may be spent")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--figure", type=Path, help="draw the accuracy/cost curve of the test split here")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    run = Run(options.run)
    about = of_run(run.read_config(), run.config)
    found = collect(options.run, split="val", device=options.device)
    val, val_labels = found.views[0], found.labels
    confidence = calibrate(val, val_labels, within=options.within, passes=options.passes)
    found = collect(options.run, device=options.device)
    test, labels = found.views[0], found.labels

    net = load(options.run)
    model = model_of(net, about, options.run)
    x = torch.stack([model.normalise(model.shown(image)) for image in some_images(options.run, len(labels))])
    dtype = torch.bfloat16 if options.bf16 else torch.float32
    net = net.to(options.device, dtype, memory_format=torch.channels_last).eval()
    parts = x.to(options.device, dtype, memory_format=torch.channels_last).split(options.batch)

    def fixed(heads: str | None) -> Way:
        number = 1 if heads else len(net.transforms)
        return lambda part: (net.predict(part, heads=heads).argmax(-1), torch.full((len(part),), number))

    def early(part: Tensor) -> tuple[Tensor, Tensor]:
        probabilities, used = anytime(net, part, confidence=confidence)
        return probabilities.argmax(-1), used

    ways = {"first head": fixed(net.transforms[0]), "anytime": early, "full": fixed(None)}
    times: dict[str, list[float]] = {name: [] for name in ways}
    rows = {}
    for i in range(options.rounds + 2):
        for name, way in ways.items():
            took, classes, used = measure(way, parts)
            if i < 2:  # warming up
                continue
            times[name].append(took)
            rows[name] = {"accuracy": float((classes == labels).double().mean()), "passes": float(used.double().mean())}
    for name, row in rows.items():
        row["images_per_second"] = len(labels) / statistics.median(times[name])
        print(f"{name}: {row['accuracy']:.4f} at {row['passes']:.2f} passes, {row['images_per_second']:,.0f} images/s")
    on_val = curve(val, val_labels, torch.tensor([0.0, confidence, 1.0], dtype=torch.float64))
    kept = share_kept(*(rows[name]["accuracy"] for name in ways))
    result = {
        **environment(options.device), "model": about.model, "transforms": list(about.transforms),
        "confidence": confidence, "within_points_on_val": None if options.passes else options.within,
        "passes_on_val": options.passes, "n_val": len(val_labels),
        "n_test": len(labels), "batch": options.batch, "dtype": str(dtype), "rounds": options.rounds,
        "share_of_gain_kept": kept, "rows": rows,
        "val": {
            "accuracy": on_val.accuracy.tolist(), "passes": on_val.passes.tolist(),
            "share_of_gain_kept": share_kept(*on_val.accuracy.tolist()),
        },
    }  # fmt: skip
    if options.figure:
        draw(curve(test, labels), options.figure, chosen=confidence, title=f"{about.model}, test split")
    if options.out:
        options.out.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
