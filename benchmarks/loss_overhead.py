"""What TransNet costs over a hand-written loop: time and memory of loss + backward, ResNet-18 for 32×32.

    python benchmarks/loss_overhead.py --out results/loss_overhead_cpu.json
    python benchmarks/loss_overhead.py --device cuda --batch 512 --out results/loss_overhead_h200.json

The loop concatenates the transformed copies and runs them in one forward. Both run in turn in one process, in random
order; the ratio is that of the medians. Memory is the peak of a step's allocations above the parameters.
"""

import gc
import itertools
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from measuring import medians, options, write
from transnet import TransNet, backbones

TURNS = {"r0": 0, "r1": 1, "r2": 2, "r3": 3}


class ByHand(nn.Module):
    """A loop by hand that is written for speed."""

    def __init__(self, model, turns):
        super().__init__()
        features = model.fc.in_features
        self.turns = turns
        self.heads = nn.ModuleList(nn.Linear(features, model.fc.out_features) for _ in turns)
        model.fc = nn.Identity()
        self.model = model

    def loss(self, x, y):
        copies = torch.cat([torch.rot90(x, k, (2, 3)) for k in self.turns])
        copies = copies.contiguous(memory_format=torch.channels_last)
        parts = self.model(copies).chunk(len(self.turns))
        return sum(F.cross_entropy(g(part), y) for g, part in zip(self.heads, parts, strict=True)) / len(parts)


def build(kind, m, device):
    names = list(TURNS)[:m]
    model = backbones.create("resnet18-cifar", num_classes=100)
    net = TransNet(model, names) if kind == "transnet" else ByHand(model, [TURNS[n] for n in names])
    return net.to(device, memory_format=torch.channels_last)


def batch(size, device):
    x = torch.randn(size, 3, 32, 32, device=device).contiguous(memory_format=torch.channels_last)
    return x, torch.randint(100, (size,), device=device)


def step(net, x, y, device):
    net.zero_grad(set_to_none=True)
    with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
        loss = net.loss(x, y)
    loss.backward()


def peak_memory(kind, m, size, device):
    net, (x, y) = build(kind, m, device), batch(size, device)
    step(net, x, y, device)
    net.zero_grad(set_to_none=True)
    gc.collect()
    if device == "cpu":
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
            step(net, x, y, device)
        found = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
        found.sort(key=lambda event: event.start_ns())
        return max(itertools.accumulate(event.nbytes() for event in found))
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step(net, x, y, device)
    return torch.cuda.max_memory_allocated() - before


def main():
    args = options(__doc__, device="cpu", batch=32, repeats=15).parse_args()
    torch.backends.cudnn.benchmark = True
    rows = []
    for m in (1, 2, 3, 4):
        nets = {kind: build(kind, m, args.device) for kind in ("transnet", "by_hand")}
        x, y = batch(args.batch, args.device)
        steps = {kind: partial(step, net, x, y, args.device) for kind, net in nets.items()}
        seconds = medians(steps, args.repeats, args.device)["wall"]
        memory = {kind: peak_memory(kind, m, args.batch, args.device) for kind in nets}
        row = {
            "m": m, "seconds": seconds, "time_ratio": seconds["transnet"] / seconds["by_hand"],
            "bytes": memory, "memory_ratio": memory["transnet"] / memory["by_hand"],
        }  # fmt: skip
        rows.append(row)
        print(f"m={m}  time {row['time_ratio']:.3f}×  memory {row['memory_ratio']:.3f}×", flush=True)
    write(args.out, args.device, {"rows": rows, "batch": args.batch, "repeats": args.repeats})


if __name__ == "__main__":
    main()
