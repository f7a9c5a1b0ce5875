"""Runs that share a GPU: NVIDIA's service begins and ends with a study, and a second run waits for memory.

The control program is stood in for by a script that notes what it is told; `gpu` tests take the real one.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from transnet.runs.folder import Run
from transnet.study import cuda_mps as sharing
from transnet.study import execute
from transnet.study.execute import Here
from transnet.study.plan import PlannedRun, Study, plan
from transnet.study.reproduce import reproduce

SMALL = {"data": "digits", "seeds": 1, "epochs": 1, "train_fraction": 0.1}


@pytest.fixture
def control(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A control program that notes how it was called, and in which folder; the file of notes."""
    programs, notes = tmp_path / "programs", tmp_path / "notes"
    programs.mkdir()
    script = programs / sharing.CONTROL
    script.write_text(f'#!/bin/sh\n[ "$1" = -d ] || set -- "$(cat)"\necho "$1 $CUDA_MPS_PIPE_DIRECTORY" >> {notes}\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    monkeypatch.setattr(sharing, "is_served", lambda: False)
    monkeypatch.setattr(sharing, "_USE", "")  # what tries the GPU finds nothing wrong
    return notes


def test_the_service_gets_a_folder_and_ends_when_it_is_closed(control: Path) -> None:
    service = sharing.start_service()
    assert service is not None
    folder = service.environment["CUDA_MPS_PIPE_DIRECTORY"]
    assert Path(folder).is_dir()
    assert control.read_text() == f"-d {folder}\n"
    service.close()
    assert control.read_text() == f"-d {folder}\nquit {folder}\n"
    assert not Path(folder).exists()


def test_the_service_ends_with_a_process_that_is_killed(control: Path) -> None:
    code = (
        "import time; from transnet.study import sharing\n"
        "service = sharing.Service(); print('on', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"on\n"
    process.send_signal(signal.SIGKILL)
    process.communicate()
    end = time.monotonic() + 20
    while "quit" not in control.read_text():
        assert time.monotonic() < end, "the service outlived its study"
        time.sleep(0.05)


def test_a_service_through_which_no_gpu_can_be_used_is_ended(control: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "_USE", "raise SystemExit(True)")
    assert sharing.start_service() is None
    assert [line.split()[0] for line in control.read_text().splitlines()] == ["-d", "quit"]


def test_without_the_program_or_where_it_fails_there_is_no_service(
    control: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = shutil.which(sharing.CONTROL)
    assert program is not None
    Path(program).write_text("#!/bin/sh\nexit 1\n")
    assert sharing.start_service() is None
    monkeypatch.setenv("PATH", "")
    assert sharing.start_service() is None


def test_one_that_runs_already_is_used(control: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/somewhere")
    assert sharing.is_served()
    assert sharing.start_service() is None


def test_memory_that_cannot_be_told_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert sharing.used_and_free("0") is None
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho '10240, 30720'\n")
    smi.chmod(0o755)
    assert sharing.used_and_free("0") == (10240, 30720)


class OnGpus(Here):
    """Two made-up GPUs; nothing is trained, so that only the choice of places is left."""

    def __init__(self, study: Study) -> None:
        super().__init__(study)
        self.started: list[tuple[str, str]] = []

    def start(self, run: PlannedRun) -> bool:
        slot = self._free_slot(run)
        if slot is None:
            return False
        self.started.append((run.kind, self._gpu(slot)))
        metrics = Run(run.config.out).metrics_file
        metrics.parent.mkdir(parents=True, exist_ok=True)
        self._running[run.name] = execute._Running(run, None, slot, time.time())  # type: ignore[arg-type]
        return True

    def train_an_epoch(self) -> None:
        """As if every run had."""
        for running in self._running.values():
            metrics = Run(running.run.config.out).metrics_file
            metrics.write_text("{}\n")
            os.utime(metrics, (running.begun + 1, running.begun + 1))


@pytest.fixture
def two_gpus(control: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[float, float] | None]:
    """What their memory is said to be."""
    memory: dict[str, tuple[float, float] | None] = {"0": (30, 70), "1": (30, 70)}
    monkeypatch.setattr(execute, "_gpus", lambda device: ["0", "1"])
    monkeypatch.setattr(execute, "used_and_free", memory.get)
    monkeypatch.setattr(execute, "ASK_EVERY", 0.0)
    return memory


def study_of(out: Path, jobs: int | None = None) -> Study:
    return Study("invariance", out=str(out), jobs=jobs, **SMALL)  # type: ignore[arg-type]


def test_every_gpu_gets_a_run_first_and_a_second_when_memory_is_known_to_suffice(
    two_gpus: dict[str, tuple[float, float] | None], tmp_path: Path
) -> None:
    study = study_of(tmp_path)
    place, runs = OnGpus(study), plan(study)
    assert [run.kind for run in runs] == ["t4", "t3", "t2", "base"]
    assert place.places == 4
    assert place.start(runs[0])
    assert place.start(runs[1])
    assert [gpu for _, gpu in place.started] == ["0", "1"]
    assert not place.start(runs[2]), "the first two have not shown yet what they need"
    place.train_an_epoch()
    two_gpus["0"] = None
    two_gpus["1"] = (30, 24)  # three heads take 30, so two are expected to take 20, and a quarter is to spare
    assert not place.start(runs[2])
    two_gpus["1"] = (30, 25)
    assert place.start(runs[2])
    assert place.started[-1] == ("t2", "1")
    place._running.clear()
    place.close()


def test_who_asks_for_several_at_once_gets_them(
    two_gpus: dict[str, tuple[float, float] | None], tmp_path: Path
) -> None:
    two_gpus |= {"0": None, "1": None}
    study = study_of(tmp_path, jobs=2)
    place = OnGpus(study)
    assert all(place.start(run) for run in plan(study))
    assert [gpu for _, gpu in place.started] == ["0", "1", "0", "1"]
    place._running.clear()
    place.close()


def test_one_at_once_needs_no_service(two_gpus: object, control: Path, tmp_path: Path) -> None:
    place = OnGpus(study_of(tmp_path, jobs=1))
    assert place.places == 2
    place.close()
    assert not control.exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU that is there can be had")
def test_a_gpu_that_cannot_be_had_is_an_error_and_not_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execute, "_gpus", lambda device: ["0"])  # as if this process had seen one
    study = study_of(tmp_path, jobs=1)
    outcome = execute.execute(plan(study)[-1:], Here(study), quiet=True)
    assert list(outcome.failed) == ["digits-fast-base-s0"]
    assert "no CUDA device" in outcome.failed["digits-fast-base-s0"]


def test_a_run_has_not_trained_before_its_first_epoch(tmp_path: Path) -> None:
    run = plan(study_of(tmp_path))[-1]
    metrics = Run(run.config.out)
    running = execute._Running(run, None, 0, time.time())  # type: ignore[arg-type]
    metrics.path.mkdir(parents=True)
    metrics.keep_metrics(0)
    assert not running.has_trained
    metrics.metrics_file.write_text('{"epoch": 1}\n{"epoch": 2}\n')
    os.utime(metrics.metrics_file, (1, 1))  # by a process before this one
    metrics.keep_metrics(2)
    assert not running.has_trained
    metrics.add_metrics({"epoch": 3})
    assert running.has_trained


@pytest.mark.parametrize(("visible", "there"), [("0,1", True), ("GPU-1b2c", True), ("1", False), ("2,3", False)])
def test_the_service_is_not_started_where_it_would_count_the_gpus_anew(
    control: Path, monkeypatch: pytest.MonkeyPatch, visible: str, there: bool
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    service = sharing.start_service()
    assert (service is not None) == there
    if service:
        service.close()


def test_a_study_s_runs_say_how_many_there_were_at_once(tmp_path: Path) -> None:
    study = Study("invariance", out=str(tmp_path), jobs=2, device="cpu", **SMALL)  # type: ignore[arg-type]
    reproduce(study, quiet=True)
    assert {Run(run.config.out).result().at_once for run in plan(study)} == {2}


@pytest.mark.gpu
def test_on_a_gpu_two_runs_share_it_and_the_service_ends(tmp_path: Path) -> None:
    study = Study("invariance", out=str(tmp_path), model="resnet8-small", **SMALL)  # type: ignore[arg-type]
    place = Here(study)
    service = place.service
    if service is None:
        pytest.skip(f"{sharing.CONTROL} is not here, or does not start")
    memory = sharing.used_and_free("0")
    assert memory is not None
    assert memory[1] > 0
    outcome = execute.execute(plan(study), place, quiet=True)
    assert not outcome.failed
    assert not Path(service.environment["CUDA_MPS_PIPE_DIRECTORY"]).exists()
    assert {Run(run.config.out).result().at_once for run in plan(study)} == {2}
