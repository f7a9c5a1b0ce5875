"""Several processes train the same as one."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from small_runs import command, images_file, plain, run, stopped_run
from transnet.data import open_data
from transnet.data.augment import View
from transnet.data.pixels import Geometry
from transnet.runs.folder import Run
from transnet.runs.records import encode
from transnet.train.distributed import World
from transnet.train.evaluate_runs import evaluate_runs

N = 97  # batches of 32, 32, 32 and 1: in the last, one of two processes has nothing


def torchrun(*words: Any, processes: int = 2, restarts: int = 0, status: int = 0) -> str:
    script = Path(__file__).parent / "processes.py"
    process = command(
        "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", processes, "--max-restarts", restarts,
        *(words if words[0] == "-m" else (script, *words)),
    )  # fmt: skip
    printed, errors = process.communicate(timeout=300)
    assert process.returncode == status, errors
    return printed + errors


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return images_file(tmp_path_factory.mktemp("data") / "x.npz", n=N, test=31)


@pytest.fixture(scope="module")
def several(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of two processes, one after the other under one torchrun."""
    out = tmp_path_factory.mktemp("two")
    torchrun("several", data, out)
    return out


def close(a: Path, b: Path) -> None:
    """The same weights to rounding, and the same record."""
    left, right = load_file(a / "model.safetensors"), load_file(b / "model.safetensors")
    assert set(left) == set(right)
    for name in left:
        torch.testing.assert_close(left[name], right[name], atol=2e-5, rtol=2e-4)
    for one, other in zip(Run(a).metrics(), Run(b).metrics(), strict=True):
        assert one.step == other.step
        assert one.loss == pytest.approx(other.loss, rel=1e-3)
        assert one.accuracy == pytest.approx(other.accuracy, abs=2.1 / N)


# -------------------------------------------------------------------------------------------------- the shares


@pytest.mark.parametrize("size", range(1, 9))
@pytest.mark.parametrize("n", [0, 1, 2, 7, 8, 9, 64])
def test_shares_are_even_contiguous_and_cover_everything_once(size: int, n: int) -> None:
    shares = [World(rank, size).share(n) for rank in range(size)]
    covered = [i for start, length in shares for i in range(start, start + length)]
    assert covered == list(range(n))
    lengths = [length for _, length in shares]
    assert max(lengths) - min(lengths) <= 1
    assert lengths == sorted(lengths, reverse=True)  # the first process never has nothing while another has something


def test_a_single_process_does_not_communicate() -> None:
    alone = World()
    assert alone.is_primary
    assert alone.share(10) == (0, 10)
    assert alone.any(True, torch.device("cpu"))
    assert not alone.any(False, torch.device("cpu"))
    alone.barrier()
    alone.broadcast([torch.zeros(2)])


# ------------------------------------------------------------------------------------------------ two processes


def test_two_processes_equal_one_with_the_same_global_batch(data: Path, several: Path, tmp_path: Path) -> None:
    alone = run(data, tmp_path / "one", plain(), pad=2, flip=True, val_fraction=0.1)
    close(tmp_path / "one", several / "plain")
    together = encode(Run(several / "plain").result())
    assert (alone["processes"], together["processes"]) == (1, 2)
    for part in ("test", "test_flip", "val", "val_flip"):
        for kind in ("pruned", "full"):
            assert together[part][kind]["n"] == alone[part][kind]["n"]
            assert together[part][kind]["loss"] == pytest.approx(alone[part][kind]["loss"], rel=1e-3)
    assert together["generalization"] == pytest.approx(alone["generalization"], rel=1e-3)
    assert together["cost"]["train_passes"] == alone["cost"]["train_passes"]


def test_two_streaming_processes_equal_two_resident_ones(several: Path) -> None:
    a, b = (load_file(several / name / "model.safetensors") for name in ("plain", "stream"))
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_every_process_has_the_earlier_predictions_of_all(data: Path, several: Path, tmp_path: Path) -> None:
    run(data, tmp_path / "one", plain(), transforms="r0", past_targets=1.0, epochs=5)
    close(tmp_path / "one", several / "past")


def test_a_batch_smaller_than_the_number_of_processes_works(data: Path, several: Path, tmp_path: Path) -> None:
    run(data, tmp_path / "one", plain(), batch_size=1, epochs=1)
    close(tmp_path / "one", several / "wide")


def test_each_image_is_seen_once_an_epoch(data: Path, several: Path) -> None:
    opened = open_data(str(data))
    view = View.create(Geometry.square(8), mean=opened.mean, std=opened.std)
    expected = view.centre(opened.train.resident((8, 8), progress=False)).flatten(1)
    parts = [load_file(several / f"seen{rank}.safetensors") for rank in range(2)]
    assert [len(part) for part in parts] == [4, 4]
    first = torch.cat([parts[0][key] for key in sorted(parts[0])])
    # The last batch has one image: the second process runs some image there, with weight 0.
    second = torch.cat([parts[1][key] for key in sorted(parts[1])[:-1]])
    seen = torch.cat([first, second]).flatten(1)
    assert len(seen) == N
    distances = torch.cdist(seen, expected, compute_mode="donot_use_mm_for_euclid_dist")
    assert distances.min(1).values.max() < 1e-4
    assert sorted(distances.argmin(1).tolist()) == list(range(N))


def test_the_result_is_that_of_the_weights_that_were_saved(several: Path) -> None:
    """Each process has its own batch-norm statistics; all must evaluate with those of the first."""
    result = encode(Run(several / "norm").result())
    again = evaluate_runs([str(several / "norm")], device="cpu")[str(several / "norm")]
    for kind in ("pruned", "full"):
        assert getattr(again.plain, kind).accuracy == result["test"][kind]["accuracy"]
        assert getattr(again.plain, kind).loss == pytest.approx(result["test"][kind]["loss"], rel=1e-5)


def test_all_processes_stop_at_a_loss_that_is_not_finite_in_one(several: Path) -> None:
    messages = {(several / f"nan{rank}.txt").read_text() for rank in range(2)}
    assert len(messages) == 1
    assert "the loss is nan at step 6 (epoch 2, step 3 of 4)" in messages.pop()


def test_processes_that_see_other_images_do_not_train_together(several: Path) -> None:
    for rank in range(2):
        assert "do not all see the same images" in (several / f"unlike{rank}.txt").read_text()
    assert not (several / "unlike").exists()


# ------------------------------------------------------------------------------------------- killed and resumed


def test_a_killed_worker_is_restarted_and_the_run_finishes(data: Path, tmp_path: Path) -> None:
    torchrun("killed", data, tmp_path / "run", restarts=2)
    # Which of the two processes torchrun reports is chance: the other one aborts too.
    assert {path.name for path in tmp_path.glob("began-*")} == {f"began-{i}-{rank}" for i in (0, 1) for rank in (0, 1)}
    run(data, tmp_path / "one", plain(), epochs=6, checkpoint_every=1)
    close(tmp_path / "one", tmp_path / "run")
    assert [entry.epoch for entry in Run(tmp_path / "run").metrics()] == [1, 2, 3, 4, 5, 6]
    assert not (tmp_path / "run" / "state").exists()


def test_a_run_may_resume_with_another_number_of_processes(data: Path, tmp_path: Path) -> None:
    run(data, tmp_path / "whole", plain())
    stopped_run(data, tmp_path / "run", step=6)
    torchrun("resumed", data, tmp_path / "run", processes=3)
    close(tmp_path / "whole", tmp_path / "run")


@pytest.mark.slow
def test_a_signal_to_one_process_stops_all_with_everything_saved(data: Path, tmp_path: Path) -> None:
    printed = torchrun("stopped", data, tmp_path / "run", status=1)
    assert "Stopped" in printed
    run(data, tmp_path / "run", plain(), resume=True)
    run(data, tmp_path / "whole", plain())
    close(tmp_path / "whole", tmp_path / "run")


def test_the_command_line_under_torchrun_prints_everything_once(data: Path, tmp_path: Path) -> None:
    options = ("--epochs", 2, "--device", "cpu", "--transforms", "r0,r1")
    printed = torchrun("-m", "transnet", "train", data, "--out", tmp_path / "run", *options)
    assert len(re.findall(r"\d training images,", printed)) == 1
    assert len(re.findall("│ pruned", printed)) == 1
    assert len(re.findall("epoch 1 of 2: loss", printed)) == 1
    content = json.loads((tmp_path / "run" / "result.json").read_text())
    assert content["processes"] == 2
