"""Prediction time of a pruned TransNet relative to its base model: a ratio of medians, measured in turn in one process.

    python benchmarks/pruned_latency.py --out results/pruned_latency_cpu.json
    python benchmarks/pruned_latency.py --device cuda --out results/pruned_latency_h200.json

``pruned`` is the identity head: the base model's own class and layers, so 1 is expected. ``again`` is a copy of the
base model that is measured in the same way: the distance of its ratio from 1 shows the machine's noise, and a run
with more than 0.02 is not conclusive. ``full`` is the TransNet with all heads. On a CPU both wall-clock and processor
time are kept, because the second excludes the time of other programs.
"""

import argparse
import copy
import json
import random
import statistics
import time
from pathlib import Path

import torch
from torch import nn

from environment import environment
from transnet import TransNet
from transnet.backbones import create

CASES = {
    "resnet18-cifar": ("resnet18-cifar", 32, 8),
    "ResNet-18 of timm": ("timm:resnet18", 224, 1),
}


def seconds(model: nn.Module, x: torch.Tensor) -> dict[str, float]:
    start, busy = time.perf_counter(), time.process_time()
    model(x)
    if x.is_cuda:
        torch.cuda.synchronize()
        return {"wall": time.perf_counter() - start}
    return {"wall": time.perf_counter() - start, "processor": time.process_time() - busy}


@torch.inference_mode()
def compare(models: dict[str, nn.Module], x: torch.Tensor, rounds: int) -> dict[str, dict[str, float]]:
    taken: dict[str, list[dict[str, float]]] = {name: [] for name in models}
    names, order = list(models), random.Random(0)
    for i in range(rounds + 5):
        for name in order.sample(names, len(names)):  # a fixed order would give each the same predecessor
            elapsed = seconds(models[name], x)
            if i >= 5:  # warm by now
                taken[name].append(elapsed)
    result = {}
    for clock in taken["base"][0]:
        medians = {name: statistics.median(elapsed[clock] for elapsed in times) for name, times in taken.items()}
        ratios = {f"{name}_ratio": medians[name] / medians["base"] for name in names if name != "base"}
        result[clock] = {**{f"{name}_ms": 1e3 * value for name, value in medians.items()}, **ratios}
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--batch", type=int, help="images a batch; by default a few on a CPU, 256 on a GPU")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--transforms", default="r0,r1")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.manual_seed(0)
    rows = []
    for title, (name, side, few) in CASES.items():
        batch = options.batch or (256 if options.device.startswith("cuda") else few)
        to = {"device": options.device, "dtype": getattr(torch, options.dtype)}
        base = create(name, num_classes=100).eval().to(**to)
        net = TransNet(base, options.transforms).eval()
        models = {"base": base, "pruned": net.prune(), "again": copy.deepcopy(base), "full": net}
        x = torch.randn(batch, 3, side, side).to(**to)
        row = {"model": title, "side": side, "batch": batch, "rounds": options.rounds}
        for clock, found in compare(models, x, options.rounds).items():
            rows.append({**row, "clock": clock, **found})
            noise = f"the same model again {found['again_ratio']:.3f}"
            print(f"{title}, {clock}: pruned/base {found['pruned_ratio']:.3f}, {noise}", flush=True)
    result = {**environment(options.device), "dtype": options.dtype, "transforms": options.transforms, "rows": rows}
    if options.out:
        options.out.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
