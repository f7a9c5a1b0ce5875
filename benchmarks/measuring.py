"""What the measurements share: their options, timing several ways in turn, and the file of results."""

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from environment import environment


def options(doc: str | None, **defaults: object) -> argparse.ArgumentParser:
    """A parser with the script's docstring as help and ``--out``; each of the defaults is an option of that type."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    for name, value in defaults.items():
        parser.add_argument(f"--{name}", type=type(value), default=value)
    return parser


def write(out: Path, device: str, content: Mapping[str, object]) -> None:
    """Write the results and the environment in which they were measured."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    out.write_text(json.dumps({**content, **environment(device)}, indent=1, ensure_ascii=False) + "\n")


def wait() -> None:
    """Wait until the GPU, if there is one, has done its work."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def medians(
    ways: Mapping[str, Callable[[], object]], rounds: int, device: str, warm_up: int = 5
) -> dict[str, dict[str, float]]:
    """Time all ways in every round; the median seconds of each by the wall clock and, on a CPU, in processor time.

    The order is random, because a fixed one would give each way the same predecessor. Processor time excludes other
    programs.
    """
    clocks = {"wall": time.perf_counter}
    if not device.startswith("cuda"):
        clocks["processor"] = time.process_time
    times: dict[str, dict[str, list[float]]] = {clock: {way: [] for way in ways} for clock in clocks}
    chance = random.Random(0)
    for i in range(rounds + warm_up):
        for way in chance.sample(list(ways), len(ways)):
            wait()
            starts = {clock: read() for clock, read in clocks.items()}
            ways[way]()
            wait()
            for clock, read in clocks.items():
                if i >= warm_up:
                    times[clock][way].append(read() - starts[clock])
    return {clock: {way: statistics.median(found) for way, found in of.items()} for clock, of in times.items()}
