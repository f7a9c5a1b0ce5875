"""Runs that are stopped or killed and resumed, and the lock that lets one process train a run."""

import multiprocessing
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from small_runs import command, epochs_written, images_file, plain, run, settings, stopped_run, weights
from transnet.errors import ConfigError
from transnet.runs import checkpoint
from transnet.runs.folder import Run
from transnet.runs.records import EpochEntry
from transnet.train.interrupt import Stopped
from transnet.train.trainer import train


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return images_file(tmp_path_factory.mktemp("data") / "x.npz")


def without_times(out: Path) -> list[EpochEntry]:
    return [replace(entry, seconds=0.0, images_per_second=0.0) for entry in Run(out).metrics()]


# -------------------------------------------------------------------------------------- interrupted and resumed


@pytest.mark.parametrize("step", [1, 3, 5, 7, 14])
@pytest.mark.parametrize(
    "changes", [{}, {"storage": "stream", "workers": 2, "mixup": 0.3, "rotate": "r0,r1"}], ids=["resident", "stream"]
)
def test_stopped_anywhere_and_resumed_a_run_ends_bit_identically(
    data: Path, tmp_path: Path, step: int, changes: dict[str, Any]
) -> None:
    model = {"dropout": 0.4}  # its random numbers must be the same
    run(data, tmp_path / "whole", plain(**model), **changes)
    stopped_run(data, tmp_path / "run", step=step, model=model, **changes)
    assert not (tmp_path / "run" / "result.json").exists()
    # Stopped again, in the next step: the log must not lose the epoch's earlier steps.
    if step < 14:
        with pytest.raises(Stopped):
            run(data, tmp_path / "run", plain(**model, stop_at=1), resume=True, **changes)
    run(data, tmp_path / "run", plain(**model), resume=True, **changes)
    assert weights(tmp_path / "run") == weights(tmp_path / "whole")
    assert without_times(tmp_path / "run") == without_times(tmp_path / "whole")
    assert not (tmp_path / "run" / "state").exists()


def test_a_run_stopped_in_its_last_step_is_only_evaluated_when_it_is_resumed(data: Path, tmp_path: Path) -> None:
    with pytest.raises(Stopped, match="stopped after 3 of 3 epochs; everything is saved"):
        run(data, tmp_path / "run", plain(stop_at=15))
    run(data, tmp_path / "whole", plain())
    assert weights_when_resumed(data, tmp_path / "run") == weights(tmp_path / "whole")


def weights_when_resumed(data: Path, out: Path) -> Any:
    """Resume a run that was stopped after its last epoch, which must not train again."""
    before = Run(out).metrics()
    run(data, out, plain(), resume=True)
    assert Run(out).metrics() == before
    return weights(out)


def test_a_signal_after_the_last_check_is_not_lost(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transnet.train.progress.Curves.close", lambda _: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(Stopped, match="stopped after 3 of 3 epochs; everything is saved"):
        run(data, tmp_path / "run", plain(), checkpoint_every=100)
    monkeypatch.undo()
    assert checkpoint.is_saved(tmp_path / "run" / "state", 15)


def test_a_complete_checkpoint_is_not_written_again(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: Any, **__: Any) -> None:
        monkeypatch.setattr(checkpoint, "save_checkpoint", lambda *_: pytest.fail("written again"))
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr("transnet.train.trainer.scores_with_classes", stopped)
    with pytest.raises(Stopped):
        run(data, tmp_path / "run", plain(), checkpoint_every=1)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_stopped_during_evaluation_is_saved(
    data: Path, tmp_path: Path, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: Any, **__: Any) -> None:
        os.kill(os.getpid(), number)

    failed: list[str] = []

    def saved(*args: Any) -> None:
        if not failed:  # after the last epoch: a disk that is full for a moment must not end a trained run
            failed.append("full")
            raise checkpoint.CheckpointError("full")
        os.kill(os.getpid(), number)  # again: somebody presses Ctrl-C twice, or a scheduler signals twice
        save(*args)

    save = checkpoint.save_checkpoint
    monkeypatch.setattr("transnet.train.trainer.scores_with_classes", stopped)
    monkeypatch.setattr(checkpoint, "save_checkpoint", saved)
    with pytest.raises(Stopped, match="stopped after 3 of 3 epochs; everything is saved"):
        run(data, tmp_path / "run", plain(), checkpoint_every=100)
    monkeypatch.undo()
    run(data, tmp_path / "whole", plain())
    assert weights_when_resumed(data, tmp_path / "run") == weights(tmp_path / "whole")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_run_reports_how_far_it_got_and_how_to_resume(
    data: Path, tmp_path: Path, number: signal.Signals
) -> None:
    model = plain()
    model.signals = {7: number}
    with pytest.raises(Stopped, match=r"stopped after 1 of 3 epochs and 2 of 5 steps; everything is saved") as caught:
        run(data, tmp_path / "run", model)
    assert "resume=True" in str(caught.value)


KILLS = """
import hashlib, os, random, signal, sys, time
from pathlib import Path
from small_runs import settings, weights
from transnet.train.trainer import train

data, folder, kills = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])

def started(out, **changes):
    pid = os.fork()
    if pid:
        return pid
    train(settings(data, out, epochs=8, resume=True, **changes), quiet=True)
    os._exit(0)

for name in ("first", "whole"):  # in this process, so that those it forks have imported everything
    start = time.monotonic()
    train(settings(data, folder / name, epochs=8), quiet=True)
    length = time.monotonic() - start
chance = random.Random(0)
same = killed = 0
for i in range(kills):
    out = folder / str(i)
    while True:
        pid = started(out, checkpoint_every=i % 3)
        time.sleep(chance.random() * length)
        os.kill(pid, signal.SIGKILL)
        status = os.waitpid(pid, 0)[1]
        killed += os.WIFSIGNALED(status)
        if (out / "result.json").exists() or chance.random() < 0.5:
            break
    os.waitpid(started(out), 0)
    lines = (out / "metrics.jsonl").read_text().splitlines()
    same += weights(out) == weights(folder / "whole") and len(lines) == 8 and not (out / "state").exists()
print(same, killed)
"""


def test_killed_at_random_moments_and_resumed_a_run_ends_bit_identically(data: Path, tmp_path: Path) -> None:
    process = command("-c", KILLS, data, tmp_path, 12)
    printed, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    same, killed = map(int, printed.split())
    assert same == 12
    assert killed >= 8


def test_ctrl_c_on_the_command_line_saves_exits_1_and_prints_the_command_that_resumes(
    data: Path, tmp_path: Path
) -> None:
    out = tmp_path / "a run"
    options = ["--epochs", "80", "--batch-size", "32", "--lr", "0.05", "--device", "cpu", "--model", "resnet8-small"]
    process = command("-m", "transnet", "train", data, "--out", out, *options)
    deadline = time.monotonic() + 180
    while not (out / "metrics.jsonl").exists() or len((out / "metrics.jsonl").read_text().splitlines()) < 3:
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    printed, errors = process.communicate(timeout=180)
    assert process.returncode == 1, errors
    assert "Traceback" not in errors
    assert "everything is saved. Continue with:" in errors
    assert not (out / "result.json").exists()
    assert printed == ""
    words = shlex.split(errors.strip().splitlines()[-1])
    assert words[0] == "transnet"
    process = command("-m", *words)
    printed, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    assert "resuming after epoch" in errors
    assert epochs_written(out) == list(range(1, 81))
    run(data, tmp_path / "whole", epochs=80)
    assert weights(out) == weights(tmp_path / "whole")
    # This is not a terminal: only how the run began and ended, without a live line or control characters.
    assert "\x1b" not in errors
    assert "\r" not in errors
    assert len(errors.splitlines()) <= 7, errors
    assert errors.endswith(f"what next: transnet evaluate, prune, predict or serve {shlex.quote(str(out))}\n")


def test_resuming_past_a_damaged_checkpoint_is_a_warning(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    stopped_run(data, tmp_path / "run", step=7)
    newest = tmp_path / "run" / "state" / "00000007" / "tensors.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1])
    train(settings(data, tmp_path / "run", resume=True), model=plain())
    assert re.search(r"warning: checkpoint 00000007: .* resuming from the one before", capfd.readouterr().err)


@pytest.mark.parametrize("workers_too", [False, True], ids=["group", "every process"])
def test_a_signal_to_all_processes_of_a_streamed_run_saves_it(data: Path, tmp_path: Path, workers_too: bool) -> None:
    words = ("train", data, "--out", tmp_path / "run", "--epochs", 400, "--model", "resnet8-small", "--batch-size", 16)
    more = ("--storage", "stream", "--workers", 2, "--device", "cpu", "--no-tensorboard", "--transforms", "r0")
    child = command("-m", "transnet", *words, *more, start_new_session=True)
    while len(Run(tmp_path / "run").metrics()) < 2:
        assert child.poll() is None
        time.sleep(0.02)
    children = Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split()
    if workers_too:
        for worker in children:
            os.kill(int(worker), signal.SIGTERM)
    os.killpg(child.pid, signal.SIGTERM)
    _, printed = child.communicate(timeout=60)
    assert child.returncode == 1
    assert "everything is saved. Continue with" in printed
    assert "Traceback" not in printed


# --------------------------------------------------------------------------------------- one process at a time


@contextmanager
def holding(out: Path) -> Iterator[None]:
    """Hold a run's lock in another process, and kill that process at the end."""
    code = f"from transnet.runs.folder import Run; run = Run({str(out)!r}); run.acquire(); print('held'); input()"
    words = [sys.executable, "-u", "-c", code]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        yield
        process.kill()


def test_two_processes_do_not_train_one_run(data: Path, tmp_path: Path) -> None:
    stopped_run(data, tmp_path / "run", step=7)
    with holding(tmp_path / "run"):
        begun = time.monotonic()
        with pytest.raises(ConfigError) as caught:
            Run(tmp_path / "run").acquire(timeout=1)
        assert caught.value.field == "out"
        assert "another process is training" in caught.value.message
        assert time.monotonic() - begun >= 1
    run(data, tmp_path / "run", plain(), resume=True)
    assert epochs_written(tmp_path / "run") == [1, 2, 3]


def waiting(held: Run, *words: Any) -> "subprocess.Popen[str]":
    """Start a process that waits for the folder, whose lock this process acquires."""
    held.acquire()
    child = command("-m", "transnet", "train", *words, "--out", held.path, "--device", "cpu", "--no-tensorboard")
    assert child.stderr is not None
    assert "another process is training" in child.stderr.readline()
    return child


def test_a_process_that_waited_for_another_finds_the_run_finished(data: Path, tmp_path: Path) -> None:
    words = (data, "--epochs", 2, "--model", "resnet8-small", "--transforms", "r0")
    done = command("-m", "transnet", "train", *words, "--out", tmp_path / "run", "--device", "cpu", "--no-tensorboard")
    assert done.wait() == 0
    before = Run(tmp_path / "run").metrics()
    (tmp_path / "run" / "result.json").rename(tmp_path / "result.json")
    held = Run(tmp_path / "run")
    child = waiting(held, *words, "--resume")
    (tmp_path / "result.json").rename(tmp_path / "run" / "result.json")
    held.release()
    _, printed = child.communicate(timeout=60)
    assert child.returncode == 0
    assert "is finished; nothing to do" in printed
    assert Run(tmp_path / "run").metrics() == before


def test_a_beginner_that_waited_for_another_finds_the_folder_taken(data: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    held = Run(tmp_path / "run")
    child = waiting(held, data, "--epochs", 1, "--model", "resnet8-small")
    (tmp_path / "run" / "config.json").write_text("another's")
    held.release()
    _, printed = child.communicate(timeout=60)
    assert child.returncode == 2
    assert "exists; add --resume to continue" in printed
    assert (tmp_path / "run" / "config.json").read_text() == "another's"


def test_a_streamed_run_that_failed_can_be_resumed_while_its_error_is_kept(data: Path, tmp_path: Path) -> None:
    with pytest.raises(Stopped) as kept:
        run(data, tmp_path / "run", plain(stop_at=7), storage="stream", workers=2)
    run(data, tmp_path / "run", plain(), storage="stream", workers=2, resume=True)
    assert kept.value
    assert not multiprocessing.active_children()
