"""Early exit against one head and all heads: accuracy, passes, and images a second.

    python benchmarks/anytime_speed.py runs/t3 --out results/anytime_cpu.json
    python benchmarks/anytime_speed.py runs/t3-s* --device cuda --batch 1024 --passes 1.38 --out results/anytime.json

Each RUN is a finished one with a validation split and its data; several are repetitions of one another. A run's
threshold is calibrated on its validation split, for staying within so many points of all heads, or for so many passes.
Accuracy and speed are then measured on the test split, each way of predicting in turn, and the median over the rounds
is kept. The images lie on the device before the clock starts. What share of all heads' gain is kept has an interval
by bootstrap over the test images, the same for all runs: a gain of a hundred images is a noisy one.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from measuring import options, write
from transnet import anytime, load
from transnet.early_exit import calibrate, curve
from transnet.report.curves import draw_early_exit
from transnet.runs.description import Description
from transnet.runs.folder import Run
from transnet.ship.models import Model
from transnet.train.evaluate_runs import collect, some_images

Way = Callable[[Tensor], tuple[Tensor, Tensor]]
WAYS = ("first head", "anytime", "full")
SETTINGS = (
    "model", "transforms", "seed", "epochs", "label_smoothing", "cutmix", "distillation", "pretrained", "image_size",
)  # fmt: skip


@torch.inference_mode()
def measure(way: Way, parts: tuple[Tensor, ...]) -> tuple[float, Tensor, Tensor]:
    """Seconds, classes and heads used over all images."""
    start = time.perf_counter()
    results = [way(part) for part in parts]
    classes, used = (torch.cat(values).cpu() for values in zip(*results, strict=True))
    return time.perf_counter() - start, classes, used


def share_kept(first: float, some: float, full: float) -> float | None:
    """Return the share of all heads' gain over the first head that is kept; None if they gain nothing."""
    return (some - first) / (full - first) if full > first else None


def interval(right: Sequence[Tensor], *, draws: int = 2000) -> tuple[float, float] | None:
    """95 % of `share_kept` over bootstrap draws of the test images; None if a draw has no gain.

    Args:
        right: of each run, (N, 3): whether the first head, anytime prediction and all heads are right.
        draws: how many.
    """
    counts = torch.stack(list(right)).double().mean(0)  # all runs saw the same images
    n, generator = len(counts), torch.Generator().manual_seed(0)
    drawn = torch.stack([counts[torch.randint(n, (n,), generator=generator)].mean(0) for _ in range(draws)])
    shares = [share_kept(*means) for means in drawn.tolist()]
    if any(share is None for share in shares):
        return None
    low, high = torch.tensor(shares).double().quantile(torch.tensor([0.025, 0.975]).double()).tolist()
    return low, high


def of_one(path: str, args: argparse.Namespace, figure: Path | None) -> tuple[dict[str, object], Tensor]:
    """What the result says of a run, and which test images each way of predicting had right; draw its curve there."""
    run = Run(path)
    about = Description.of_run(run.settings(), str(run.config))
    found = collect(path, data=args.data, split="val", device=args.device)
    val, val_labels = found.views[0], found.labels
    confidence = calibrate(val, val_labels, within=args.within, passes=args.passes)
    net = load(path)
    model = Model.of(net, about, path)
    images = some_images(path, 10**9, data=args.data)
    x = torch.stack([model.normalise(model.crop(image)) for image in images])
    test = collect(path, data=args.data, device=args.device)
    labels = test.labels
    dtype = torch.bfloat16 if args.bf16 else torch.float32
    net = net.to(args.device, dtype, memory_format=torch.channels_last).eval()
    parts = x.to(args.device, dtype, memory_format=torch.channels_last).split(args.batch)

    def fixed(heads: str | None) -> Way:
        number = 1 if heads else len(net.transforms)
        return lambda part: (net.predict(part, heads=heads).argmax(-1), torch.full((len(part),), number))

    def early(part: Tensor) -> tuple[Tensor, Tensor]:
        probabilities, used = anytime(net, part, confidence=confidence)
        return probabilities.argmax(-1), used

    ways = dict(zip(WAYS, (fixed(net.transforms[0]), early, fixed(None)), strict=True))
    times: dict[str, list[float]] = {name: [] for name in ways}
    rows, right = {}, {}
    for i in range(args.rounds + 2):
        for name, way in ways.items():
            elapsed, classes, used = measure(way, parts)
            if i < 2:  # warming up
                continue
            times[name].append(elapsed)
            right[name] = classes == labels
            rows[name] = {"accuracy": float(right[name].double().mean()), "passes": float(used.double().mean())}
    for name, row in rows.items():
        row["images_per_second"] = len(labels) / statistics.median(times[name])
    on_val = curve(val, val_labels, torch.tensor([0.0, confidence, 1.0], dtype=torch.float64))
    kept = share_kept(*(rows[name]["accuracy"] for name in WAYS))
    print(f"{run.path.name}: " + ", ".join(
        f"{name} {100 * row['accuracy']:.2f} at {row['passes']:.3f} passes, {row['images_per_second']:,.0f} images/s"
        for name, row in rows.items()
    ) + f"; keeps {kept}", flush=True)  # fmt: skip
    if figure:
        draw_early_exit(curve(test.views[0], labels), figure, chosen=confidence, title=f"{about.model}, test split")
    trained = vars(run.settings().train)
    return {
        "run": run.path.name, **{name: trained[name] for name in SETTINGS}, "confidence": confidence,
        "share_of_gain_kept": kept, "rows": rows, "n_val": len(val_labels), "n_test": len(labels),
        "val": {
            "accuracy": on_val.accuracy.tolist(), "passes": on_val.passes.tolist(),
            "share_of_gain_kept": share_kept(*on_val.accuracy.tolist()),
        },
    }, torch.stack([right[name] for name in WAYS], 1)  # fmt: skip


def main() -> None:
    parser = options(__doc__, device="cpu", batch=256, rounds=9)
    parser.add_argument("runs", nargs="+")
    parser.add_argument("--data", help="where the runs' data is now")
    parser.add_argument("--within", type=float, default=0.1, help="points of accuracy that may be lost")
    parser.add_argument("--passes", type=float, help="instead: passes per image that may be spent")
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--figure", type=Path, help="draw the first run's accuracy/cost curve on the test split here")
    args = parser.parse_args()
    figures = [args.figure] + [None] * (len(args.runs) - 1)
    measured = [of_one(path, args, figure) for path, figure in zip(args.runs, figures, strict=True)]
    right = [each for _, each in measured]
    kept = share_kept(*torch.stack(right).double().mean((0, 1)).tolist())
    result = {
        "within_points_on_val": None if args.passes else args.within,
        "passes_on_val": args.passes, "batch": args.batch, "dtype": "bfloat16" if args.bf16 else "float32",
        "rounds": args.rounds, "share_of_gain_kept": kept, "interval": interval(right),
        "runs": [about for about, _ in measured],
    }  # fmt: skip
    print(f"all runs: keep {kept}, 95 % interval {result['interval']}")
    write(args.out, args.device, result)


if __name__ == "__main__":
    main()
