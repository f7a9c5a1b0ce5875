"""What folding costs at prediction time: a folded ResNet-18 against the plain one, in one process.

    python benchmarks/fold_latency.py --out results/fold_latency_cpu.json
    python benchmarks/fold_latency.py --device cuda --out results/fold_latency_h200.json

The two run in turn, in alternating order, in evaluation mode; the figure is the ratio of their median times.
r2 moves windows on both axes and r1 on one, so these two represent all elements.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import torch
import torchvision
from torch import nn

from environment import environment
from transnet.folding.fold import fold


def resnet18_for_32() -> nn.Module:
    model = torchvision.models.resnet18(num_classes=100)
    model.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
    model.maxpool = nn.Identity()
    return model


CASES = {
    "ResNet-18 for 32×32": (resnet18_for_32, 32, 8),
    "ResNet-18 for 224×224": (torchvision.models.resnet18, 224, 1),
}


def seconds(model: nn.Module, x: torch.Tensor) -> float:
    start = time.perf_counter()
    model(x)
    if x.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - start


@torch.inference_mode()
def compare(plain: nn.Module, folded: nn.Module, x: torch.Tensor, rounds: int) -> dict[str, float]:
    times: dict[str, list[float]] = {"plain": [], "folded": []}
    for i in range(rounds + 5):
        order = [("plain", plain), ("folded", folded)]
        for name, model in order if i % 2 else order[::-1]:
            elapsed = seconds(model, x)
            if i >= 5:  # warm by now
                times[name].append(elapsed)
    plain_s, folded_s = statistics.median(times["plain"]), statistics.median(times["folded"])
    return {"plain_ms": 1e3 * plain_s, "folded_ms": 1e3 * folded_s, "ratio": folded_s / plain_s}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--batch", type=int, help="images a batch; by default a few on a CPU, 256 on a GPU")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    memory = torch.channels_last if options.channels_last else torch.contiguous_format
    torch.manual_seed(0)
    rows = []
    for name, (build, side, few) in CASES.items():
        batch = options.batch or (256 if options.device.startswith("cuda") else few)
        plain = build().eval().to(options.device, getattr(torch, options.dtype), memory_format=memory)
        x = torch.randn(batch, 3, side, side).to(options.device, getattr(torch, options.dtype), memory_format=memory)
        for t in ("r1", "r2"):
            row = {"model": name, "transform": t, "batch": batch, "rounds": options.rounds}
            rows.append({**row, **compare(plain, fold(plain, t, side), x, options.rounds)})
            print(f"{name}, {t}, batch {batch}: ratio {rows[-1]['ratio']:.3f}", flush=True)
    result = {**environment(options.device), "dtype": options.dtype, "channels_last": options.channels_last}
    if options.out:
        options.out.write_text(json.dumps({**result, "rows": rows}, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
