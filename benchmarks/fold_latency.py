"""What folding costs at prediction time: a folded ResNet-18 against the plain one, in one process.

    python benchmarks/fold_latency.py --out results/fold_latency_cpu.json
    python benchmarks/fold_latency.py --device cuda --out results/fold_latency_h200.json

The two run in turn, in random order, in evaluation mode; the figure is the ratio of their median times.
r2 moves windows on both axes and r1 on one, so these two represent all elements.
"""

import statistics

import torch
import torchvision
from torch import nn

from measuring import in_turn, options, write
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


@torch.inference_mode()
def compare(plain: nn.Module, folded: nn.Module, x: torch.Tensor, rounds: int) -> dict[str, float]:
    times = in_turn({"plain": lambda: plain(x), "folded": lambda: folded(x)}, rounds, x.device.type)
    plain_s, folded_s = (statistics.median(t["wall"] for t in times[name]) for name in ("plain", "folded"))
    return {"plain_ms": 1e3 * plain_s, "folded_ms": 1e3 * folded_s, "ratio": folded_s / plain_s}


def main() -> None:
    parser = options(__doc__, device="cpu", rounds=100)
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--batch", type=int, help="images a batch; by default a few on a CPU, 256 on a GPU")
    parser.add_argument("--channels-last", action="store_true")
    args = parser.parse_args()
    memory = torch.channels_last if args.channels_last else torch.contiguous_format
    torch.manual_seed(0)
    rows = []
    for name, (build, side, few) in CASES.items():
        batch = args.batch or (256 if args.device.startswith("cuda") else few)
        plain = build().eval().to(args.device, getattr(torch, args.dtype), memory_format=memory)
        x = torch.randn(batch, 3, side, side).to(args.device, getattr(torch, args.dtype), memory_format=memory)
        for t in ("r1", "r2"):
            row = {"model": name, "transform": t, "batch": batch, "rounds": args.rounds}
            rows.append({**row, **compare(plain, fold(plain, t, side), x, args.rounds)})
            print(f"{name}, {t}, batch {batch}: ratio {rows[-1]['ratio']:.3f}", flush=True)
    write(args.out, args.device, {"dtype": args.dtype, "channels_last": args.channels_last, "rows": rows})


if __name__ == "__main__":
    main()
