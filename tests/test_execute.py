"""Carrying out a study: several at once, stopped, killed and failing, and what it costs."""

import dataclasses
import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_files import class_folder
from small_runs import inherited_sigint, small_study, wait_for, workers
from transnet.data.dataset import workers_for
from transnet.errors import ConfigError, DataError
from transnet.runs.folder import Run
from transnet.runs.records import EpochEntry
from transnet.study.execute import execute, run_study
from transnet.study.file import read_study
from transnet.study.local import Ended, LocalProcesses
from transnet.study.plan import PlannedRun, plan_runs
from transnet.study.results import read_runs

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import queue_resume  # type: ignore[import-not-found]


def scores(path: Path) -> Any:
    """What a run found, without what depends on the clock and the place."""
    result = Run(path).result()
    return {name: getattr(result, name) for name in ("test", "test_flip", "train", "generalization")}


def begin(out: Path, *more: str, sigint: signal.Handlers = signal.SIG_DFL) -> "subprocess.Popen[bytes]":
    """Start a study of four kinds of run in a process of its own.

    Args:
        out: its folder.
        more: further words of the command.
        sigint: see `inherited_sigint`.
    """
    words = ["reproduce", "invariance", "--data", "digits", "--seeds", "1", "--train-fraction", "0.1", "--jobs", "2"]
    command = [sys.executable, "-m", "transnet", *words, "--device", "cpu", "--out", str(out), *more]
    with inherited_sigint(sigint):
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True)


def lines(path: Path) -> list[EpochEntry]:
    return Run(path).metrics()


def test_a_study_equals_single_runs_and_a_second_call_trains_nothing(tmp_path: Path) -> None:
    from transnet.train.trainer import train

    study, out = small_study(), tmp_path / "study"
    outcome = run_study(study, out, quiet=True)
    assert not outcome.failed
    assert not outcome.stopped
    runs = plan_runs(study, out)
    alone = next(run for run in runs if run.kind == "t2").config
    train(dataclasses.replace(alone, out=str(tmp_path / "alone")), quiet=True)
    assert scores(tmp_path / "alone") == scores(Path(alone.out))
    before = {run.name: Run(run.path).result_file.stat().st_mtime_ns for run in runs}
    run_study(study, out, quiet=True)
    assert {run.name: Run(run.path).result_file.stat().st_mtime_ns for run in runs} == before


def test_a_failed_run_is_named_and_the_others_go_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from transnet.cli import main

    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "digits-fast-t3-s0").write_text("in the way")
    words = "reproduce invariance --data digits --seeds 1 --epochs 1 --train-fraction 0.1 --device cpu"
    assert main([*words.split(), "--out", str(tmp_path)]) == 1
    output = capsys.readouterr()
    assert "digits-fast-t3-s0 failed" in output.err
    assert f"{tmp_path / 'runs' / 'digits-fast-t3-s0'} cannot be written" in output.err
    assert output.out.strip() == str(tmp_path / "report.html")
    for kind in ("base", "t2", "t4"):
        assert Run(tmp_path / "runs" / f"digits-fast-{kind}-s0").finished
    assert "digits-fast-t3-s0" in (tmp_path / "report.html").read_text()


def test_a_folder_that_cannot_be_created_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ConfigError) as caught:
        run_study(small_study("distilled"), tmp_path / "file" / "study", quiet=True)
    assert caught.value.field == "out"


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError) as caught:
        run_study(small_study(), tmp_path, quiet=True)
    assert caught.value.field == "out"
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_run_that_diverges_gives_its_reason_in_one_line(tmp_path: Path) -> None:
    run = plan_runs(small_study("distilled"), tmp_path)[0]
    ruined = dataclasses.replace(run, config=dataclasses.replace(run.config, lr=1e30))
    outcome = execute([ruined], LocalProcesses(tmp_path, device="cpu"), quiet=True)
    (reason,) = outcome.failed.values()
    assert re.match(r"the (loss is|weights are) ", reason)


def test_a_process_that_dies_is_a_failure_with_its_signal(tmp_path: Path) -> None:
    class Deadly(LocalProcesses):
        def start(self, run: PlannedRun) -> bool:
            begun = super().start(run)
            if begun and run.kind == "t4":
                self.running[run.name].process.kill()
            return begun

    runs = plan_runs(small_study(), tmp_path)
    outcome = execute(runs, Deadly(tmp_path, device="cpu"), quiet=True)
    assert list(outcome.failed) == ["digits-fast-t4-s0"]
    assert "SIGKILL" in outcome.failed["digits-fast-t4-s0"]


def test_a_run_that_another_process_trains_is_left_to_it(tmp_path: Path) -> None:
    runs = [run for run in plan_runs(small_study(), tmp_path) if run.kind in ("base", "t2")]
    held, begun = Run(runs[0].path), threading.Event()

    def hold_until_the_other_is_finished() -> None:
        held.acquire()
        begun.set()
        wait_for(lambda: runs[1].done)
        held.release()

    holder = threading.Thread(target=hold_until_the_other_is_finished)
    holder.start()
    begun.wait()
    executor = LocalProcesses(tmp_path, device="cpu")
    outcome = execute(runs, executor, quiet=True)
    holder.join()
    assert not outcome.failed
    assert all(run.done for run in runs)


def test_two_studies_on_one_folder_share_the_work(tmp_path: Path) -> None:
    both = [begin(tmp_path, "--epochs", "6") for _ in range(2)]
    for study in both:
        _, output = study.communicate(timeout=120)
        assert study.returncode == 0, output
    for path in (tmp_path / "runs").iterdir():
        assert [line.epoch for line in lines(path)] == list(range(1, 7))
        assert (tmp_path / "logs" / f"{path.name}.log").read_text().count("warning") == 0


def test_predictions_are_saved_and_saved_again_if_they_are_missing(tmp_path: Path) -> None:
    study = dataclasses.replace(small_study("distilled"), save_predictions=True)
    run_study(study, tmp_path, quiet=True)
    (series,) = read_runs(tmp_path)
    for run in series.all_runs:
        assert run.predictions is not None
        assert run.predictions.heads == run.settings.names
        accuracy = (run.predictions.scores.mean(1, np.float32).argmax(1) == run.predictions.labels).mean()
        assert accuracy == pytest.approx(run.score("full").accuracy, abs=0.003)  # half precision
    first, second = (run.path for run in series.of("t2") + series.of("base"))
    (first / "predictions.npz").unlink()
    for name in ("predictions.npz", "model.safetensors"):
        (second / name).unlink()
    assert not run_study(study, tmp_path, quiet=True).failed
    assert (first / "predictions.npz").exists()
    assert not (second / "predictions.npz").exists()


@pytest.mark.slow
def test_a_killed_study_takes_its_runs_along_and_repeats_nothing(tmp_path: Path) -> None:
    """Killed in the middle: what was finished stays, and the runs in progress lose at most the epoch they were in."""
    out, calm = tmp_path / "killed", tmp_path / "calm"
    runs = out / "runs"
    study = begin(out, "--epochs", "12")
    wait_for(lambda: len(list(runs.glob("*/result.json"))) >= 1 and len(lines(runs / "digits-fast-t2-s0")) >= 3)
    study.kill()
    study.communicate()
    wait_for(lambda: not workers(out), 20)
    finished = {path: path.stat().st_mtime_ns for path in runs.glob("*/result.json")}
    assert 1 <= len(finished) < 4
    partly = {path: lines(path) for path in runs.iterdir() if not Run(path).finished}
    assert begin(out, "--epochs", "12").wait() == 0
    for path, when in finished.items():
        assert path.stat().st_mtime_ns == when
    for path, before in partly.items():
        kept = max(len(before) - 1, 0)  # without the epoch whose checkpoint was being written; a run may have none yet
        assert lines(path)[:kept] == before[:kept]
        assert [line.epoch for line in lines(path)] == list(range(1, 13))
    assert begin(calm, "--epochs", "12").wait() == 0
    for path in runs.iterdir():
        assert scores(path) == scores(calm / "runs" / path.name)


def test_ctrl_c_saves_and_the_same_command_goes_on(tmp_path: Path) -> None:
    study = begin(tmp_path, "--epochs", "6")
    wait_for(lambda: any(lines(path) for path in (tmp_path / "runs").glob("*")))
    study.send_signal(signal.SIGINT)
    _, output = study.communicate(timeout=60)
    assert study.returncode == 1
    assert b"The same command continues from here" in output
    assert b"Traceback" not in output
    assert not workers(tmp_path)
    begun = {path: lines(path) for path in (tmp_path / "runs").glob("*") if not Run(path).finished}
    assert begun
    assert begin(tmp_path, "--epochs", "6").wait() == 0
    for path, before in begun.items():
        assert lines(path)[: len(before)] == before


@pytest.mark.parametrize("sigint", [signal.SIG_DFL, signal.SIG_IGN])
def test_a_run_that_is_stopped_before_it_trains_has_not_failed(tmp_path: Path, sigint: signal.Handlers) -> None:
    study = begin(tmp_path, "--epochs", "6", sigint=sigint)
    wait_for(lambda: any((tmp_path / "logs").glob("*.log")))
    study.send_signal(signal.SIGINT)
    _, output = study.communicate(timeout=60)
    assert study.returncode == 1
    assert b"failed" not in output
    assert json.loads((tmp_path / "study.json").read_text())["groups"]["digits-fast"]["failed"] == []


def test_a_run_that_is_stopped_as_its_process_begins_ends_quietly(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    runs, executor = plan_runs(small_study(), tmp_path), LocalProcesses(tmp_path, device="cpu", jobs=4)
    for run in runs:
        assert executor.start(run)
        os.kill(executor.running[run.name].process.pid or 0, signal.SIGINT)  # before the process's own code listens
    executor.stop()
    assert executor.ended() == [Ended(run.name, stopped=True) for run in runs]
    executor.close()
    assert "Traceback" not in capfd.readouterr().err


_SIGINT_FIRST = """
import multiprocessing, signal
from transnet.study.local import start_forkserver

def run():
    signal.raise_signal(signal.SIGINT)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    print("SIGINT was lost", flush=True)

if __name__ == "__main__":
    start_forkserver()
    process = multiprocessing.get_context("forkserver").Process(target=run)
    process.start()
    process.join()
    print(signal.getsignal(signal.SIGINT).name)
"""


def test_a_run_s_process_receives_sigint_even_if_the_study_was_started_with_it_ignored(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(_SIGINT_FIRST)
    with inherited_sigint(signal.SIG_IGN):
        done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    assert done.stdout == "SIG_IGN\n"  # the study's own process is as it was


@pytest.mark.parametrize("model", ["resnet8-small", "resnet20-small"])  # steps of milliseconds, and longer ones
def test_a_scheduler_that_signals_all_processes_stops_a_study_as_ctrl_c_does(tmp_path: Path, model: str) -> None:
    study = begin(tmp_path, "--epochs", "6", "--model", model)
    wait_for(lambda: any(lines(path) for path in (tmp_path / "runs").glob("*")))
    own = workers(tmp_path)
    for process in own:
        os.kill(process, signal.SIGTERM)
    os.killpg(study.pid, signal.SIGTERM)
    _, output = study.communicate(timeout=60)
    assert study.returncode == 1
    assert b"The same command continues from here" in output
    assert b"failed" not in output
    assert not workers(tmp_path)
    assert json.loads((tmp_path / "study.json").read_text())["groups"]["digits-fast"]["failed"] == []
    for path in (tmp_path / "runs").glob("*"):
        assert Run(path).finished or any(Run(path).state.glob("*/manifest.json")) or not lines(path)


def test_missing_data_is_reported_once_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nosuch"):
        run_study(small_study(data="nosuch"), tmp_path / "study", quiet=True)
    assert not (tmp_path / "study").exists()


_ONE_RUN = """
import sys
from transnet.study.execute import execute
from transnet.study.file import read_study
from transnet.study.local import Ended, LocalProcesses
from transnet.study.plan import plan_runs

if __name__ == "__main__":
    train = {"epochs": 1, "device": "cpu", "model": "resnet8-small"}
    study = read_study("pruned").changed(data=sys.argv[1], seeds=1, train=train)
    runs = [run for run in plan_runs(study, sys.argv[2]) if run.kind == "base"]
    execute(runs, LocalProcesses(sys.argv[2], device="cpu", jobs=1), quiet=True)
"""


@pytest.mark.skipif(workers_for(600) == 0, reason="one core alone starts no workers")
def test_processes_that_decode_a_runs_images_import_torch_once(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(_ONE_RUN)
    data = class_folder(tmp_path / "pets", n=300, size=16)
    out = tmp_path / "study"
    command = [sys.executable, "-X", "importtime", str(script), str(data), str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    (log,) = (out / "logs").glob("*.log")
    assert (out / "runs" / log.stem / "result.json").exists()
    # In the program, in the server that the runs come from and, where Python wants one, in the workers' own.
    most = 3 if multiprocessing.get_all_start_methods()[0] == "forkserver" else 2
    assert len(re.findall(r"\| +torch$", done.stderr + log.read_text(), re.MULTILINE)) <= most


def test_a_queue_that_is_killed_and_continued_from_copies_ends_the_same(tmp_path: Path) -> None:
    queue = queue_resume.write_queue(tmp_path / "files", epochs=3)
    assert queue_resume.start(queue, tmp_path / "calm").wait() == 0
    expected = queue_resume.ending(tmp_path / "calm")
    assert sum(name.endswith("model.safetensors") for name in expected) == 5
    end, out = queue_resume.disturbed(queue, tmp_path / "killed", [4.0, 9.0])
    assert end["status"] == 0, end["errors"]
    assert queue_resume.ending(out) == expected


def test_the_best_variant_on_validation_images_gives_its_options(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    queue = read_study(queue_resume.write_queue(tmp_path / "files", epochs=1))
    (weights, _), (chosen, _) = queue.queue
    out = tmp_path / "out"
    assert "base-invariance" not in {run.kind for run in plan_runs(chosen, out)}
    run_study(dataclasses.replace(chosen, variants={"base-invariance": chosen.variants["base-invariance"]}), out)
    assert "base-invariance waits for" in capsys.readouterr().err
    run_study(weights, out, quiet=True)
    accuracies = {run.kind: Run(run.path).result().val.pruned.accuracy for run in plan_runs(weights, out)}
    (run,) = (run for run in plan_runs(chosen, out) if run.kind == "base-invariance")
    best = weights.variants[max(accuracies, key=lambda kind: accuracies[kind])]
    assert run.config.invariance_weight == best.options["invariance_weight"]
    assert run.config.val_fraction == 0
