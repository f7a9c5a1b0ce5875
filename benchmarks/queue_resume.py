"""A queue of studies that is killed at random moments and continued from copies of its folder: does it end the same?

    python benchmarks/queue_resume.py --out results/queue_resume.json      (again to continue)

Carries out a queue on digits without interruption. Then, for each repetition: starts the same command in a new folder,
kills all its processes with SIGKILL at a random moment, copies the folder, deletes the first one and starts again from
the copy, twice, and lets the third process end. Compares weights, predictions, results, curves and tables, apart from
times and paths.
"""

import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from measuring import options, write

COMMON = 'device = "cpu"\nepochs = {epochs}\ntrain_fraction = 0.2\ncheckpoint_every = 1\n'
FILES = {
    "weights.toml": 'data = "digits"\n[train]\nval_fraction = 0.2\ntransforms = "r0"\n'
    + COMMON
    + "[variants.small]\ninvariance_weight = 0.01\n[variants.large]\ninvariance_weight = 10.0\n",
    "chosen.toml": 'from = "kinds"\nuse = ["base", "t2"]\ndata = "digits"\nsave_predictions = true\n[train]\n'
    + COMMON
    + '[variants.base-invariance]\nbest_of = "weights.toml"\n',
    "queue.toml": 'queue = [{file = "weights.toml", out = "digits"}, {file = "chosen.toml", out = "digits"}]\n',
}


def write_queue(folder, epochs=6):
    """Write the study files and return the queue's."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in FILES.items():
        (folder / name).write_text(text.format(epochs=epochs) if "epochs" in text else text)
    return folder / "queue.toml"


def start(queue, out):
    command = [sys.executable, "-m", "transnet", "study", str(queue), "--out", str(out)]
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=one_thread, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)


def processes_of(pid):
    """A process and all its descendants."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(entry.parent.name)] = int(entry.read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has ended
            continue
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found


def kill(process):
    """Kill a study with all its processes, as a machine does that is taken away."""
    for pid in processes_of(process.pid):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.communicate()


def killed_and_copied(queue, out, seconds, copy):
    """Carry out the queue for so many seconds, kill it and move its folder; whether it had not ended by then."""
    process = start(queue, out)
    try:
        process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        kill(process)
        if out.exists():
            shutil.copytree(out, copy, ignore=shutil.ignore_patterns("*.lock"))
            shutil.rmtree(out)
        return True
    shutil.move(out, copy)
    return False


def ending(out):
    """What a queue left, by file: hashes of weights and predictions, and results without times."""
    found = {}
    for path in sorted(out.glob("*/runs/*/*")):
        name = str(path.relative_to(out))
        if path.suffix in (".safetensors", ".npz"):
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
        elif path.name == "result.json":
            result = json.loads(path.read_text())
            found[name] = {part: result[part] for part in ("test", "val", "train", "generalization")}
        elif path.name == "metrics.jsonl":
            entries = [json.loads(line) for line in path.read_text().splitlines()]
            found[name] = [[entry["epoch"], entry["loss"], entry["accuracy"]] for entry in entries]
    for path in sorted(out.glob("*/tables/*.csv")):
        found[str(path.relative_to(out))] = path.read_text()
    return found


def disturbed(queue, folder, moments):
    """Kill a queue at each of these moments, in seconds from its last start, then let it end; its last folder."""
    out, kills = folder / "0", 0
    for i, seconds in enumerate(moments, 1):
        kills += killed_and_copied(queue, out, seconds, folder / str(i))
        out = folder / str(i)
    last = start(queue, out)
    _, stderr = last.communicate()
    return {"kills": kills, "status": last.returncode, "errors": stderr.decode()[-300:] if last.returncode else ""}, out


def main():
    args = options(__doc__, repetitions=10, kills=2, epochs=6, seed=0).parse_args()
    rows = json.loads(args.out.read_text())["rows"] if args.out.exists() else []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        queue, began = write_queue(folder / "files", args.epochs), time.monotonic()
        if start(queue, folder / "calm").wait():
            sys.exit("the undisturbed queue failed")
        length, expected = time.monotonic() - began, ending(folder / "calm")
        while len(rows) < args.repetitions:
            chance = random.Random(f"{args.seed} {len(rows)} {length}")
            moments = [chance.uniform(0, length / args.kills) for _ in range(args.kills)]
            row, out = disturbed(queue, folder / str(len(rows)), moments)
            row = {"moments": moments, **row, "same": ending(out) == expected}
            print(row, flush=True)
            shutil.rmtree(folder / str(len(rows)))
            if row["same"] and row["kills"] < args.kills:  # it had ended by then: the machine is faster than before
                length *= 0.8
                continue
            rows.append(row)
            counts = {name: sum(row[name] for row in rows) for name in ("same", "kills")}
            write(args.out, "cpu", {**counts, "repetitions": len(rows), "files": len(expected), "rows": rows})


if __name__ == "__main__":
    main()
