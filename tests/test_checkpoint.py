"""Checkpoints survive kills, full disks and damage, or end in an error that states it."""

import multiprocessing
import os
import random
import re
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from small_runs import SOURCE, command, images_file, plain, run, stopped_run, weights
from transnet.runs import checkpoint
from transnet.runs.checkpoint import CheckpointError, load_checkpoint, save_checkpoint
from transnet.runs.files import write_tensors


def tensors(step: int, n: int = 1000) -> dict[str, Any]:
    return {"net.a": torch.full((n,), float(step)), "momentum.a": torch.full((3, 2), -float(step)).t()}


def test_a_checkpoint_loads_as_it_was_saved(tmp_path: Path) -> None:
    state = {"done": 7, "settings": {"name": "größe"}}
    save_checkpoint(tmp_path / "state", 7, tensors(7) | state)
    found = load_checkpoint(tmp_path / "state")
    assert found is not None
    assert set(found.state) == {"done", "settings", "net.a", "momentum.a"}
    assert {name: found.state[name] for name in state} == state
    assert all(torch.equal(found.state[name], tensor) for name, tensor in tensors(7).items())
    assert not found.damaged


def test_an_empty_folder_has_no_checkpoint(tmp_path: Path) -> None:
    assert load_checkpoint(tmp_path / "state") is None
    assert checkpoint.last_good(tmp_path / "state") == "none"


def test_the_last_two_are_kept(tmp_path: Path) -> None:
    for step in (5, 10, 15, 100_000_000):
        save_checkpoint(tmp_path, step, tensors(step))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["00000015", "100000000"]
    found = load_checkpoint(tmp_path)
    assert found is not None
    assert found.state["net.a"][0] == 100_000_000


def test_no_partial_file_is_left(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, 5, tensors(5))
    names = {path.name for path in (tmp_path / "00000005").iterdir()}
    assert names == {"tensors.safetensors", "state.json", "manifest.json"}


@pytest.mark.parametrize("name", ["tensors.safetensors", "state.json", "manifest.json"])
def test_a_damaged_newest_checkpoint_is_skipped_and_reported(tmp_path: Path, name: str) -> None:
    for step in (5, 10):
        save_checkpoint(tmp_path, step, tensors(step) | {"done": step})
    file = tmp_path / "00000010" / name
    file.write_bytes(file.read_bytes()[:-3])
    found = load_checkpoint(tmp_path)
    assert found is not None
    assert found.state["done"] == found.state["net.a"][0] == 5
    assert "00000010" in found.damaged[0]
    assert checkpoint.last_good(tmp_path).endswith("00000005")


def test_saving_deletes_later_damaged_checkpoints_and_keeps_good_ones(tmp_path: Path) -> None:
    for step in (5, 10):
        save_checkpoint(tmp_path, step, tensors(step) | {"done": step})
    (tmp_path / "00000010" / "state.json").write_text("{}")
    (tmp_path / "00000012").mkdir()  # one that was being written when the process was killed
    save_checkpoint(tmp_path, 7, tensors(7) | {"done": 7})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["00000005", "00000007"]


def test_a_manifest_of_another_checkpoint_is_refused(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, 5, tensors(5) | {"done": 5})
    os.rename(tmp_path / "00000005", tmp_path / "00000009")
    with pytest.raises(CheckpointError, match="not the ones in its manifest"):
        load_checkpoint(tmp_path)


def test_if_all_are_damaged_the_error_names_each_and_the_remedy(tmp_path: Path) -> None:
    for step in (5, 10):
        save_checkpoint(tmp_path, step, tensors(step))
        (tmp_path / f"{step:08d}" / "tensors.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"00000010: .*; 00000005: .*delete that folder to start again"):
        load_checkpoint(tmp_path)


def _save_for_ever(folder: Path, first: int) -> None:
    for step in range(first, 10**8):
        save_checkpoint(folder, step, tensors(step, 20_000) | {"done": step})


def test_after_a_kill_at_any_moment_of_saving_the_newest_complete_checkpoint_loads(tmp_path: Path) -> None:
    chance = random.Random(0)
    done = 0
    for _ in range(25):
        child = multiprocessing.get_context("fork").Process(target=_save_for_ever, args=(tmp_path, done + 1))
        child.start()
        while max((int(path.name) for path in tmp_path.iterdir()), default=0) < done + 2:  # the first one is complete
            assert child.is_alive()
        time.sleep(chance.random() * 0.05)
        child.kill()
        child.join()
        found = load_checkpoint(tmp_path)
        assert found is not None
        step = found.state["done"]
        assert step > done
        assert (found.state["net.a"] == step).all()
        assert not found.damaged
        done = step


def test_a_full_disk_leaves_the_last_checkpoint_and_a_clear_error(tmp_path: Path) -> None:
    file = images_file(tmp_path / "x.npz")
    wide = {"width": 600}
    run(file, tmp_path / "whole", plain(**wide))
    stopped_run(file, tmp_path / "run", step=7, model=wide)
    script = f"""
import resource, sys
from small_runs import plain, settings
from transnet.runs.checkpoint import CheckpointError
from transnet.train.trainer import train
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    train(settings({str(file)!r}, {str(tmp_path / "run")!r}, resume=True), model=plain(width=600), quiet=True)
except CheckpointError as error:
    sys.exit(f"refused: {{error}}")
"""
    process = command("-c", script)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 1
    assert "Traceback" not in errors
    assert "refused: the checkpoint" in errors
    assert "File too large" in errors
    assert f"the last good checkpoint is {tmp_path / 'run' / 'state' / '00000007'}" in errors
    assert sorted(path.name for path in (tmp_path / "run" / "state").glob("0*")) == ["00000005", "00000007"]
    run(file, tmp_path / "run", plain(**wide), resume=True)
    assert weights(tmp_path / "run") == weights(tmp_path / "whole")


def test_a_full_disk_on_the_command_line_exits_1_without_a_traceback(tmp_path: Path) -> None:
    out = tmp_path / "run"
    script = (
        "import resource, sys; from transnet.cli import main;"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000,) * 2);"
        f"sys.exit(main(['train', 'digits', '--out', {str(out)!r}, '--epochs', '3', '--device', 'cpu']))"
    )
    process = command("-c", script)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 1
    assert "Traceback" not in errors
    assert "could not be written" in errors
    assert "the last good checkpoint is none" in errors


def damage(file: Path, chance: random.Random) -> str:
    content = bytearray(file.read_bytes())
    kind = chance.choice(("cut", "bit", "zeros", "longer"))
    if kind == "cut":
        content = content[: chance.randrange(len(content))]
    elif kind == "bit":
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    elif kind == "zeros":
        start = chance.randrange(len(content))
        content[start : start + 512] = bytes(len(content[start : start + 512]))
    else:
        content += b"\0"
    file.write_bytes(content)
    return kind


def test_a_hundred_damaged_files_resume_to_the_same_end_or_are_refused(tmp_path: Path) -> None:
    file = images_file(tmp_path / "x.npz", n=60, test=6)
    changes = {"epochs": 4, "checkpoint_every": 1, "evaluate_every": 0}
    run(file, tmp_path / "whole", plain(), **changes)
    stopped_run(file, tmp_path / "stopped", step=5, **changes)
    whole, steps = weights(tmp_path / "whole"), sorted((tmp_path / "stopped" / "state").glob("0*"))
    assert [path.name for path in steps] == ["00000004", "00000005"]
    chance = random.Random(1)
    outcomes = {"resumed": 0, "refused": 0}
    for _ in range(100):
        out = tmp_path / "run"
        shutil.copytree(tmp_path / "stopped", out)
        both = chance.random() < 0.3
        for step in steps if both else [chance.choice(steps)]:
            name = chance.choice(("tensors.safetensors", "state.json", "manifest.json"))
            kind = damage(out / "state" / step.name / name, chance)
        try:
            run(file, out, plain(), resume=True, **changes)
        except CheckpointError:
            assert both, (kind, name)
            outcomes["refused"] += 1
        else:
            assert weights(out) == whole, (kind, name)
            outcomes["resumed"] += 1
        shutil.rmtree(out)
    assert outcomes["resumed"] >= 60
    assert outcomes["refused"] >= 10


def test_a_checkpoint_of_other_settings_is_refused_without_config_json_too(tmp_path: Path) -> None:
    file = images_file(tmp_path / "x.npz", n=60, test=6)
    stopped_run(file, tmp_path / "run", step=5, epochs=4)
    (tmp_path / "run" / "config.json").unlink()
    with pytest.raises(ValueError, match=r"`lr`: 0\.05 before, 0\.1 now"):
        run(file, tmp_path / "run", plain(), epochs=4, lr=0.1, resume=True)


def test_nothing_that_could_run_code_is_ever_loaded() -> None:
    for path in SOURCE.rglob("*.py"):
        text = re.sub(r"\"[^\"]*torch\.load[^\"]*\"", "", path.read_text())  # messages may mention it
        assert "torch.load(" not in text, path
        assert "import pickle" not in text, path


def test_weights_that_share_memory_are_written_under_both_names(tmp_path):
    shared = torch.arange(6.0)
    write_tensors(tmp_path / "tied.safetensors", {"a": shared, "b": shared, "c": shared[:2]})
    read = load_file(tmp_path / "tied.safetensors")
    assert torch.equal(read["a"], shared)
    assert torch.equal(read["b"], shared)
    assert torch.equal(read["c"], shared[:2])
