"""The command line as a user meets it: real processes, exit codes, messages without tracebacks."""

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
import torch

from data_files import encoded, noise
from trained import digits_run
from transnet import console
from transnet.cli import COMMANDS, main
from transnet.cli.train import COMMON, train_config
from transnet.errors import ConfigError, OperationError
from transnet.runs.config import TrainConfig

QUICK = ("--epochs", "2", "--train-fraction", "0.2", "--device", "cpu", "--no-tensorboard")


def transnet(*words, check=None):
    command = [sys.executable, "-m", "transnet", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    if check is not None:
        assert done.returncode == check, done.stderr
    return done


@pytest.fixture(scope="module")
def t2(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "t2"
    transnet("train", "digits", "--transforms", "r0,r1", "--val-fraction", "0.2", *QUICK, "--out", path, check=0)
    return path


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "base"
    transnet("train", "digits", "--transforms", "r0", *QUICK, "--out", path, check=0)
    return path


def test_help_lists_every_command_and_each_command_has_its_own(capsys):
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    for verb in COMMANDS:
        assert f"  {verb} " in shown
        with pytest.raises(SystemExit) as left:
            main([verb, "--help"])
        assert left.value.code == 0
        assert "usage: transnet" in capsys.readouterr().out


def test_a_broken_pipe_that_is_not_the_output_is_reported(monkeypatch, capsys):
    def broken(_):
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr("transnet.cli.report.main", broken)
    assert main(["report", "somewhere"]) == 1
    assert "Broken pipe" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--help"], ["train", "--help"]])
def test_a_reader_of_the_output_may_stop_early(words):
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "transnet", *words]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert done.stderr == ""


def test_a_finished_run_is_four_files_with_a_complete_result(t2):
    assert {"config.json", "metrics.jsonl", "model.safetensors", "result.json"} == {p.name for p in t2.iterdir()}
    result = json.loads((t2 / "result.json").read_text())
    expected = {"schema", "test", "test_flip", "val", "train", "generalization", "cost", "seconds", "versions",
                "device", "command", "commit", "config"}  # fmt: skip
    assert expected <= set(result)
    assert set(result["test"]) == {"pruned", "full", "heads"}
    assert {"accuracy", "loss", "n"} <= set(result["test"]["pruned"])
    assert [head["name"] for head in result["test"]["heads"]] == ["r0", "r1"]
    assert result["test_flip"] is None  # digits are not flipped
    assert result["cost"]["predict_passes"] == 2
    assert result["cost"]["train_passes"] == 2 * 2 * result["train"]["n"]
    assert len((t2 / "metrics.jsonl").read_text().splitlines()) == 2


def test_the_command_in_the_result_repeats_the_run_bit_for_bit(t2, tmp_path):
    command = json.loads((t2 / "result.json").read_text())["command"].split()
    assert command[:2] == ["transnet", "train"]
    command[command.index("--out") + 1] = str(tmp_path / "again")
    printed = transnet(*command[1:], check=0).stdout
    assert re.search(
        r"^validation split of 287 images: \d+\.\d\d% pruned, \d+\.\d\d% with all heads$", printed, re.MULTILINE
    )
    assert (tmp_path / "again/model.safetensors").read_bytes() == (t2 / "model.safetensors").read_bytes()


def test_a_runs_config_repeats_it_bit_for_bit(t2, tmp_path):
    transnet("train", "--config", t2 / "config.json", "--out", tmp_path / "again", check=0)
    assert (tmp_path / "again/model.safetensors").read_bytes() == (t2 / "model.safetensors").read_bytes()
    changed = transnet("train", "--config", t2 / "config.json", "--seed", "1", "--out", tmp_path / "other", check=0)
    assert (tmp_path / "other/model.safetensors").read_bytes() != (t2 / "model.safetensors").read_bytes()
    assert "accuracy" in changed.stdout


@pytest.mark.parametrize("flag", ["--tensorboard", "--no-tensorboard", None])
def test_missing_tensorboard_is_reported_only_if_curves_were_requested(flag, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("transnet.cli.train.find_spec", lambda _: None)
    monkeypatch.setattr("transnet.train.trainer.train", lambda _: (_ for _ in ()).throw(OperationError("no further")))
    main(["train", "digits", *([flag] if flag else []), "--out", str(tmp_path / "run")])
    reported = "TensorBoard curves" in capsys.readouterr().err
    assert reported == (flag == "--tensorboard")


def test_an_existing_folder_is_refused_and_a_finished_run_resumed_at_once(t2):
    before = (t2 / "result.json").stat().st_mtime_ns
    words = ("train", "digits", "--transforms", "r0,r1", "--val-fraction", "0.2", *QUICK, "--out", t2)
    assert "add --resume to continue" in transnet(*words, check=2).stderr
    transnet(*words, "--resume", check=0)
    assert (t2 / "result.json").stat().st_mtime_ns == before
    assert "--lr: 0.1 before, 0.2 now" in transnet(*words, "--resume", "--lr", "0.2", check=2).stderr


def test_out_of_memory_is_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("transnet.ship.predict.find_images", lambda *_, **__: torch.empty(2**50, dtype=torch.uint8))
    assert main(["predict", "model", "image.png"]) == 1
    assert capsys.readouterr().err.startswith("transnet: out of memory; a smaller --batch-size")


def test_evaluate_repeats_the_scores_of_training_and_adds_the_ensemble(t2, base):
    shown = json.loads(transnet("evaluate", t2, base, "--json", check=0).stdout)
    for path in (t2, base):
        result = json.loads((path / "result.json").read_text())
        again = shown[str(path)]["plain"]
        assert again["full"]["accuracy"] == result["test"]["full"]["accuracy"]
        assert again["pruned"]["loss"] == pytest.approx(result["test"]["pruned"]["loss"], rel=1e-5)
        assert sum(entry["n"] for entry in shown[str(path)]["classes"]) == again["full"]["n"]
        right = sum(entry["n"] * entry["accuracy"] for entry in shown[str(path)]["classes"])
        assert right == pytest.approx(again["pruned"]["accuracy"] * again["full"]["n"])
    assert shown["ensemble"]["plain"]["full"]["passes"] == 3
    both = transnet("evaluate", t2, base, check=0).stdout
    assert "pruned (head 0: r0)" in both
    assert both.count("most often taken for") == 3  # of the ensemble, too
    assert "without `val_fraction`" in transnet("evaluate", base, "--split", "val", check=2).stderr
    assert "a run is given twice" in transnet("evaluate", t2, f"{t2}/", check=2).stderr


def test_a_run_can_be_evaluated_on_data_of_another_format(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [{"image": {"bytes": encoded(noise(i, 8, 8))}, "kind": i % 2} for i in range(40)]
    for part in ("train", "test"):
        (tmp_path / "shards").mkdir(exist_ok=True)
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / "shards" / f"{part}-0.parquet")
        for i in range(4):
            path = tmp_path / "folder" / part / str(i % 2) / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(encoded(noise(i, 8, 8)))
    words = ("train", tmp_path / "shards", "--label-column", "kind", "--model", "resnet8-small", "--epochs", "1")
    transnet(*words, "--device", "cpu", "--no-tensorboard", "--out", tmp_path / "run", check=0)
    assert transnet("evaluate", tmp_path / "run", "--data", tmp_path / "folder", check=0).stdout
    missing = transnet("evaluate", tmp_path / "run", "--data", tmp_path / "folder", "--split", "val", check=2).stderr
    assert "there is no validation split: folder has none" in missing


def test_a_file_in_place_of_its_runs_folder_names_the_folder(t2, tmp_path, capsys):
    for words in (
        ["evaluate", "{run}"], ["prune", "{run}", "--out", str(tmp_path / "x")], ["invariance", "{run}"],
        ["predict", "{run}", str(t2)], ["serve", "{run}", "--no-browser"],
    ):  # fmt: skip
        for name in ("config.json", "metrics.jsonl", "result.json"):
            assert main([word.replace("{run}", str(t2 / name)) for word in words]) == 2
            assert capsys.readouterr().err == f"transnet: {t2 / name} is a file; give its folder, {t2}\n"


def test_prune_refuses_the_current_folder(t2, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for out in (".", "", str(tmp_path)):
        assert main(["prune", str(t2), "--out", out]) == 2
        assert f"--out: {tmp_path} is the current folder" in capsys.readouterr().err


def test_the_output_folder_is_checked_before_the_work(t2, tmp_path, capsys):
    (tmp_path / "file").write_text("mine")
    for out in (tmp_path / "file", tmp_path / "file" / "figures"):
        assert main(["invariance", str(t2), "--out", str(out)]) == 2
        assert capsys.readouterr().err.startswith(f"transnet: --out: {out} cannot be created")
    for verb in ("invariance", "prune"):  # not even root can create a folder there
        assert main([verb, str(t2), "--out", "/proc/nothing"]) == 2
        printed = capsys.readouterr()
        assert re.search(r"--out: /proc/nothing cannot be \w+ \(No such file or directory\); give", printed.err)
        assert printed.out == ""
    assert main(["demo", "--json", str(tmp_path / "nowhere" / "x.json")]) == 2
    assert "--json: " in capsys.readouterr().err


def test_invariance_prints_a_table_and_draws_two_figures(t2, base, tmp_path):
    shown = transnet("invariance", base, t2, "--out", tmp_path / "figures", check=0).stdout
    assert "layer3_0.conv2" in shown
    assert "a run is given twice" in transnet("invariance", base, f"{base}/", check=2).stderr
    names = {path.name for path in (tmp_path / "figures").iterdir()}
    assert names == {
        "invariance.json",
        *(f"invariance_{w}.{s}" for w in ("layers", "last_layer") for s in ("svg", "png", "pdf")),
    }


def test_the_trivial_group_is_refused(base, capsys):
    for group in ("r0", "r0,r0"):
        assert main(["invariance", str(base), "--group", group]) == 2
        printed = capsys.readouterr()
        assert f"--group: {group} is the identity alone" in printed.err
        assert printed.out == ""
    assert main(["invariance", str(base), "--group", "r7"]) == 2
    assert "--group: unknown 'r7'; known are r0" in capsys.readouterr().err
    assert main(["invariance", str(base), "--group", "r1"]) == 0
    assert "r0,r1,r2,r3" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "epochs", "batch"),
    [
        (["cifar100", "--out", "o"], 60, 512),
        (["--transforms", "r0,r1", "--out", "o", "cifar100"], 60, 512),
        (["--out", "o", "--recipe", "paper", "imagenet200"], 120, 128),
        (["--recipe=paper", "--epochs", "5", "data/cifar10", "--out=o"], 5, 64),
        (["somefolder", "--out", "o"], 60, 128),
    ],
)
def test_a_recipes_settings_do_not_depend_on_the_order_of_the_options(words, epochs, batch):
    config = train_config(words)
    assert (config.epochs, config.batch_size) == (epochs, batch)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["trian"], "did you mean train"),
        (["export", "runs/t2"], "unknown command 'export'; use transnet prune --format onnx (known: train "),
        (["eval", "runs/t2"], "use transnet evaluate"),
        (["classify", "cat.jpg"], "use transnet predict"),
        (["train", "cifar1000", "--out", "{out}"], "cifar1000: no such name"),
        (["train", "~nobody-of-that-name/pets", "--out", "{out}"], "~nobody-of-that-name/pets: no such name"),
        (["train", "digits", "--transforms", "r0,r9", "--out", "{out}"], "unknown 'r9'"),
        (["train", "digits", "--model", "resnet19", "--out", "{out}"], "unknown 'resnet19'"),
        (["train", "digits", "--model", "timm:resnet81", "--out", "{out}"], "timm has no 'resnet81'"),
        (["train", "digits", "--epochs", "0", "--out", "{out}"], "transnet: --epochs: 0 was given"),
        (["train", "digits", "--val-fraction", "1.5", "--out", "{out}"], "--val-fraction"),
        (["train", "digits", "--epochs", "many", "--out", "{out}"], "--epochs"),
        (["train", "digits", "--device", "tpu", "--out", "{out}"], "--device: 'tpu' was given"),
        (["train", "digits"], "--out"),
        (["train", "--config", "nowhere.json", "--out", "{out}"], "nowhere.json does not exist"),
        (["train", "--config", "/", "--out", "{out}"], "--config: / is a folder; give a run's config.json"),
        (
            ["train", "digits", "--model", "timm:vgg11", "--out", "{out}", "--image-size", "1"],
            "does not work on 1×1 images",
        ),
        (["train", "digits", "--out", "{out}", "--config"], "--config"),
        (["train", "digits", "--out", "{out}", "--config="], "--config: "),
        (
            ["reproduce", "invariance", "--data", "digits", "--model", "resnet19", "--out", "{out}"],
            "model: unknown 'resnet19'",
        ),
        (
            ["reproduce", "invariance", "--data", "digits", "--device", "tpu", "--out", "{out}"],
            "--device: 'tpu' was given",
        ),
        (["evaluate", "nowhere"], "does not exist"),
        (["evaluate", "ensemble", "nowhere"], "give ./ensemble"),
        (["prune", "nowhere", "--out", "{out}"], "does not exist"),
        (["demo", "--seeds", "0"], "at least 1"),
        (["reproduce", "pruned", "--data", "digits", "--seeds", "0", "--out", "{out}"], "transnet: --seeds: 0 was"),
    ],
)
def test_a_users_mistake_is_exit_2_and_one_clear_message(words, message, tmp_path, capsys):
    out = str(tmp_path / "out")
    try:
        status = main([word.format(out=out) for word in words])
    except SystemExit as left:  # from the option parser
        status = left.code
    assert status == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert not re.search("Error parsing [A-Z]", printed)  # class names mean nothing to users
    assert not (tmp_path / "out").exists()  # so the corrected command can use it


def test_a_study_inside_its_data_is_refused_and_nothing_is_created(tmp_path, capsys):
    assert main(["reproduce", "invariance", "--data", str(tmp_path), "--out", str(tmp_path / "study")]) == 2
    assert "is inside the data" in capsys.readouterr().err
    assert not (tmp_path / "study").exists()


def test_a_study_is_not_written_among_other_files(t2, capsys):
    before = sorted(t2.iterdir())
    assert main(["reproduce", "invariance", "--data", "digits", "--out", str(t2)]) == 2
    assert "holds other files and no study" in capsys.readouterr().err
    assert sorted(t2.iterdir()) == before


@pytest.mark.parametrize(
    ("words", "epochs", "batch"), [("cifar100", 60, 512), ("digits", 30, 128), ("cifar100 --recipe paper", 300, 64)]
)
def test_help_shows_the_defaults_for_the_data(words, epochs, batch, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["train", *words.split(), "--help"])
    assert ended.value.code == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"Passes over the training set. (default: {epochs})" in shown
    assert f"(default: {batch})" in shown


def test_the_demo_compares_base_with_transnet_at_equal_passes(tmp_path):
    figures = tmp_path / "demo.json"
    shown = transnet("demo", "--seeds", "1", "--epochs", "2", "--train-fraction", "0.1", "--json", figures, check=0)
    for row in ("base", "PT2, pruned", "T2, all heads", "PT3, pruned", "T3, all heads"):
        assert row in shown.stdout
    assert "one seed" in shown.stdout
    for m in (2, 3):
        pattern = rf"^PT{m} against the baseline at equal training compute: \S+ points, no interval \(n = 1\)\.$"
        assert re.search(pattern, shown.stdout, re.MULTILINE)
    found = json.loads(figures.read_text())
    assert found["command"] == "transnet demo --seeds 1 --train-fraction 0.1 --epochs 2"
    rows = {row["kind"]: row for row in found["rows"]}
    assert rows["base, 2× epochs"]["train_passes"] == rows["T2"]["train_passes"]
    assert rows["base, 3× epochs"]["train_passes"] == rows["T3"]["train_passes"]


@pytest.mark.parametrize("kept", [False, True])
def test_a_stopped_demo_reports_whether_its_runs_were_kept(kept, tmp_path):
    out = tmp_path / "demo"
    words = ["demo", *(["--out", str(out)] if kept else [])]
    child = subprocess.Popen(
        [sys.executable, "-m", "transnet", *words], stderr=subprocess.PIPE, text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    while not any(path.stat().st_size for path in tmp_path.rglob("metrics.jsonl")):
        assert child.poll() is None
        time.sleep(0.02)
    child.send_signal(signal.SIGINT)
    shown = child.communicate(timeout=60)[1]
    assert child.returncode == 1
    assert "training 15 small networks on digits" in shown
    what = f"everything is saved in {out}" if kept else "nothing was kept"
    assert shown.splitlines()[-1].startswith(f"transnet: stopped; {what}")
    assert ("--out DIR" in shown) != kept
    assert "Traceback" not in shown
    assert any(tmp_path.rglob("metrics.jsonl")) == kept


@pytest.mark.parametrize(("given", "used"), [({}, "PASSIVE 10000"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE None")])
def test_waiting_threads_spin_briefly_by_default(given, used):
    code = (
        "import os, sys; from transnet.__main__ import main\n"
        "sys.argv[1:] = ['--help']\n"
        "try: main()\n"
        "finally: print(os.environ['OMP_WAIT_POLICY'], os.environ.get('GOMP_SPINCOUNT'), 'torch' in sys.modules)"
    )
    own = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    environ = {name: value for name, value in os.environ.items() if name not in own} | given
    printed = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True
    ).stdout
    assert printed.splitlines()[-1] == f"{used} False"  # torch reads it when it is imported


@pytest.mark.usefixtures("permissions_count")
@pytest.mark.parametrize("verb", ["invariance", "prune"])
def test_a_folder_that_cannot_be_created_is_named(tmp_path, capsys, verb):
    locked = tmp_path / "locked"
    locked.mkdir()
    locked.chmod(0)
    try:
        assert main([verb, str(digits_run()), "--out", str(locked / "x")]) == 2
        assert re.search(r"--out: .*locked/x.* \(Permission denied\)", capsys.readouterr().err)
    finally:
        locked.chmod(0o700)


# ------------------------------------------------------------------------------------------------------------- errors


def test_errors_and_notes_name_options_of_the_command_only(monkeypatch, capsys):
    def fail(*_, **__):
        console.say("note: try `batch_size` 8, not `epochs`")
        raise ConfigError("must not be 8; leave `device` or `val_fraction` out", field="batch_size")

    monkeypatch.setattr(console, "rewrite", str)
    monkeypatch.setattr("transnet.ship.predict.find_images", fail)
    assert main(["predict", "model", "image.png"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "note: try --batch-size 8, not `epochs`",
        "transnet: --batch-size: must not be 8; leave --device or `val_fraction` out",
    ]
    console.say("`batch_size`")  # other users of the library see the setting
    assert capsys.readouterr().err == "`batch_size`\n"


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ZeroDivisionError("division\nby zero"), "ZeroDivisionError: division by zero (add --traceback"),
        (ValueError("from a library"), "ValueError: from a library (add --traceback"),
        (OperationError("stopped; see `device`"), "stopped; see --device"),
        (PermissionError(13, "Permission denied", "/secret"), "/secret: Permission denied"),
        (OSError(28, "No space left on device"), "No space left on device"),
        (MemoryError(), "out of memory"),
        (KeyboardInterrupt(), "interrupted"),
    ],
)
def test_any_other_error_is_one_line_and_exit_1(error, message, monkeypatch, capsys):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr("transnet.ship.predict.find_images", fail)
    assert main(["predict", "model", "image.png"]) == 1
    shown = capsys.readouterr().err
    assert message in shown
    assert shown.count("\n") == 1
    assert main(["predict", "model", "--traceback", "image.png"]) == 1
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_traceback_keeps_the_exit_code_of_a_users_mistake(capsys):
    assert main(["evaluate", "nowhere", "--traceback"]) == 2
    shown = capsys.readouterr().err
    assert "Traceback" in shown
    assert shown.splitlines()[-1].startswith("transnet: nowhere")


# --------------------------------------------------------------------------------------------------------------- help


def help_of(*words, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["train", *words])
    assert ended.value.code == 0
    return capsys.readouterr().out


def test_help_lists_the_most_used_options_and_help_all_lists_all(capsys):
    short, long = help_of("--help", capsys=capsys), help_of("--help-all", capsys=capsys)
    for field in dataclasses.fields(TrainConfig):
        flag = f"--{field.name.replace('_', '-')}"
        assert field.name == "data" or flag in long
    assert "--cuda-graph" not in short
    assert all(option in short for option in ("DATA", "--config", "--resume", "--help-all"))
    assert len(COMMON) == 25


def test_help_does_not_take_the_value_of_an_option_for_the_data(capsys):
    assert "Passes over the training set. (default: 30)" in " ".join(
        help_of("--transforms", "r0,r1", "digits", "--help", capsys=capsys).split()
    )


def test_a_recipe_does_not_go_with_a_runs_config(t2, capsys):
    words = ["train", "--config", str(t2 / "config.json"), "--out", "x"]
    assert main([*words, "--recipe", "paper"]) == 2
    assert capsys.readouterr().err.startswith("transnet: --recipe: ")


def test_version_prints_what_a_bug_report_needs():
    shown = transnet("--version", check=0).stdout
    names = [line.split()[0] for line in shown.splitlines()]
    assert names[0] == "transnet"
    assert {"python", "torch", "torchvision", "timm", "devices", "bf16", "threads", "allocator"} <= set(names)
