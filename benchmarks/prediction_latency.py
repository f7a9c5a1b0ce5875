"""Prediction time of a pruned, and of a folded network relative to the plain network.

    python benchmarks/prediction_latency.py pruned --out results/pruned_latency_cpu.json
    python benchmarks/prediction_latency.py fold --device cuda --out results/fold_latency_h200.json

All networks run in turn, in random order, in one process; the ratios are those of the median times. On a CPU both
wall-clock and processor time are kept, because the second excludes the time of other programs.

``pruned`` is the identity head: the base model's own class and layers, so 1 is expected. ``again`` is a copy of the
base model: the distance of its ratio from 1 shows the machine's noise, and a run with more than 0.02 is not conclusive.
``full`` is the TransNet with all heads. For ``fold``, r2 moves windows on both axes and r1 on one, so these two
represent all elements.
"""

import copy
from collections.abc import Iterator
from functools import partial

import torch
from torch import nn

from measuring import medians, options, write
from transnet import TransNet
from transnet.backbones import create
from transnet.folding.fold import fold

CASES = {"resnet18-cifar": (32, 8), "timm:resnet18": (224, 1)}  # image size, and images per batch on a CPU


def pruned(plain: nn.Module, side: int) -> Iterator[tuple[dict[str, object], dict[str, nn.Module]]]:
    net = TransNet(plain, "r0,r1").eval()
    yield {"side": side}, {"base": plain, "pruned": net.prune(), "again": copy.deepcopy(plain), "full": net}


def folded(plain: nn.Module, side: int) -> Iterator[tuple[dict[str, object], dict[str, nn.Module]]]:
    for t in ("r1", "r2"):
        yield {"transform": t}, {"plain": plain, "folded": fold(plain, t, side)}


@torch.inference_mode()
def main() -> None:
    parser = options(__doc__, device="cpu", rounds=200)
    parser.add_argument("what", choices=["pruned", "fold"])
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--batch", type=int, help="images per batch; by default few on a CPU, 256 on a GPU")
    parser.add_argument("--channels-last", action="store_true")
    args = parser.parse_args()
    memory = torch.channels_last if args.channels_last else torch.contiguous_format
    to = {"device": args.device, "dtype": getattr(torch, args.dtype), "memory_format": memory}
    torch.manual_seed(0)
    rows = []
    for name, (side, few) in CASES.items():
        batch = args.batch or (256 if args.device.startswith("cuda") else few)
        plain = create(name, num_classes=100).eval().to(**to)
        x = torch.randn(batch, 3, side, side).to(**to)
        for about, models in (pruned if args.what == "pruned" else folded)(plain, side):
            times = medians({way: partial(model, x) for way, model in models.items()}, args.rounds, args.device)
            for clock, found in times.items():
                first, *others = found
                row = {"model": name, **about, "batch": batch, "rounds": args.rounds, "clock": clock}
                row |= {f"{way}_ms": 1e3 * seconds for way, seconds in found.items()}
                ratios = {f"{way}_ratio" if args.what == "pruned" else "ratio": found[way] / found[first]
                          for way in others}  # fmt: skip
                rows.append(row | ratios)
                print(name, *about.values(), clock, ratios, flush=True)
    write(args.out, args.device, {"dtype": args.dtype, "channels_last": args.channels_last, "rows": rows})


if __name__ == "__main__":
    main()
