"""The fine-tuning study: do heads beat training longer, on photographs and from ImageNet weights?

    python benchmarks/finetune_study.py --data FOLDER --out results/finetune --jobs 2

The command first chooses the settings on training images, then runs every arm and data set with one seed before the
next seed. It can be stopped at any time and continues when it is called again; only the runs in progress are lost.
OUT/runs.jsonl, tuning.jsonl and failures.jsonl hold one line per run, and OUT/predictions what the bootstrap needs.
With `--summary`, it writes OUT/summary.json instead (see finetune_summary.py).

- Settings are chosen by the loss of one pass, after its temperature, on images held out of the training set. On
  Grocery the temperature is fitted on the validation images, on CIFAR on the held-out images.
- Tuning uses seeds 100 and 102 for Grocery's direction that trains on the training part, 101 and 103 for the other, and
  100 and 101 on CIFAR. Runs on 80 % of Grocery take 16 epochs of these images, 1,056 steps.
- If the best value is at the edge of its grid, one more is tried: half or twice the learning rate, or 13/16 of the
  images left unrotated (a quarter is uniform, so there is none below).
- A choice must beat the shared value by the standard error of the difference: the larger of the error over images and
  the error over the two seeds, because two seeds alone give an unreliable one and images alone omit training's noise.
- Arms and data sets of the extras take the settings of the arm and data set that they vary.
- A run gets one thread at low priority. Freed memory stays with the process (see ALLOCATOR), which saves page faults.
"""

import argparse
import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from filelock import FileLock, Timeout

from environment import environment
from finetune_inputs import weights_file
from finetune_summary import summarize

ROOT = Path(__file__).parents[1]
ALLOCATOR = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "4294967296"}
THREE = ("base", "base-rot", "t2-distilled")  # the arms with settings of their own
SEEDS = {**dict.fromkeys((*THREE, "views-distilled"), 6), "t2": 3, "shared": 3}
RATES, SHARES = (5e-4, 1e-3, 2e-3), (0.25, 0.625)
PARTS = {  # (data, arm, number of seeds, epochs)
    "main": [(data, arm, n, 16) for arm, n in SEEDS.items() for data in ("grocery144", "cifar100-2500")],
    "repeat": [("grocery144", "base", 1, 16)],  # once more at a later commit, to show that nothing moved
    "x2": [("grocery144", f"{arm}-x2", 3, 32) for arm in THREE],
    "noup": [("cifar100-2500-noup", arm, 4, 16) for arm in THREE],
    "quarter": [("grocery144-quarter", arm, 8, 32) for arm in THREE],
}


@dataclass(frozen=True)
class Job:
    """One call of finetune_loop.py, and the file that its line goes to."""

    file: str
    data: str
    arm: str
    seed: int
    epochs: int
    lr: float
    upright_share: float | None = None

    @property
    def tuning(self):
        return self.file == "tuning.jsonl"

    @property
    def predictions(self):
        share = "" if self.upright_share is None else f"-upright{self.upright_share:g}"
        settings = f"-lr{self.lr:g}{share}" if self.tuning else ""
        prefix = "" if self.file == "runs.jsonl" else f"{Path(self.file).stem}-"
        return f"predictions/{prefix}{self.data}-{self.arm}-{self.seed}{settings}.npz"

    def row(self, rows):
        """Return the finished line of this job, or None."""
        wanted = {"data": self.data, "arm": self.arm, "seed": self.seed}
        if self.tuning:
            wanted |= {"lr": self.lr, "upright_share": self.upright_share}
        return next((row for row in rows[self.file] if wanted.items() <= row.items()), None)

    def command(self, args):
        words = ["--data", args.data, "--dataset", self.data, "--arm", self.arm, "--seed", self.seed]
        words += ["--epochs", self.epochs, "--lr", self.lr, "--out", args.out / self.predictions]
        words += ["--upright-share", self.upright_share] if self.upright_share is not None else []
        words += ["--tune"] if self.tuning else []
        words += ["--steps", args.steps] if args.steps else ["--steps", 1056] if self.tuning and self.on_grocery else []
        return [sys.executable, str(ROOT / "benchmarks" / "finetune_loop.py"), *map(str, words)]

    @property
    def on_grocery(self):
        return self.data.startswith("grocery")


def read(path):
    """Return the complete lines of a file; a line cut off by a crash is skipped."""
    rows = []
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return rows


def append(path, row):
    """Add a line and wait until it is on the disk."""
    with path.open("a+b") as file:
        if file.tell() and (file.seek(-1, os.SEEK_END), file.read())[1] != b"\n":
            file.write(b"\n")
        file.write(json.dumps(row).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def choose(values, shared, beyond, losses):
    """Return (choice, None) or (None, the values that have to be tried first).

    Args:
        values: the grid, in order.
        shared: the value that wins unless another is better by a standard error.
        beyond: the values to add if the best is the first or the last; None if there is none.
        losses: per value, one array of losses for each tuning seed.
    """
    if missing := [value for value in values if value not in losses]:
        return None, missing
    mean = {value: np.mean([np.mean(part) for part in parts]) for value, parts in losses.items()}
    best = min(values, key=mean.get)
    extra = {values[0]: beyond[0], values[-1]: beyond[1]}.get(best)
    if extra is not None and extra not in losses:
        return None, [extra]
    best = min([best, extra or best], key=mean.get)
    gains = [a - b for a, b in zip(losses[shared], losses[best], strict=True)]
    images = np.sqrt(sum(np.var(gain, ddof=1) / len(gain) for gain in gains)) / len(gains)
    seeds = np.std([np.mean(gain) for gain in gains], ddof=1) / np.sqrt(len(gains))
    return (shared if mean[shared] - mean[best] < max(images, seeds) else best), None


def tune(data, seed, arm, rows, out):
    """Return the settings (lr, upright share) of an arm for the direction of a seed, and the jobs they still need."""
    grocery = data.startswith("grocery")
    seeds = (100 + seed % 2, 102 + seed % 2) if grocery else (100, 101)

    def settle(values, shared, beyond, settings):
        jobs = {
            v: [Job("tuning.jsonl", data, arm, s, 16, *settings(v)) for s in seeds] for v in (*values, *beyond) if v
        }
        done = {v: trials for v, trials in jobs.items() if all(job.row(rows) for job in trials)}
        losses = {v: [-load_npz(out / job.predictions) for job in trials] for v, trials in done.items()}
        choice, missing = choose(values, shared, beyond, losses)
        return choice, [job for v in missing or () for job in jobs[v] if not job.row(rows)]

    share, missing = None, []
    if arm == "base-rot":
        share, missing = settle(SHARES, 0.25, (None, 0.8125), lambda v: (1e-3, v))
    if not missing:
        lr, missing = settle(RATES, 1e-3, (2.5e-4, 4e-3), lambda v: (v, share))
    return (None if missing else (lr, share)), missing


def load_npz(path):
    with np.load(path) as arrays:
        return arrays["one_pass_log_probability"].astype(float)


def rounds(part, settings):
    """Return the jobs of a part: all arms and data sets with one seed before the next seed."""
    jobs = []
    for i in range(max(n for _, _, n, _ in PARTS[part])):
        for data, arm, n, epochs in PARTS[part]:
            lr, share = settings(data, 100 + i, arm)
            if i < n:
                file = "repeats.jsonl" if part == "repeat" else "runs.jsonl"
                jobs.append(Job(file, data, arm, 100 + i, epochs, lr, share))
    return jobs


def plan(out, parts):
    """Return the settings and the jobs to do next; the latter are those of the tuning until it is finished."""
    rows = {file: read(out / file) for file in ("runs.jsonl", "tuning.jsonl", "repeats.jsonl")}
    settings, missing = {}, []  # settings: by data, direction and arm
    for direction, data in ((0, "grocery144"), (1, "grocery144"), (0, "cifar100-2500")):
        for arm in THREE:
            settings[data, direction, arm], jobs = tune(data, direction, arm, rows, out)
            missing += jobs
    if missing:
        return settings, missing

    def of(data, seed, arm):
        """Arms without settings of their own take the learning rate of t2-distilled."""
        origin = "grocery144" if data.startswith("grocery") else "cifar100-2500"
        arm = arm.removesuffix("-x2")
        return settings[origin, seed % 2 if origin == "grocery144" else 0, arm if arm in THREE else "t2-distilled"]

    return settings, [job for part in parts for job in rounds(part, of) if not job.row(rows)]


def prepare():
    """Lower a run's priority, and end it with the driver even if that is killed."""
    os.nice(19)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def start(command, log, environ):
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, env=environ, preexec_fn=prepare)  # noqa: PLW1509


def drive(args):
    """Run what is left to do, `args.jobs` runs at a time."""
    path = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
    environ = {**os.environ, **ALLOCATOR, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    commit, attempts, running = environment("cpu")["commit"], {}, {}
    try:
        while True:
            jobs = [job for job in plan(args.out, args.parts)[1] if attempts.get(job, 0) < 2 and job not in running]
            for job in jobs[: args.jobs - len(running)]:
                log = tempfile.TemporaryFile()  # noqa: SIM115
                attempts[job] = attempts.get(job, 0) + 1
                running[job] = start(job.command(args), log, environ), log
            if not running:
                left = plan(args.out, args.parts)[1]
                return (
                    f"{len(left)} runs failed twice; see failures.jsonl, and call the command again" if left else None
                )
            while not (ended := [job for job, (process, _) in running.items() if process.poll() is not None]):
                time.sleep(0.2)
            for job in ended:
                process, log = running.pop(job)
                record(args.out, job, process, log, commit)
    finally:
        for process, _ in running.values():
            process.kill()
            process.wait()


def record(out, job, process, log, commit):
    """Keep a finished run's line, or the last line of what a failed run printed."""
    if process.returncode == 0:
        row = json.loads(process.stdout.read().splitlines()[-1])
        if job.tuning:
            direction = ("train", "test")[job.seed % 2] if job.on_grocery else None
            row |= {"direction": direction, "loss": row["nll"]["one_pass"]}
        append(out / job.file, row)
        print(f"{job.predictions}: {row['one_pass']:.2f} % in {row['seconds']:.0f} s", flush=True)
    else:
        log.seek(0)
        lines = log.read().decode(errors="replace").strip().splitlines() or [""]
        row = {"data": job.data, "arm": job.arm, "seed": job.seed, "file": job.file, "lr": job.lr}
        row |= {"exit": process.returncode, "error": lines[-1][:500], "commit": commit}
        append(out / "failures.jsonl", row)
        print(f"{job.predictions}: failed ({lines[-1]})", flush=True)


def summary(out):
    """Write summary.json: what finetune_summary.py finds, the settings chosen so far, and where it comes from."""
    parts = {part: entries for part, entries in PARTS.items() if part != "repeat"}
    found, rows = summarize(out, read(out / "runs.jsonl"), parts), []
    for (data, direction, arm), chosen in plan(out, ())[0].items():
        side = ("train", "test")[direction] if data.startswith("grocery") else None
        lr, share = chosen or (None, None)
        rows.append({"data": data, "direction": side, "arm": arm, "lr": lr, "upright_share": share})
    found |= {"settings": rows, "allocator": ALLOCATOR, "threads_per_run": 1, **environment("cpu")}
    temporary = out / "summary.json.tmp"
    temporary.write_text(json.dumps(found, indent=1) + "\n")
    temporary.replace(out / "summary.json")


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, help="Folder that holds grocery144/ and cifar100/.")
    parser.add_argument("--out", type=Path, required=True, help="Folder for the results.")
    parser.add_argument("--jobs", type=int, default=2, help="Runs at a time, with one thread each.")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=["main"])
    parser.add_argument("--steps", type=int, help="Steps of every run, for a quick trial.")
    parser.add_argument("--summary", action="store_true", help="Write summary.json from the finished runs, and exit.")
    args = parser.parse_args(argv)
    if args.summary:
        return summary(args.out)
    if args.data is None:
        parser.error("--data: give the folder that holds grocery144/ and cifar100/")
    weights_file()
    args.out.mkdir(parents=True, exist_ok=True)
    for number in (signal.SIGTERM, signal.SIGINT):  # also if the parent process ignores SIGINT
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    try:
        with FileLock(args.out / ".lock", timeout=0):
            sys.exit(drive(args))
    except Timeout:
        raise SystemExit(f"out: another process is running the study in {args.out}; stop it first") from None


if __name__ == "__main__":
    main()
