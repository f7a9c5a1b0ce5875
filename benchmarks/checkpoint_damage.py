"""Checkpoints whose files are truncated or have flipped bits: is every damage noticed?

    python benchmarks/checkpoint_damage.py --out results/checkpoint_damage.json

Stops a run on digits (CPU) by SIGINT in the middle of an epoch, which leaves two checkpoints. Then, repeatedly on a
copy of its folder: damages a random file of one checkpoint, or of both, resumes, and compares the weights with those of
an uninterrupted run, byte for byte. Each run must end with the same weights or in a `CheckpointError`.
"""

import collections
import contextlib
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from kill_resume import sha256
from measuring import options, write
from transnet.runs.checkpoint import CheckpointError
from transnet.runs.config import TrainConfig
from transnet.train.interrupt import Stopped
from transnet.train.trainer import train

FILES = ("tensors.safetensors", "state.json", "manifest.json")


def train_digits(out, **changes):
    config = TrainConfig(data="digits", out=str(out), epochs=3, device="cpu", tensorboard=False, evaluate_every=0,
                         checkpoint_every=1, **changes)  # fmt: skip
    train(config, quiet=True)


def train_until_stopped(out):
    with contextlib.suppress(Stopped):
        train_digits(out)
        sys.exit("the run was over before it could be stopped")


def stopped(out):
    """Leave a run that Ctrl-C ended in its second epoch."""
    child = multiprocessing.get_context("spawn").Process(target=train_until_stopped, args=(out,))
    child.start()
    while not (out / "metrics.jsonl").exists() or not (out / "metrics.jsonl").read_text():
        time.sleep(0.005)
    time.sleep(0.1)
    os.kill(child.pid, signal.SIGINT)
    child.join()
    if child.exitcode:
        sys.exit(child.exitcode)


def damage(path, chance):
    content = bytearray(path.read_bytes())
    kind = chance.choice(("truncated", "one bit flipped", "a block of zeros"))
    at = chance.randrange(len(content))
    if kind == "truncated":
        content = content[:at]
    elif kind == "one bit flipped":
        content[at] ^= 1 << chance.randrange(8)
    else:
        content[at : at + 4096] = bytes(len(content[at : at + 4096]))
    path.write_bytes(content)
    return {"file": path.name, "damage": kind, "byte": at}


def resumed(out, expected):
    try:
        train_digits(out, resume=True)
    except CheckpointError as error:
        return "refused", str(error).replace(str(out), "RUN")
    return ("the same weights" if sha256(out) == expected else "OTHER WEIGHTS"), ""


def main():
    args = options(__doc__, files=100, seed=0).parse_args()
    chance = random.Random(args.seed)
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        train_digits(folder / "whole")
        expected = sha256(folder / "whole")
        stopped(folder / "stopped")
        steps = sorted(path.name for path in (folder / "stopped" / "state").iterdir())
        while sum(len(row["damaged"]) for row in rows) < args.files:
            copy = Path(shutil.copytree(folder / "stopped", folder / "copy"))
            chosen = steps if chance.random() < 0.25 else [chance.choice(steps)]
            damaged = [damage(copy / "state" / step / chance.choice(FILES), chance) for step in chosen]
            outcome, message = resumed(copy, expected)
            rows.append({"damaged": damaged, "of": len(steps), "outcome": outcome, "message": message})
            shutil.rmtree(copy)
    outcomes = collections.Counter(row["outcome"] for row in rows)
    files = sum(len(row["damaged"]) for row in rows)
    print(f"{files} damaged files in {len(rows)} resumed runs: {dict(outcomes)}")
    content = {"files": files, "runs": len(rows), "outcomes": outcomes, "checkpoints": steps, "seed": args.seed}
    write(args.out, "cpu", content | {"rows": rows})


if __name__ == "__main__":
    main()
