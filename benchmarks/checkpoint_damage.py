"""Does a damaged checkpoint ever train on unnoticed? Files of ``state/`` truncated or with flipped bits, then resumed.

    python benchmarks/checkpoint_damage.py --out results/checkpoint_damage.json

Stops a run on digits (CPU) by SIGINT in the middle of an epoch, which leaves two checkpoints. Then, again and again
on a copy of its folder: damages a random file of one checkpoint, or of both, resumes, and compares the weights
with those of an uninterrupted run, byte for byte. Each must end with the same weights or in a `CheckpointError`.
"""

import collections
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


def run(out, **changes):
    config = TrainConfig(data="digits", out=str(out), epochs=3, device="cpu", tensorboard=False, evaluate_every=0,
                         checkpoint_every=1, **changes)  # fmt: skip
    train(config, quiet=True)


def stopped(out):
    """Ctrl-C while the second epoch runs."""
    child = os.fork()
    if child == 0:
        try:
            run(out)
        except Stopped:
            os._exit(0)
        os._exit(1)
    while not (out / "metrics.jsonl").exists() or not (out / "metrics.jsonl").read_text():
        time.sleep(0.005)
    time.sleep(0.1)
    os.kill(child, signal.SIGINT)
    if os.waitpid(child, 0)[1]:
        sys.exit("the run was over before it could be stopped")


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
        run(out, resume=True)
    except CheckpointError as error:
        return "refused", str(error).replace(str(out), "RUN")
    return ("the same weights" if sha256(out) == expected else "OTHER WEIGHTS"), ""


def main():
    args = options(__doc__, files=100, seed=0).parse_args()
    chance = random.Random(args.seed)
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run(folder / "whole")
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
    print(f"{sum(len(row['damaged']) for row in rows)} damaged files in {len(rows)} resumed runs: {dict(outcomes)}")
    content = {"files": sum(len(row["damaged"]) for row in rows), "runs": len(rows), "outcomes": outcomes}
    write(args.out, "cpu", content | {"checkpoints": steps, "seed": args.seed, "rows": rows})


if __name__ == "__main__":
    main()
