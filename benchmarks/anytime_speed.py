"""Early exit compared with one head and all heads: accuracy, passes, and images per second.

    python benchmarks/anytime_speed.py runs/t3 --out results/anytime_cpu.json
    python benchmarks/anytime_speed.py runs/t3-s* --device cuda --batch 1024 --passes 1.38 --out results/anytime.json

Each RUN is a finished one with a validation split and its data; several are repetitions of one another. A run's
threshold is calibrated on its validation split: to lose at most so many points of all heads' accuracy, or for so many
passes. Accuracy and speed are then measured on the test split, with the images on the device before the clock starts.
The share of all heads' gain that is kept has an interval by bootstrap over the test images, which are the same for all
runs: all heads gain few images, so the share is noisy.
"""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from measuring import medians, options, write
from transnet import anytime, load
from transnet.early_exit import calibrate, curve
from transnet.report.curves import draw_early_exit
from transnet.runs.description import Description
from transnet.runs.folder import Run
from transnet.ship.models import Model
from transnet.train.evaluate_runs import collect, some_images

SETTINGS = (
    "model", "transforms", "seed", "epochs", "label_smoothing", "cutmix", "distillation", "pretrained", "image_size",
)  # fmt: skip


def share_kept(first: float, some: float, full: float) -> float | None:
    """Return the share of all heads' gain over the first head that is kept; None if they gain nothing."""
    return (some - first) / (full - first) if full > first else None


def interval(right: Sequence[Tensor], *, draws: int = 2000) -> tuple[float, float] | None:
    """95 % of `share_kept` over bootstrap draws of the test images; None if a draw has no gain.

    Args:
        right: for each run, (N, 3): whether the first head, early exit and all heads are right.
        draws: how many.
    """
    counts = torch.stack(list(right)).double().mean(0)  # all runs have the same images
    n, generator = len(counts), torch.Generator().manual_seed(0)
    drawn = torch.stack([counts[torch.randint(n, (n,), generator=generator)].mean(0) for _ in range(draws)])
    shares = [share_kept(*means) for means in drawn.tolist()]
    if any(share is None for share in shares):
        return None
    low, high = torch.tensor(shares).double().quantile(torch.tensor([0.025, 0.975]).double()).tolist()
    return low, high


@torch.inference_mode()
def measure_run(path: str, args: argparse.Namespace, figure: Path | None) -> tuple[dict[str, object], Tensor]:
    """One run's row of the results, and which test images each way of predicting has right; draw its curve."""
    run = Run(path)
    about = Description.of_run(run.settings(), str(run.config))
    val = collect(path, data=args.data, split="val", device=args.device)
    test = collect(path, data=args.data, device=args.device)
    confidence = calibrate(val.views[0], val.labels, within=args.within, passes=args.passes)
    net = load(path)
    model = Model.of(net, about, path)
    dtype = torch.bfloat16 if args.bf16 else torch.float32
    x = torch.stack([model.normalise(model.crop(image)) for image in some_images(path, 10**9, data=args.data)])
    parts = x.to(args.device, dtype, memory_format=torch.channels_last).split(args.batch)
    net = net.to(args.device, dtype, memory_format=torch.channels_last).eval()

    def fixed(heads: str | None) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
        number = 1 if heads else len(net.transforms)
        return lambda part: (net.predict(part, heads=heads), torch.full((len(part),), number))

    ways = {
        "first head": fixed(net.transforms[0]), "anytime": lambda part: anytime(net, part, confidence=confidence),
        "full": fixed(None),
    }  # fmt: skip
    steps = {name: lambda way=way: [way(part) for part in parts] for name, way in ways.items()}
    seconds = medians(steps, args.rounds, args.device, warm_up=2)["wall"]
    rows, right = {}, []
    for name, step in steps.items():
        scores, used = (torch.cat(values).cpu() for values in zip(*step(), strict=True))
        right.append(scores.argmax(-1) == test.labels)
        rows[name] = {
            "accuracy": float(right[-1].double().mean()), "passes": float(used.double().mean()),
            "images_per_second": len(x) / seconds[name],
        }  # fmt: skip
    kept = share_kept(*(row["accuracy"] for row in rows.values()))
    print(run.path.name, *(f"{name} {row}" for name, row in rows.items()), f"keeps {kept}", sep="\n  ", flush=True)
    if figure:
        draw_early_exit(curve(test.views[0], test.labels), figure, title=f"{about.model}, test split")
    trained = vars(run.settings().train)
    on_val = curve(val.views[0], val.labels, torch.tensor([0.0, confidence, 1.0], dtype=torch.float64))
    return {
        "run": run.path.name, **{name: trained[name] for name in SETTINGS}, "confidence": confidence,
        "share_of_gain_kept": kept, "rows": rows, "n_val": len(val.labels), "n_test": len(test.labels),
        "val": {
            "accuracy": on_val.accuracy.tolist(), "passes": on_val.passes.tolist(),
            "share_of_gain_kept": share_kept(*on_val.accuracy.tolist()),
        },
    }, torch.stack(right, 1)  # fmt: skip


def main() -> None:
    parser = options(__doc__, device="cpu", batch=256, rounds=9, within=0.1)
    parser.add_argument("runs", nargs="+")
    parser.add_argument("--data", help="where the runs' data is now")
    parser.add_argument("--passes", type=float, help="passes per image that may be spent, instead of --within points")
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--figure", type=Path, help="draw the first run's accuracy/cost curve on the test split here")
    args = parser.parse_args()
    figures = [args.figure] + [None] * (len(args.runs) - 1)
    runs, right = zip(*(measure_run(path, args, figure) for path, figure in zip(args.runs, figures)), strict=True)
    kept = share_kept(*torch.stack(right).double().mean((0, 1)).tolist())
    result = {
        "within_points_on_val": None if args.passes else args.within,
        "passes_on_val": args.passes, "batch": args.batch, "dtype": "bfloat16" if args.bf16 else "float32",
        "rounds": args.rounds, "share_of_gain_kept": kept, "interval": interval(right), "runs": runs,
    }  # fmt: skip
    print(f"all runs: keep {kept}, 95 % interval {result['interval']}")
    write(args.out, args.device, result)


if __name__ == "__main__":
    main()
