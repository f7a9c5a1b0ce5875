"""Does a run that is killed at any moment end as if it had not been? SIGKILL at random moments, then ``--resume``.

    python benchmarks/kill_resume.py --out results/kill_resume.json

Trains digits on the CPU once without interruption. Then, again and again in a new folder: starts the same command,
kills it at a random moment of its life (start-up included; one that was over by then is done again), resumes it,
and compares ``model.safetensors`` byte for byte. Every kill is kept with its moment and what the folder held then.
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


def command(out, epochs, *more):
    words = ["train", "digits", "--out", str(out), "--epochs", str(epochs), "--device", "cpu", "--no-tensorboard"]
    return [sys.executable, "-m", "transnet", *words, "--checkpoint-every", "1", *more]


def start(words):
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(words, env=one_thread, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)


def sha256(out):
    path = out / "model.safetensors"
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else None


def whole_lines(out):
    path = out / "metrics.jsonl"
    return path.read_text().count("\n") if path.exists() else 0


def killed(out, epochs, seconds):
    """Start a run and kill it after so long; None where it had ended by then."""
    process = start(command(out, epochs, "--resume"))
    try:
        process.communicate(timeout=seconds)
        return None
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    found = {"seconds": seconds, "status": process.returncode, "epochs_before": whole_lines(out)}
    return found | {"checkpoints": sorted(path.name for path in (out / "state").glob("*"))}


def resumed(out, epochs):
    process = start(command(out, epochs, "--resume"))
    _, stderr = process.communicate()
    errors = stderr.decode()[-300:] if process.returncode else ""
    return {"resumed": process.returncode, "sha256": sha256(out), "epochs_after": whole_lines(out), "errors": errors}


def main():
    args = options(__doc__, kills=20, epochs=12, seed=0).parse_args()
    chance = random.Random(args.seed)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        if start(command(Path(folder) / "whole", args.epochs)).wait():
            sys.exit("the uninterrupted run failed")
        length = time.monotonic() - began
        expected = sha256(Path(folder) / "whole")
        early = 0
        while len(rows) < args.kills:
            out = Path(folder) / str(len(rows) + early)
            began = time.monotonic()
            row = killed(out, args.epochs, chance.uniform(0, length))
            if row is None:  # a faster machine than before: that moment was after the end
                early += 1
                length = time.monotonic() - began
                continue
            row |= resumed(out, args.epochs)
            row["same"] = row["sha256"] == expected and row["epochs_after"] == args.epochs
            rows.append(row)
            verdict = "same" if row["same"] else "DIFFERS"
            print(f"kill {len(rows)} at {row['seconds']:.1f} s of {length:.1f}: {verdict}", flush=True)
    same = sum(row["same"] for row in rows)
    print(f"{same} of {len(rows)} ended with byte-identical weights")
    killed_runs = sum(row["status"] == -signal.SIGKILL for row in rows)
    content = {"same": same, "kills": len(rows), "killed": killed_runs, "over_before_the_kill": early}
    write(args.out, "cpu", content | {"seconds": length, "sha256": expected, "seed": args.seed, "rows": rows})


if __name__ == "__main__":
    main()
