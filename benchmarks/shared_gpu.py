"""Throughput of several training runs that share one GPU, compared with one run at a time.

    python benchmarks/shared_gpu.py DATA --out results/shared_gpu.json
    python benchmarks/shared_gpu.py digits --device cpu --quick --out shared.json          # to try the script

It runs one, two and three processes that each train two heads, at batch 512 and 64, and measures the image passes per
second of all of them, as medians over rounds in which the settings take turns. It then repeats this under NVIDIA's
Multi-Process Service, if the machine has it. Without the service the GPU gives each process slices of time. With it,
kernels of several processes run side by side.
"""

import contextlib
import multiprocessing
import os
import shutil
import statistics
import sys
import time
from pathlib import Path

import torch

from measuring import options, wait, write
from trainers import start_epoch, trainer
from transnet.study.cuda_mps import CONTROL, Service
from transnet.train.device import determinism


def work(args, batch, pipe):
    """A run that trains for a given time, repeatedly."""
    with determinism(False, cuda=args.device != "cpu" and torch.cuda.is_available()):
        made = trainer(args, 2, batch)
        made.train_epoch(0)
        pipe.send("ready")
        for seconds in iter(pipe.recv, None):
            pipe.send(passes_per_second(made, seconds))


def passes_per_second(made, seconds, at_once=5):
    """Run full steps, and check the clock every few of them."""
    feed, done = made.setup.feed, 0
    start = time.perf_counter()
    while True:
        start_epoch(made)
        for k in range(max(feed.steps - 1, 1)):
            made.step(k, k)
            done += 1
            if done % at_once == 0:
                wait()
                if (passed := time.perf_counter() - start) >= seconds:
                    return done * feed.size(0) * 2 / passed


def measured(args, batch):
    """Rounds of passes per second, for each number of runs at once."""
    context = multiprocessing.get_context("spawn")
    runs = []
    for _ in range(args.runs):
        ours, theirs = context.Pipe()
        process = context.Process(target=work, args=(args, batch, theirs), daemon=True)
        process.start()
        theirs.close()  # so that the end of the run's process is the end of the pipe
        runs.append((process, ours))
    for _, pipe in runs:
        try:
            pipe.recv()
        except EOFError:
            sys.exit("a run ended before it trained; see its output above")
    rounds = {n: [] for n in range(1, args.runs + 1)}
    for _ in range(args.rounds):
        for n, found in rounds.items():
            for _, pipe in runs[:n]:
                pipe.send(args.seconds)
            found.append(sum(pipe.recv() for _, pipe in runs[:n]))
    for process, pipe in runs:
        pipe.send(None)
        process.join()
    return rounds


@contextlib.contextmanager
def service():
    """NVIDIA's Multi-Process Service for the processes started within, which are the last ones."""
    with contextlib.closing(Service()) as started:
        os.environ |= started.environment
        yield


def main():
    parser = options(__doc__, device="auto", rounds=3, seconds=2.0, runs=3)
    parser.add_argument("data")
    parser.add_argument("--quick", action="store_true", help="a small network for a moment, to try the script")
    args = parser.parse_args()
    if args.quick:
        args.rounds, args.seconds = 2, 0.2
    ways = {"slices of time": contextlib.nullcontext}
    if args.device != "cpu" and torch.cuda.is_available() and shutil.which(CONTROL):
        ways["service"] = service
    rows = []
    for way, context in ways.items():
        with context():
            for batch in (512, 64):
                rounds = measured(args, batch)
                alone = statistics.median(rounds[1])
                for n, found in rounds.items():
                    rate = statistics.median(found)
                    row = {"by": way, "batch": batch, "runs": n, "passes_per_second": rate, "ratio": rate / alone}
                    rows.append(row | {"rounds": found})
                    shown = f"{way:<15} batch {batch:<4} {n} at once: {rate:>9,.0f} passes/s, {rate / alone:.2f}"
                    print(shown, flush=True)
                write(args.out, args.device, {"data": Path(args.data).name, "m": 2, "rows": rows})


if __name__ == "__main__":
    main()
