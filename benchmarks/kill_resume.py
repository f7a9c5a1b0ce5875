"""Runs that are killed with SIGKILL at random moments and resumed: do they end with the same weights?

    python benchmarks/kill_resume.py --out results/kill_resume.json

Trains digits on the CPU once without interruption. Then, repeatedly in a new folder: starts the same command, kills it
at a random moment (start-up included; a run that had ended by then is repeated), resumes it, and compares
``model.safetensors`` byte for byte. Every kill is kept with its moment and what the folder held then.
"""

import hashlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measuring import options, write


def start(out, epochs, *more):
    words = ["train", "digits", "--out", str(out), "--epochs", str(epochs), "--device", "cpu", "--no-tensorboard"]
    command = [sys.executable, "-m", "transnet", *words, "--checkpoint-every", "1", *more]
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=one_thread, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)


def sha256(out):
    path = out / "model.safetensors"
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else None


def epochs_logged(out):
    path = out / "metrics.jsonl"
    return path.read_text().count("\n") if path.exists() else 0


def killed(out, epochs, seconds):
    """Start a run and kill it after so many seconds; None if it had ended by then."""
    process = start(out, epochs, "--resume")
    try:
        process.communicate(timeout=seconds)
        return None
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    found = {"seconds": seconds, "status": process.returncode, "epochs_before": epochs_logged(out)}
    return found | {"checkpoints": sorted(path.name for path in (out / "state").glob("*"))}


def resumed(out, epochs):
    process = start(out, epochs, "--resume")
    _, stderr = process.communicate()
    errors = stderr.decode()[-300:] if process.returncode else ""
    return {"resumed": process.returncode, "sha256": sha256(out), "epochs_after": epochs_logged(out), "errors": errors}


def main():
    args = options(__doc__, kills=20, epochs=12, seed=0).parse_args()
    chance = random.Random(args.seed)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        if start(Path(folder) / "whole", args.epochs).wait():
            sys.exit("the uninterrupted run failed")
        length = time.monotonic() - began
        expected = sha256(Path(folder) / "whole")
        early = 0
        while len(rows) < args.kills:
            out = Path(folder) / str(len(rows) + early)
            began = time.monotonic()
            row = killed(out, args.epochs, chance.uniform(0, length))
            if row is None:  # the machine was faster than before
                early += 1
                length = time.monotonic() - began
                continue
            row |= resumed(out, args.epochs)
            row["same"] = row["sha256"] == expected and row["epochs_after"] == args.epochs
            rows.append(row)
            print(f"kill {len(rows)} at {row['seconds']:.1f} s of {length:.1f}: same {row['same']}", flush=True)
    content = {
        "same": sum(row["same"] for row in rows), "kills": len(rows),
        "killed": sum(row["status"] == -signal.SIGKILL for row in rows), "over_before_the_kill": early,
        "seconds": length, "sha256": expected, "seed": args.seed, "rows": rows,
    }  # fmt: skip
    write(args.out, "cpu", content)


if __name__ == "__main__":
    main()
