"""Runs that share a GPU: NVIDIA's service begins and ends with a study, and a second run waits for memory.

A script that notes its input replaces the control program, except in `gpu` tests.
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

from small_runs import small_study
from transnet.runs.folder import Run
from transnet.study import cuda_mps, local
from transnet.study.execute import execute, run_study
from transnet.study.local import LocalProcesses
from transnet.study.plan import PlannedRun, plan_runs


@pytest.fixture
def control(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A control program that notes how it was called, and in which folder; the file of notes."""
    programs, notes = tmp_path / "programs", tmp_path / "notes"
    programs.mkdir()
    script = programs / cuda_mps.CONTROL
    script.write_text(f'#!/bin/sh\n[ "$1" = -d ] || set -- "$(cat)"\necho "$1 $CUDA_MPS_PIPE_DIRECTORY" >> {notes}\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    monkeypatch.setattr(cuda_mps, "is_served", lambda: False)
    monkeypatch.setattr(cuda_mps, "_USE", "")  # what tries the GPU finds nothing wrong
    return notes


def test_the_service_gets_a_folder_and_ends_when_it_is_closed(control: Path) -> None:
    service = cuda_mps.start_service()
    assert service is not None
    folder = service.environment["CUDA_MPS_PIPE_DIRECTORY"]
    assert Path(folder).is_dir()
    assert control.read_text() == f"-d {folder}\n"
    service.close()
    assert control.read_text() == f"-d {folder}\nquit {folder}\n"
    assert not Path(folder).exists()


def test_the_service_ends_with_a_process_that_is_killed(control: Path) -> None:
    code = (
        "import time; from transnet.study import cuda_mps\ncuda_mps._USE = ''\n"
        "service = cuda_mps.Service(); print('on', flush=True); time.sleep(60)"
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


def test_a_service_that_cannot_reach_a_gpu_is_ended(control: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_mps, "_USE", "raise SystemExit(True)")
    assert cuda_mps.start_service() is None
    assert [line.split()[0] for line in control.read_text().splitlines()] == ["-d", "quit"]


def test_there_is_no_service_if_the_program_is_missing_or_fails(control: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = shutil.which(cuda_mps.CONTROL)
    assert program is not None
    Path(program).write_text("#!/bin/sh\nexit 1\n")
    assert cuda_mps.start_service() is None
    monkeypatch.setenv("PATH", "")
    assert cuda_mps.start_service() is None


def test_a_service_that_runs_already_is_used(control: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/somewhere")
    assert cuda_mps.is_served()
    assert cuda_mps.start_service() is None


def test_unknown_memory_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert cuda_mps.used_and_free("0") is None
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho '10240, 30720'\n")
    smi.chmod(0o755)
    assert cuda_mps.used_and_free("0") == (10240, 30720)


class OnGpus(LocalProcesses):
    """Two made-up GPUs; nothing is trained, so that only the choice of slots is left."""

    def __init__(self, out: Path, jobs: int | None = None) -> None:
        super().__init__(out, jobs=jobs)
        self.started: list[tuple[str, str]] = []

    def start(self, run: PlannedRun) -> bool:
        slot = self._free_slot(run)
        if slot is None:
            return False
        self.started.append((run.kind, self.gpus[slot]))
        metrics = Run(run.config.out).metrics_file
        metrics.parent.mkdir(parents=True, exist_ok=True)
        self.running[run.name] = local.Running(run, None, slot, time.time())  # type: ignore[arg-type]
        return True

    def train_an_epoch(self) -> None:
        """Make it look as if every run had finished an epoch."""
        for running in self.running.values():
            metrics = Run(running.run.config.out).metrics_file
            metrics.write_text("{}\n")
            os.utime(metrics, (running.begun + 1, running.begun + 1))


@pytest.fixture
def two_gpus(control: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[float, float] | None]:
    """The memory that the GPUs report."""
    memory: dict[str, tuple[float, float] | None] = {"0": (30, 70), "1": (30, 70)}
    monkeypatch.setattr(local, "gpus_for", lambda device: ["0", "1"])
    monkeypatch.setattr(local, "used_and_free", memory.get)
    monkeypatch.setattr(local, "CHECK_MEMORY_EVERY", 0.0)
    return memory


def test_every_gpu_gets_one_run_first_and_a_second_if_memory_suffices(
    two_gpus: dict[str, tuple[float, float] | None], tmp_path: Path
) -> None:
    gpus, runs = OnGpus(tmp_path), plan_runs(small_study(), tmp_path)
    assert [run.kind for run in runs] == ["t4", "t3", "t2", "base"]
    assert gpus.slots == 4
    assert gpus.start(runs[0])
    assert gpus.start(runs[1])
    assert [gpu for _, gpu in gpus.started] == ["0", "1"]
    assert not gpus.start(runs[2]), "the first two have not shown yet what they need"
    gpus.train_an_epoch()
    two_gpus["0"] = None
    two_gpus["1"] = (30, 24)  # three heads take 30, so two are expected to take 20, and a quarter is to spare
    assert not gpus.start(runs[2])
    two_gpus["1"] = (30, 25)
    assert gpus.start(runs[2])
    assert gpus.started[-1] == ("t2", "1")
    gpus.running.clear()
    gpus.close()


def test_given_jobs_are_started_without_checking_memory(
    two_gpus: dict[str, tuple[float, float] | None], tmp_path: Path
) -> None:
    two_gpus |= {"0": None, "1": None}
    gpus = OnGpus(tmp_path, jobs=2)
    assert all(gpus.start(run) for run in plan_runs(small_study(), tmp_path))
    assert [gpu for _, gpu in gpus.started] == ["0", "1", "0", "1"]
    gpus.running.clear()
    gpus.close()


def test_one_at_once_needs_no_service(two_gpus: object, control: Path, tmp_path: Path) -> None:
    gpus = OnGpus(tmp_path, jobs=1)
    assert gpus.slots == 2
    gpus.close()
    assert not control.exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_an_unusable_gpu_is_an_error_and_does_not_mean_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "gpus_for", lambda device: ["0"])  # as if this process had seen one
    runs = plan_runs(small_study(device="auto"), tmp_path)[-1:]
    outcome = execute(runs, LocalProcesses(tmp_path, jobs=1), quiet=True)
    assert list(outcome.failed) == ["digits-fast-base-s0"]
    assert "no CUDA device" in outcome.failed["digits-fast-base-s0"]


def test_a_run_has_not_trained_before_its_first_epoch(tmp_path: Path) -> None:
    run = plan_runs(small_study(), tmp_path)[-1]
    metrics = Run(run.config.out)
    running = local.Running(run, None, 0, time.time())  # type: ignore[arg-type]
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
def test_the_service_is_not_started_if_it_would_number_the_gpus_differently(
    control: Path, monkeypatch: pytest.MonkeyPatch, visible: str, there: bool
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    service = cuda_mps.start_service()
    assert (service is not None) == there
    if service:
        service.close()


def test_results_record_how_many_runs_shared_the_device(tmp_path: Path) -> None:
    run_study(small_study(), tmp_path, jobs=2, quiet=True)
    assert {Run(run.path).result().at_once for run in plan_runs(small_study(), tmp_path)} == {2}


@pytest.mark.gpu
def test_on_a_gpu_two_runs_share_it_and_the_service_ends(tmp_path: Path) -> None:
    runs, gpus = plan_runs(small_study(device="auto", model="resnet8-small"), tmp_path), LocalProcesses(tmp_path)
    service = gpus.service
    if service is None:
        pytest.skip(f"{cuda_mps.CONTROL} is not here, or does not start")
    memory = cuda_mps.used_and_free("0")
    assert memory is not None
    assert memory[1] > 0
    outcome = execute(runs, gpus, quiet=True)
    assert not outcome.failed
    assert not Path(service.environment["CUDA_MPS_PIPE_DIRECTORY"]).exists()
    assert {Run(run.path).result().at_once for run in runs} == {2}
