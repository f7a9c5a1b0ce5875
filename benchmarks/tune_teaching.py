"""Which heads beside r0, and how much of their teaching: chosen on training images alone.

    python benchmarks/tune_teaching.py TRAINING_IMAGES --out tuned

TRAINING_IMAGES is a data set without a test split, such as CIFAR-100's training shards alone: a fifth of it is cut off
and judges. Every candidate is trained with half the recipe's epochs, the plain network twice as long, and all share
their seeds. Calling it again goes on where it stopped. OUT/tune_teaching.json keeps every run, and OUT/outputs what
their heads said of the images that judge, plain and mirrored, to look at rules of prediction without training again.
"""

import argparse
import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from environment import environment
from transnet.study.execute import Here, execute
from transnet.study.plan import PlannedRun, Study
from transnet.train.config import configured
from transnet.train.evaluation import collect
from transnet.train.run import Run

# Name: seeds, what differs. Those that matter most come first: time may run out.
CANDIDATES = {
    "base-long": (1, {"transforms": "r0"}),
    "r0,r1": (2, {}),
    "r0,m3": (2, {}),
    "r0,r1 taught 1": (2, {"distillation": 1.0}),
    "r0,m3 taught 1": (2, {"distillation": 1.0}),
    "r0,m3 taught 2": (2, {"distillation": 2.0}),
    "r0,m3,r2 taught 1": (1, {"distillation": 1.0}),
    "r0,m3,r2 taught 2": (1, {"distillation": 2.0}),
    "r0,r1,r2": (1, {}),
    "r0,m0 taught 1": (1, {"distillation": 1.0}),
    "r0,m3 taught 4": (1, {"distillation": 4.0}),
    "r0,m3 taught 1 bn-separate": (1, {"distillation": 1.0, "bn": "separate"}),
}


def planned(args: argparse.Namespace) -> list[PlannedRun]:
    """A run for every candidate and seed, seed by seed."""
    runs = []
    for name, (seeds, change) in CANDIDATES.items():
        for seed in range(seeds):
            folder = f"{name.replace(' ', '_').replace(',', '-')}_seed{seed}"
            settings = {"transforms": name.split()[0], **change}
            config = configured(
                Path(args.data).name, str(args.out / "runs" / folder), model=args.model, seed=seed,
                epochs=args.epochs * (2 if name == "base-long" else 1), evaluate_every=0, checkpoint_every=10_000,
                tensorboard=False, resume=True, device=args.device, **settings,
            )  # fmt: skip
            runs.append(PlannedRun(folder, name, seed, config, args.data))
    return sorted(runs, key=lambda run: run.seed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--model")
    parser.add_argument("--jobs", type=int)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    runs = planned(args)
    study = Study("all", data=args.data, out=str(args.out), jobs=args.jobs, device=args.device)
    outcome = execute(runs, Here(study))
    for name, error in outcome.failed.items():
        print(f"{name}: {error}")
    (args.out / "outputs").mkdir(exist_ok=True)
    rows = []
    for run in runs:
        if not Run(run.config.out).finished:
            continue
        result = Run(run.config.out).read_result()
        row = {"candidate": run.kind, "seed": run.seed, "epochs": run.config.epochs}
        for view in ("test", "test_flip"):
            row["alone" if view == "test" else "mirrored"] = {
                "pruned": result[view]["pruned"]["accuracy"],
                "full": result[view]["full"]["accuracy"],
                "heads": [head["accuracy"] for head in result[view]["heads"]],
                "pruned_loss": result[view]["pruned"]["loss"],
            }
        rows.append({**row, "seconds": result["train_seconds"], "judged_by": result["test"]["pruned"]["n"]})
        kept = args.out / "outputs" / f"{run.name}.safetensors"
        if not kept.exists():
            said = collect(run.config.out, data=args.data, device=args.device)
            both = torch.stack([view.half() for view in said.views])
            save_file({"views": both, "labels": said.labels}, kept)
        print(
            f"{run.name:<40} alone {100 * row['alone']['pruned']:.2f} {100 * row['alone']['full']:.2f}"
            f"  mirrored {100 * row['mirrored']['pruned']:.2f} {100 * row['mirrored']['full']:.2f}"
            f"  {result['train_seconds']:.0f} s"
        )
    about = environment("cuda" if args.device == "auto" else args.device)
    content = {**about, "split": "a fifth of the training images judges", "rows": rows}
    (args.out / "tune_teaching.json").write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
