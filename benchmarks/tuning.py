"""What the scripts that choose settings share: train candidates on training images alone, judge by those cut off."""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from environment import environment
from transnet.runs.config import TrainConfig
from transnet.runs.folder import Run
from transnet.runs.records import encode
from transnet.study.execute import execute
from transnet.study.local import LocalProcesses
from transnet.study.plan import PlannedRun
from transnet.train.evaluate_runs import collect

Candidates = Mapping[str, tuple[int, Mapping[str, Any]]]


def options(doc: str | None, *, epochs: int) -> argparse.ArgumentParser:
    """The options that all of them have."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="a data set without a test split: a fifth of it is cut off and judges")
    parser.add_argument("--epochs", type=int, default=epochs)
    parser.add_argument("--model")
    parser.add_argument("--jobs", type=int)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, required=True)
    return parser


def planned(args: argparse.Namespace, candidates: Candidates, **common: Any) -> list[PlannedRun]:
    """A run for every candidate and seed, seed by seed.

    Args:
        args: of `options`.
        candidates: by name, how many seeds, and what differs; ``longer`` is how many times the epochs.
        common: settings of all of them.
    """
    runs = []
    for name, (seeds, change) in candidates.items():
        settings = {**common, **change}
        longer = settings.pop("longer", 1)
        for seed in range(seeds):
            folder = f"{name.replace(' ', '_').replace(',', '-')}_seed{seed}"
            config = TrainConfig.for_data(
                Path(args.data).name, str(args.out / "runs" / folder), model=args.model, seed=seed,
                epochs=args.epochs * longer, evaluate_every=0, checkpoint_every=10_000, tensorboard=False, resume=True,
                device=args.device, **settings,
            )  # fmt: skip
            runs.append(PlannedRun(folder, name, seed, config, args.data))
    return sorted(runs, key=lambda run: run.seed)


def judge(runs: list[PlannedRun], args: argparse.Namespace, file: str) -> None:
    """Train the runs, and write OUT/FILE with a row for each and OUT/outputs with the heads' logits."""
    executor = LocalProcesses(args.out, device=args.device, jobs=args.jobs)
    outcome = execute(runs, executor)
    for name, error in outcome.failed.items():
        print(f"{name}: {error}")
    (args.out / "outputs").mkdir(exist_ok=True)
    rows = [_row(run, args) for run in runs if Run(run.config.out).finished]
    about = environment("cuda" if args.device == "auto" else args.device)
    content = {**about, "rows": rows, "failed": outcome.failed}
    (args.out / file).write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def _row(run: PlannedRun, args: argparse.Namespace) -> dict[str, Any]:
    """A finished run's figures; its outputs are written beside."""
    result = encode(Run(run.config.out).result())
    row: dict[str, Any] = {"candidate": run.kind, "seed": run.seed, "epochs": run.config.epochs}
    views = {name: view for name, view in (("alone", "test"), ("mirrored", "test_flip")) if result[view]}
    for name, view in views.items():
        row[name] = {
            "pruned": result[view]["pruned"]["accuracy"],
            "full": result[view]["full"]["accuracy"],
            "heads": [head["accuracy"] for head in result[view]["heads"]],
            "pruned_loss": result[view]["pruned"]["loss"],
        }
    kept = args.out / "outputs" / f"{run.name}.safetensors"
    if not kept.exists():
        collected = collect(run.config.out, data=args.data, device=args.device)
        both = torch.stack([view.half() for view in collected.views])
        save_file({"views": both, "labels": collected.labels}, kept)
    shown = (f"{name} {100 * row[name]['pruned']:.2f} {100 * row[name]['full']:.2f}" for name in views)
    print(f"{run.name:<40} {'  '.join(shown)}  {result['train_seconds']:.0f} s")
    sizes = result["config"]["data"]["sizes"]
    return {**row, "seconds": result["train_seconds"], "trained_on": sizes["train"], "judged_by": sizes["test"]}
