"""Prediction time of a pruned TransNet relative to its base model: a ratio of medians, measured in turn in one process.

    python benchmarks/pruned_latency.py --out results/pruned_latency_cpu.json
    python benchmarks/pruned_latency.py --device cuda --out results/pruned_latency_h200.json

``pruned`` is the identity head: the base model's own class and layers, so 1 is expected. ``again`` is a copy of the
base model that is measured in the same way: the distance of its ratio from 1 shows the machine's noise, and a run
with more than 0.02 is not conclusive. ``full`` is the TransNet with all heads. On a CPU both wall-clock and processor
time are kept, because the second excludes the time of other programs.
"""

import copy
import statistics
from functools import partial

import torch
from torch import nn

from measuring import in_turn, options, write
from transnet import TransNet
from transnet.backbones import create

CASES = {
    "resnet18-cifar": ("resnet18-cifar", 32, 8),
    "ResNet-18 of timm": ("timm:resnet18", 224, 1),
}


@torch.inference_mode()
def compare(models: dict[str, nn.Module], x: torch.Tensor, rounds: int) -> dict[str, dict[str, float]]:
    taken = in_turn({name: partial(model, x) for name, model in models.items()}, rounds, x.device.type)
    result = {}
    for clock in taken["base"][0]:
        medians = {name: statistics.median(elapsed[clock] for elapsed in times) for name, times in taken.items()}
        ratios = {f"{name}_ratio": medians[name] / medians["base"] for name in models if name != "base"}
        result[clock] = {**{f"{name}_ms": 1e3 * value for name, value in medians.items()}, **ratios}
    return result


def main() -> None:
    parser = options(__doc__, device="cpu", rounds=200, transforms="r0,r1")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--batch", type=int, help="images a batch; by default a few on a CPU, 256 on a GPU")
    args = parser.parse_args()
    torch.manual_seed(0)
    rows = []
    for title, (name, side, few) in CASES.items():
        batch = args.batch or (256 if args.device.startswith("cuda") else few)
        to = {"device": args.device, "dtype": getattr(torch, args.dtype)}
        base = create(name, num_classes=100).eval().to(**to)
        net = TransNet(base, args.transforms).eval()
        models = {"base": base, "pruned": net.prune(), "again": copy.deepcopy(base), "full": net}
        x = torch.randn(batch, 3, side, side).to(**to)
        row = {"model": title, "side": side, "batch": batch, "rounds": args.rounds}
        for clock, found in compare(models, x, args.rounds).items():
            rows.append({**row, "clock": clock, **found})
            noise = f"the same model again {found['again_ratio']:.3f}"
            print(f"{title}, {clock}: pruned/base {found['pruned_ratio']:.3f}, {noise}", flush=True)
    write(args.out, args.device, {"dtype": args.dtype, "transforms": args.transforms, "rows": rows})


if __name__ == "__main__":
    main()
