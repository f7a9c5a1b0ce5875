"""What the measurements share: their options, timing several ways in turn, and the file of results."""

import argparse
import json
import random
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from environment import environment

WARM_UP = 5


def options(doc: str | None, **defaults: object) -> argparse.ArgumentParser:
    """A parser with the script's docstring as help and ``--out``; each of the defaults is an option of that type."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    for name, value in defaults.items():
        parser.add_argument(f"--{name}", type=type(value), default=value)
    return parser


def write(out: Path, device: str, content: Mapping[str, object]) -> None:
    """Write the results and the environment in which they were measured."""
    out.write_text(json.dumps({**content, **environment(device)}, indent=1, ensure_ascii=False) + "\n")


def seconds(step: Callable[[], object], device: str) -> dict[str, float]:
    """Wall-clock time of a step and, on a CPU, the processor time, which excludes other programs."""
    on_gpu = device.startswith("cuda")
    if on_gpu:
        torch.cuda.synchronize()
    start, busy = time.perf_counter(), time.process_time()
    step()
    if on_gpu:
        torch.cuda.synchronize()
        return {"wall": time.perf_counter() - start}
    return {"wall": time.perf_counter() - start, "processor": time.process_time() - busy}


def in_turn(ways: Mapping[str, Callable[[], object]], rounds: int, device: str) -> dict[str, list[dict[str, float]]]:
    """Time all ways in every round, after some to warm up.

    The order is random, because a fixed one would give each way the same predecessor.
    """
    times: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
    chance = random.Random(0)
    for i in range(rounds + WARM_UP):
        for name in chance.sample(list(ways), len(ways)):
            found = seconds(ways[name], device)
            if i >= WARM_UP:
                times[name].append(found)
    return times
