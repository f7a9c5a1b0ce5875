"""How fast `transnet train` is on a GPU, and how accurate, beside a plain loop, timm's train.py and Lightning.

    python benchmarks/gpu_speed.py DATA --timm timm/train.py --parts speed --out results/gpu_speed.json    # 24 minutes
    python benchmarks/gpu_speed.py DATA --parts sharing --out results/gpu_speed.json                       # 3 minutes
    python benchmarks/gpu_speed.py DATA --parts accuracy --out results/gpu_speed.json                      # 16 minutes
    python benchmarks/gpu_speed.py digits --device cpu --quick --timm timm/train.py --out speed.json       # to try it

DATA is CIFAR-100, and the network a ResNet-18 for 32 pixels. The minutes are estimates for one H200; a group of speeds
takes up to 8 of them. A command can be stopped and repeated: it adds the groups and the runs that OUT lacks.

- ``speed``: image passes per second over whole epochs with data loading. The rows of a group (heads × batch size) are
  processes that take turns, an epoch each, in random order. Each compiles alone, in a first epoch that does not count.
  ``without NAME`` is this project without one of the rewrites in `transnet.train.inductor`. The other tools are tried
  with both modes of `torch.compile` in gpu_peers.py, and the faster one counts. timm's train.py has one head, and its
  cheapest random augmentation flips and resizes instead of cropping; its images are in memory.
- ``sharing``: passes per second of 1, 2 and 3 runs of two heads together, under NVIDIA's Multi-Process Service.
- ``accuracy``: percent of the test images after recipe ``fast`` (seeds 0 to 2), with this project and with the plain
  loop. For t2 it is that of both heads together, without flip TTA.
"""

import importlib.util
import itertools
import json
import multiprocessing
import random
import shutil
import statistics
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path

import torch

import gpu_plain_loop
import shared_gpu
from gpu_peers import MODES, on_gpu, tensors, work
from measuring import options, write
from transnet import d4
from transnet.runs.config import TrainConfig
from transnet.train.inductor import GRAPH, SETTINGS, compiler_options
from transnet.train.trainer import train

GROUPS = ("2x512", "2x64", "1x512", "1x64")


def rows_of(args, m, batch):
    """The rows of a group: their names, each with the tools to try and the environment."""
    options = compiler_options()
    rewrite = options.pop("joint_custom_post_pass", None)
    active = [name for name in {**GRAPH, **SETTINGS} if name in options or (rewrite and name in rewrite.counts)]
    rows = {"ours": (["ours"], {}), "without rewrites": (["ours"], {"TRANSNET_REWRITES": "none"})}
    for name in active if (m, batch) == (2, 512) else ():
        rest = ",".join(other for other in active if other != name)
        rows[f"without {name}"] = (["ours"], {"TRANSNET_REWRITES": rest or "none"})
    peers = ["plain", *(["timm"] if args.timm and m == 1 else []), *(["lightning"] if has_lightning() else [])]
    modes = MODES if on_gpu(args) else MODES[:1]
    return rows | {peer: ([f"{peer} {mode}" for mode in modes], {}) for peer in peers}


def has_lightning():
    return any(map(importlib.util.find_spec, ("lightning", "pytorch_lightning")))


def speed(args, found, save):
    """Measure the groups that lack a row."""
    for group in args.groups.split(","):
        m, batch = map(int, group.split("x"))
        wanted = rows_of(args, m, batch)
        done = [row for row in found["rows"] if (row["m"], row["batch"]) == (m, batch)]
        if {row["what"] for row in done if len(row["passes_per_second"]) >= args.repeats} >= set(wanted):
            continue
        others = [row for row in found["rows"] if row not in done]
        for rows in measured(args, m, batch, wanted):
            found["rows"] = others + rows
            save()


def measured(args, m, batch, wanted):
    """Start the processes of a group, and yield its rows after every round."""
    context = multiprocessing.get_context("spawn")
    running = {}
    for what, (tools, environment) in wanted.items():
        for tool in tools:
            mine, theirs = context.Pipe()
            process = context.Process(target=work, args=(tool, args, m, batch, environment, theirs))
            process.start()
            theirs.close()
            start = time.perf_counter()
            try:
                mine.send(True)
                mine.recv()  # the first epoch, alone, because it compiles
            except (EOFError, OSError):
                print(f"{what} ({tool}) ended before it trained", flush=True)
                continue
            print(f"m={m} batch {batch} {what} ({tool}): ready in {time.perf_counter() - start:.0f} s", flush=True)
            running[what, tool] = (process, mine, [])
    try:
        for _ in range(args.repeats):
            for key in random.sample(list(running), len(running)):
                _, pipe, speeds = running[key]
                pipe.send(True)
                speeds.append(pipe.recv())
            yield [best(what, m, batch, running) for what in wanted if any(what == of for of, _ in running)]
    finally:
        for process, pipe, _ in running.values():
            pipe.send(False)
            process.join()


def best(what, m, batch, running):
    """The row of the faster one of a tool's modes."""
    speeds = {tool: speeds for (of, tool), (_, _, speeds) in running.items() if of == what}
    tool = max(speeds, key=lambda each: statistics.median(speeds[each]))
    print(f"m={m} batch {batch} {what}: {statistics.median(speeds[tool]):,.0f} passes per second", flush=True)
    return {"what": what, "m": m, "batch": batch, "passes_per_second": speeds[tool], "options": tool.partition(" ")[2]}


def accuracy(args, found, save):
    """Train the runs that have no accuracy yet, seed after seed."""
    table = found.setdefault("accuracy", {way: {"base": [], "t2": []} for way in ("ours", "plain")})
    data, ways = tensors(args), {"ours": train_ours, "plain": train_plain}
    for seed in range(1 if args.quick else 3):
        for way, (name, heads) in itertools.product(ways, (("base", 1), ("t2", 2))):
            values = table[way][name]
            if len(values) > seed:
                continue
            start = time.perf_counter()
            values.append(ways[way](args, data, heads, seed))
            print(f"{way} {name} seed {seed}: {values[-1]:.2f} %, {time.perf_counter() - start:.0f} s", flush=True)
            save()


def train_ours(args, _, heads, seed):
    small = {"model": "resnet8-small", "epochs": 2} if args.quick else {}
    config = TrainConfig.for_data(
        args.data, str(Path(tempfile.mkdtemp()) / "run"), seed=seed, transforms=",".join(d4.NAMES[:heads]),
        device=args.device, evaluate_every=0, tensorboard=False, **small,
    )  # fmt: skip
    return 100 * train(config, quiet=True).test.full.accuracy


def train_plain(args, data, heads, seed):
    torch._dynamo.reset()
    small = {"epochs": 2, "flip": False} if args.quick else {}
    mode = "default" if on_gpu(args) else "off"
    return gpu_plain_loop.train(data, heads=heads, seed=seed, mode=mode, **small)["all_heads"]


def sharing(args, found, save):
    if "sharing" in found:
        return
    if on_gpu(args) and shutil.which(shared_gpu.CONTROL) is None:
        print(f"sharing: {shared_gpu.CONTROL} is not installed", flush=True)
        return
    args.runs, args.rounds, args.seconds = 3, args.repeats, 0.2 if args.quick else 3.0
    with shared_gpu.service() if on_gpu(args) else nullcontext():
        rounds = shared_gpu.measured(args, 64 if args.quick else 512)
    found["sharing"] = {str(n): statistics.median(speeds) for n, speeds in rounds.items()}
    print(f"passes per second of 1, 2 and 3 runs: {found['sharing']}", flush=True)
    save()


PARTS = {"speed": speed, "sharing": sharing, "accuracy": accuracy}


def main():
    parser = options(__doc__, device="auto", parts=",".join(PARTS), timm="", repeats=3, groups=",".join(GROUPS))
    parser.add_argument("data")
    parser.add_argument("--quick", action="store_true", help="a small network and few epochs, to try the script")
    args = parser.parse_args()
    parts = args.parts.split(",")
    if unknown := [part for part in parts if part not in PARTS]:
        parser.error(f"--parts: {unknown[0]!r} is unknown; there are {', '.join(PARTS)}")
    found = json.loads(args.out.read_text()) if args.out.exists() else {"rows": []}
    for part in parts:
        PARTS[part](args, found, lambda: write(args.out, args.device, found))


if __name__ == "__main__":
    main()
