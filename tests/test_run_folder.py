"""The folder of a run: who may write to it, and what can be read back from it."""

import errno
import fcntl
import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from data_files import class_folder, encoded, noise
from small_runs import images_file, plain, run, settings, stopped_run, weights
from transnet import load
from transnet.data import Split
from transnet.errors import DataError, TransnetError
from transnet.runs import folder
from transnet.runs.checkpoint import CheckpointError
from transnet.runs.config import from_dict
from transnet.runs.folder import Run
from transnet.runs.predictions import Predictions
from transnet.runs.records import encode
from transnet.ship.predict import choose_threshold
from transnet.train.evaluate import scores_of_logits
from transnet.train.evaluate_runs import collect, evaluate_runs, own_data, some_images
from transnet.train.failures import TrainingError
from transnet.train.trainer import train

FILES = {"config.json", "metrics.jsonl", "model.safetensors", "result.json"}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return images_file(tmp_path_factory.mktemp("data") / "x.npz", n=90, test=30)


@pytest.fixture(scope="module")
def finished(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "finished"
    run(data, out, epochs=2)
    return out


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def test_a_finished_run_is_four_files(finished: Path) -> None:
    assert {path.name for path in finished.iterdir()} == FILES


def test_result_json_is_what_train_returned_and_has_the_agreed_fields(data: Path, tmp_path: Path) -> None:
    result = run(data, tmp_path / "run", epochs=1)
    written = encode(Run(tmp_path / "run").result())
    assert written == json.loads(json.dumps(result))
    assert set(written) >= {"schema", "test", "test_flip", "val", "train", "generalization", "cost", "seconds",
                            "versions", "device", "command", "commit", "config"}  # fmt: skip
    assert set(written["test"]) == {"pruned", "full", "heads"}
    assert set(written["test"]["pruned"]) >= {"accuracy", "loss", "n"}
    assert set(written["cost"]) == {
        "train_passes", "predict_passes", "parameters", "images_per_second", "train_flops", "predict_flops",
    }  # fmt: skip
    assert written["cost"]["train_passes"] == 90 * 2
    assert written["test"]["pruned"]["n"] == 30
    parts = [written[f"{what}_seconds"] for what in ("prepare", "compile", "train", "evaluate")]
    assert min(parts) > 0
    assert sum(parts) <= written["seconds"]


# --------------------------------------------------------------------------------------------------------- the folder


def test_files_have_the_permissions_of_the_umask(finished: Path) -> None:
    modes = {path.name: path.stat().st_mode & 0o777 for path in finished.iterdir()}
    assert set(modes.values()) == {modes["config.json"]}


def test_a_model_that_cannot_be_written_is_named_and_the_checkpoint_is_kept(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, _: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(folder, "write_tensors", full)
    message = r"No space left on device: '.*model\.safetensors'\); the last good checkpoint is \S+/\d+"
    with pytest.raises(CheckpointError, match=message):
        run(data, tmp_path / "run", checkpoint_every=100)
    monkeypatch.undo()
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    result = run(data, tmp_path / "run", checkpoint_every=100, resume=True)
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before  # no epoch was trained again
    assert result["test"]["full"]["n"] == 30


def test_a_folder_whose_name_is_not_utf8_is_refused_before_training(data: Path, tmp_path: Path) -> None:
    out = tmp_path / os.fsdecode(b"run\xff")
    with pytest.raises(TransnetError, match="is not UTF-8"):
        run(data, out)
    assert not out.exists()


def test_an_existing_folder_is_refused_without_resume(data: Path, copied: Path) -> None:
    before = {path.name: path.read_bytes() for path in copied.iterdir()}
    with pytest.raises(TransnetError, match=r"exists; add `resume`"):
        run(data, copied, epochs=2)
    assert {path.name: path.read_bytes() for path in copied.iterdir()} == before


def test_an_empty_folder_is_accepted(data: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    run(data, tmp_path / "run", epochs=1)
    assert Run(tmp_path / "run").finished


@pytest.mark.parametrize("resume", [True, False])
def test_a_path_that_is_no_run_is_never_changed(data: Path, tmp_path: Path, resume: bool) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "thesis.tex").write_text("mine")
    with pytest.raises(TransnetError, match="is a file"):
        run(data, tmp_path / "file", resume=resume)
    with pytest.raises(TransnetError, match=r"not contain a run|exists"):
        run(data, tmp_path / "folder", resume=resume)
    assert [path.name for path in (tmp_path / "folder").iterdir()] == ["thesis.tex"]


def test_a_folder_that_cannot_be_created_is_a_clear_error(data: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TransnetError, match="cannot be written"):
        run(data, tmp_path / "file" / "run")


@pytest.mark.parametrize("out", ["pets/run", "pets/cat/deep/run", "pets", "linked/run", "other/../pets/run"])
@pytest.mark.parametrize("resume", [True, False])
def test_a_run_inside_its_data_is_refused(tmp_path: Path, out: str, resume: bool) -> None:
    pets = class_folder(tmp_path / "pets", n=4)
    (tmp_path / "linked").symlink_to(pets)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(TransnetError, match=rf"out: .*{out} is inside the data, .*pets; give a folder outside"):
        run(pets, tmp_path / out, resume=resume)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_run_beside_its_data_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pets = class_folder(tmp_path / "pets", n=4)
    run(pets, tmp_path / "pets-run", epochs=1)
    run("digits", Path("digits/run"), epochs=1, train_fraction=0.01)  # a name, and no folder here
    assert Run("pets-run").finished
    assert Run("digits/run").finished


def test_resume_without_a_checkpoint_starts_from_the_beginning(data: Path, tmp_path: Path, finished: Path) -> None:
    run(data, tmp_path / "new", epochs=2, resume=True)
    assert weights(tmp_path / "new") == weights(finished)
    only_config = tmp_path / "killed early"
    only_config.mkdir()
    shutil.copy(finished / "config.json", only_config)
    (only_config / "metrics.jsonl").write_text('{"epoch": 1}\n{"epo')
    run(data, only_config, epochs=2, resume=True)
    assert weights(only_config) == weights(finished)
    assert [entry.epoch for entry in Run(only_config).metrics()] == [1, 2]


def test_a_run_killed_while_it_wrote_its_first_file_can_be_resumed(data: Path, tmp_path: Path, finished: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json.partial").write_text('{"sch')
    run(data, tmp_path / "run", epochs=2, resume=True)
    assert weights(tmp_path / "run") == weights(finished)


def test_a_finished_run_returns_its_result_at_once_and_deletes_its_state(data: Path, copied: Path) -> None:
    (copied / "state").mkdir()
    before = {path.name: path.stat().st_mtime_ns for path in copied.iterdir() if path.is_file()}
    result = run(data, copied, epochs=2, resume=True)
    assert result == encode(Run(copied).result())
    assert {path.name: path.stat().st_mtime_ns for path in copied.iterdir()} == before


@pytest.mark.parametrize("ended", [True, False])
def test_changed_settings_are_refused_with_their_names(data: Path, tmp_path: Path, ended: bool) -> None:
    out = tmp_path / "run"
    if ended:
        run(data, out, plain(), epochs=2)
    else:
        stopped_run(data, out, step=4, epochs=2)
    with pytest.raises(TransnetError) as caught:
        run(data, out, plain(), epochs=3, lr=0.2, resume=True)
    assert "`epochs`: 2 before, 3 now" in str(caught.value)
    assert "`lr`: 0.05 before, 0.2 now" in str(caught.value)
    assert "--seed" not in str(caught.value)


def test_seconds_and_commit_cover_all_processes_of_the_run(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    monkeypatch.setenv("TRANSNET_COMMIT", "first")
    stopped_run(data, out, step=4, epochs=2)
    *_, state = sorted((out / "state").glob("0*"))
    before = json.loads((state / "state.json").read_text())["seconds"]
    monkeypatch.setenv("TRANSNET_COMMIT", "second")
    result = run(data, out, plain(), epochs=2, resume=True)
    assert result["commit"] == "first"
    assert result["seconds"] > before["total"] > 0
    for part in ("prepare", "train", "evaluate"):
        assert result[f"{part}_seconds"] > before[part] > 0


def test_changed_data_are_refused(tmp_path: Path) -> None:
    file = images_file(tmp_path / "x.npz", n=60, test=6)
    stopped_run(file, tmp_path / "run", step=3)
    images_file(file, n=60, test=6, seed=1)
    with pytest.raises(TransnetError, match="the splits of the data differ"):
        run(file, tmp_path / "run", plain(), resume=True)


def test_a_finished_run_does_not_match_other_data_of_the_same_name(data: Path, copied: Path) -> None:
    for place, seed in (("same", 0), ("other", 1)):
        (copied.parent / place).mkdir()
        images_file(copied.parent / place / "x.npz", n=90, test=30, seed=seed)
    assert run(copied.parent / "same" / "x.npz", copied, epochs=2, resume=True) == encode(Run(copied).result())
    other = str(copied.parent / "other" / "x.npz")
    with pytest.raises(TransnetError, match=r"`data`: .* before, .* now, with other content or splits") as caught:
        run(other, copied, epochs=2, resume=True)
    assert f"{str(data)!r} before, {other!r} now" in str(caught.value)


def test_resuming_with_another_custom_model_is_refused(data: Path, tmp_path: Path) -> None:
    stopped_run(data, tmp_path / "run", step=4)
    with pytest.raises(TransnetError, match="begun with another model"):
        run(data, tmp_path / "run", plain(width=7), resume=True)


def test_config_json_repeats_the_run(data: Path, finished: Path, tmp_path: Path) -> None:
    content = json.loads((finished / "config.json").read_text())["train"]
    train(from_dict({**content, "out": str(tmp_path / "again")}), quiet=True)
    assert weights(tmp_path / "again") == weights(finished)


def test_the_seed_chooses_the_subset_and_the_arms_of_a_seed_share_it(data: Path, tmp_path: Path) -> None:
    about = {}
    for name, changes in {"a": {"seed": 1}, "b": {"seed": 1, "transforms": "r0"}, "c": {"seed": 2}}.items():
        run(data, tmp_path / name, epochs=1, train_fraction=0.5, **changes)
        about[name] = Run(tmp_path / name).settings().data
    assert about["a"].fingerprint == about["b"].fingerprint != about["c"].fingerprint
    assert [about[name].subset_seed for name in "abc"] == [1, 1, 2]
    assert about["a"].sizes == about["c"].sizes
    assert own_data(tmp_path / "c").fingerprint == about["c"].fingerprint
    run(data, tmp_path / "all", epochs=1, seed=2)
    assert Run(tmp_path / "all").settings().data.subset_seed is None


@pytest.mark.parametrize("storage", ["resident", "stream"])
def test_a_run_is_written_where_folders_cannot_be_opened_or_read_only_files_flushed(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, storage: Any
) -> None:
    def open_file(path: Any, flags: int, *args: Any, **options: Any) -> int:
        if os.path.isdir(path):
            raise PermissionError(13, "is a folder", path)
        return opened(path, flags, *args, **options)

    def flush(handle: int) -> None:
        if fcntl.fcntl(handle, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(9, "is read-only")
        flushed.append(handle)

    opened, flushed = os.open, list[int]()
    monkeypatch.setattr(os, "open", open_file)
    monkeypatch.setattr(os, "fsync", flush)
    monkeypatch.setattr(shutil, "_use_fd_functions", False)  # as on systems that cannot open folders
    monkeypatch.setenv("TRANSNET_CACHE", str(tmp_path / "cache"))
    changes: dict[str, Any] = {"epochs": 4, "checkpoint_every": 1, "storage": storage, "workers": 0}
    stopped_run(data, tmp_path / "run", step=8, **changes)
    run(data, tmp_path / "run", plain(), resume=True, **changes)
    assert {path.name for path in (tmp_path / "run").iterdir()} == FILES
    assert flushed


def test_weights_do_not_depend_on_folder_or_time(data: Path, finished: Path, tmp_path: Path) -> None:
    run(data, tmp_path / "elsewhere" / "deep", epochs=2)
    assert (tmp_path / "elsewhere" / "deep" / "model.safetensors").read_bytes() == (
        finished / "model.safetensors"
    ).read_bytes()


def test_another_seed_gives_other_weights(data: Path, finished: Path, tmp_path: Path) -> None:
    run(data, tmp_path / "run", epochs=2, seed=1)
    assert weights(tmp_path / "run") != weights(finished)


def test_base_and_transnet_of_one_seed_start_from_the_same_backbone(data: Path, tmp_path: Path) -> None:
    for name, transforms in (("base", "r0"), ("t2", "r0,r1")):
        run(data, tmp_path / name, transforms=transforms, epochs=1, lr=0.0)
    base, t2 = load(tmp_path / "base").state_dict(), load(tmp_path / "t2").state_dict()
    names = [name for name in base if name.endswith("weight") and name.startswith("backbone")]
    assert len(names) > 5
    assert all(torch.equal(base[name], t2[name]) for name in names)


# ------------------------------------------------------------------------------------------------------------ loading


@pytest.mark.parametrize(
    "changes", [{}, {"heads": "shared", "bn": "separate"}, {"transforms": "r0,r0"}, {"flip": True}]
)
def test_a_loaded_run_reproduces_its_result(data: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    result = run(data, tmp_path / "run", epochs=1, **changes)
    again = evaluate_runs([str(tmp_path / "run")], device="cpu")[str(tmp_path / "run")]
    for ours, theirs in ((again.plain, result["test"]), (again.flip, result["test_flip"])):
        assert (ours is None) == (theirs is None)
        for kind in ("pruned", "full") if ours else ():
            assert getattr(ours, kind).accuracy == theirs[kind]["accuracy"]
            assert getattr(ours, kind).loss == pytest.approx(theirs[kind]["loss"], rel=1e-6)


def test_a_custom_model_must_be_given_again(data: Path, tmp_path: Path) -> None:
    run(data, tmp_path / "run", plain(), epochs=1)
    with pytest.raises(TransnetError, match=r"a model of your own; give it as load\(path, model=…\)"):
        load(tmp_path / "run")
    net = load(tmp_path / "run", model=plain(seed=5))
    assert not net.training
    with pytest.raises(TransnetError, match="does not fit"):
        load(tmp_path / "run", model=plain(width=9))


def test_a_hundred_damaged_weight_files_are_all_refused(copied: Path) -> None:
    chance = random.Random(0)
    whole = (copied / "model.safetensors").read_bytes()
    for i in range(100):
        content = bytearray(whole)
        if i % 2:
            content = content[: chance.randrange(len(content))]
        else:
            content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        (copied / "model.safetensors").write_bytes(content)
        with pytest.raises(TransnetError, match=r"model\.safetensors is damaged"):
            load(copied)


def test_other_data_of_the_same_name_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "digits"
    for label in range(10):
        (folder / str(label)).mkdir(parents=True)
        for i in range(10):
            (folder / str(label) / f"{i}.png").write_bytes(encoded(noise(10 * label + i, 8, 8, channels=1)))
    out = tmp_path / "run"
    # As a study does it: the run keeps the data's name alone.
    train(settings("digits", out, epochs=1, val_fraction=0.2, train_fraction=0.5), data=str(folder), quiet=True)
    with pytest.raises(DataError, match=r"digits is not what .*run was trained on: .*give `data`"):
        evaluate_runs([str(out)], device="cpu")
    with pytest.raises(DataError, match="is not what"):
        some_images(str(out), 4)
    with pytest.raises(TransnetError, match=r"confidence: digits is not what .*give a number"):
        choose_threshold(out, device="cpu")
    val = own_data(out, at=str(folder)).val
    assert val is not None
    assert collect(out, data=str(folder), split="val", device="cpu").fingerprint == val.fingerprint
    assert 0.5 <= choose_threshold(out, data=str(folder), device="cpu") <= 1
    with pytest.raises(DataError, match="digits is not what"):  # other data has no validation split of this run's
        evaluate_runs([str(out)], data="digits", split="val", device="cpu")
    for given, images in ((str(folder), 20), ("digits", 359)):  # what the user asks for is measured
        assert evaluate_runs([str(out)], data=given, device="cpu")[str(out)].plain.full.n == images


def test_data_is_found_beside_a_run_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images_file(tmp_path / "images.npz")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    train(settings("images.npz", Path("runs/small"), epochs=1), quiet=True)
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert evaluate_runs(["../runs/small"], device="cpu")["../runs/small"].plain.full.n == 40
    (tmp_path / "images.npz").rename(tmp_path / "elsewhere" / "moved.npz")
    with pytest.raises(DataError, match=r"images.npz: no such name.*in another place now, give `data`"):
        evaluate_runs(["../runs/small"], device="cpu")
    images_file(tmp_path / "images.npz", seed=1)
    with pytest.raises(DataError, match=r"is not what .*small was trained on: .* give `data` .*/images.npz, or"):
        evaluate_runs(["../runs/small"], device="cpu")


def test_the_error_for_an_existing_run_without_a_checkpoint_explains_resume(tmp_path: Path) -> None:
    file, out = images_file(tmp_path / "images.npz"), tmp_path / "run"
    with pytest.raises(TrainingError):
        train(settings(file, out, lr=1e30), quiet=True)
    with pytest.raises(TransnetError, match="give another folder; it has no checkpoint yet, so `resume` starts"):
        train(settings(file, out), quiet=True)


def test_weights_load_without_a_result(copied: Path, finished: Path) -> None:
    (copied / "result.json").unlink()
    a, b = load(copied).state_dict(), load(finished).state_dict()
    assert all(torch.equal(a[name], b[name]) for name in b)
    (copied / "model.safetensors").write_bytes(b"\0" * 100)
    with pytest.raises(TransnetError, match=r"model\.safetensors is damaged"):
        load(copied)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"\xff\xfe", b'{"train": 3, "data": {}}', b'{"train": {}, "data": {}}',
                b'{"data": {"classes": 3}}', b'{"train": {"model": 5}, "data": {"classes": ["a", "b"]}}'],
)  # fmt: skip
def test_a_damaged_config_json_is_a_clear_error(data: Path, copied: Path, content: bytes) -> None:
    (copied / "config.json").write_bytes(content)
    with pytest.raises(TransnetError, match=r"config\.json"):
        load(copied)
    with pytest.raises(TransnetError, match=r"config\.json|other settings"):
        run(data, copied, epochs=2, resume=True)
    (copied / "result.json").unlink()
    with pytest.raises(TransnetError, match=r"config\.json|other settings"):
        run(data, copied, epochs=2, resume=True)


def test_a_folder_that_is_not_a_run_is_a_clear_error(tmp_path: Path, data: Path) -> None:
    with pytest.raises(TransnetError, match="is this the folder of a run"):
        load(tmp_path / "nowhere")
    with pytest.raises(TransnetError, match="is a file; give the folder of a run"):
        load(data)
    stopped_run(data, tmp_path / "run", step=4)
    with pytest.raises(TransnetError, match="continue with `resume`"):
        load(tmp_path / "run", model=plain())


def test_metrics_leave_out_a_line_that_is_not_complete(copied: Path) -> None:
    with open(copied / "metrics.jsonl", "a") as file:
        file.write('{"epoch": 3, "lo')
    assert [entry.epoch for entry in Run(copied).metrics()] == [1, 2]


def test_settings_changed_at_resume_are_recorded(data: Path, tmp_path: Path) -> None:
    stopped_run(data, tmp_path / "run", step=4)
    run(data, tmp_path / "run", plain(), resume=True, checkpoint_every=2)
    assert json.loads((tmp_path / "run" / "config.json").read_text())["train"]["checkpoint_every"] == 2
    assert settings(data, tmp_path / "run").resume is False


@pytest.mark.parametrize("storage", ["resident", "stream"])
def test_evaluation_streams_what_training_streamed(
    tmp_path: Path, storage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = run(images_file(tmp_path / "x.npz"), tmp_path / "run", epochs=1, storage=storage, workers=0)
    loaded = []
    resident = Split.resident
    monkeypatch.setattr(Split, "resident", lambda *args, **options: loaded.append(1) or resident(*args, **options))
    again = evaluate_runs([str(tmp_path / "run")], device="cpu")[str(tmp_path / "run")]
    assert bool(loaded) == (storage == "resident")
    assert again.plain.full.loss == pytest.approx(result["test"]["full"]["loss"], rel=1e-6)


def test_saved_predictions_are_the_runs_own_outputs(data: Path, tmp_path: Path) -> None:
    run(data, tmp_path / "run", epochs=1, flip=True)
    (evaluated,) = evaluate_runs([str(tmp_path / "run")], device="cpu", save_predictions=True).values()
    found = Predictions.read(tmp_path / "run" / "predictions.npz")
    assert found.heads == ("r0", "r1")
    assert found.model_sha256 == Run(tmp_path / "run").result().model_sha256
    for scores, expected in ((found.scores, evaluated.plain), (found.scores_flip, evaluated.flip)):
        logits = torch.from_numpy(scores).float()
        assert scores_of_logits(logits, torch.from_numpy(found.labels), found.heads).full.loss == pytest.approx(
            expected.full.loss, rel=1e-2
        )
    with pytest.raises(TransnetError) as caught:
        evaluate_runs([str(tmp_path / "run")], data=str(data), save_predictions=True)
    assert caught.value.field == "save_predictions"
