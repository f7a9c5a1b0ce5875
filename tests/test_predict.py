import csv
import io
import json
import os
import re
import subprocess
import sys

import pytest
import torch

from small_runs import images_file
from small_runs import run as train_run
from trained import copy_of_run, digit_files, digits_run
from transnet.cli import main
from transnet.errors import ConfigError
from transnet.ship.models import open_model
from transnet.ship.predict import choose_threshold, find_images, head_names, predict


def lines(text):
    return [json.loads(line) for line in text.splitlines()]


def test_files_folders_and_globs_give_a_line_each(tmp_path, capsys):
    digit_files(tmp_path / "a", 4)
    digit_files(tmp_path / "b" / "deep", 2)
    (tmp_path / "b" / "notes.txt").write_text("no image")
    words = [str(tmp_path / "a" / "0-0.png"), str(tmp_path / "b"), str(tmp_path / "a" / "[23]-*.png")]
    assert main(["predict", str(digits_run()), *words]) == 0
    entries = lines(capsys.readouterr().out)
    assert [entry["image"].rpartition("/")[2] for entry in entries] == [
        "0-0.png", "0-0.png", "1-1.png", "2-2.png", "3-3.png",
    ]  # fmt: skip
    first = entries[0]
    assert set(first) == {"image", "class", "probability", "agreement", "passes", "heads"}
    assert list(first["heads"]) == ["r0", "r1", "r2"]
    assert first["passes"] == 3
    votes = list(first["heads"].values())
    assert first["agreement"] == pytest.approx(votes.count(first["class"]) / 3)


def test_predictions_are_those_of_the_network(tmp_path):
    model = open_model(digits_run())
    images = [(path.name, model.prepare(path.read_bytes())) for path in digit_files(tmp_path, 5)]
    found = list(predict(model, images, batch_size=2))
    p = model.net.predict(torch.stack([image for _, image in images])).softmax(-1)
    assert [entry.label for entry in found] == [model.about.classes[i] for i in p.argmax(-1)]
    assert [entry.probability for entry in found] == pytest.approx(p.amax(-1).tolist(), abs=1e-5)


def test_bad_files_are_reported_and_skipped(tmp_path, capsys):
    good = digit_files(tmp_path, 2)
    (tmp_path / "bad.png").write_bytes(good[0].read_bytes()[:40])
    words = [str(tmp_path), str(tmp_path / "missing.png"), str(tmp_path / "*.webp")]
    assert main(["predict", str(digits_run()), *words]) == 1
    captured = capsys.readouterr()
    assert len(lines(captured.out)) == 2
    assert "bad.png: " in captured.err
    assert "missing.png: No such file" in captured.err
    assert "3 of 5 images could not be read and were skipped" in captured.err


def test_a_single_path_without_an_image_is_reported_once(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    assert main(["predict", str(digits_run()), str(tmp_path / "empty")]) == 1
    assert capsys.readouterr().err == f"transnet: {tmp_path / 'empty'}: a folder without images in it\n"


@pytest.mark.parametrize("words", [["nowhere.png"], ["nowhere.png", "nor/*.jpg"]])
def test_paths_that_do_not_exist_end_with_status_2(words, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["predict", str(digits_run()), *words]) == 2
    assert capsys.readouterr().err == f"transnet: images: {', '.join(words)}: no such file or folder\n"


def test_standard_input_is_one_image(tmp_path, capsys, monkeypatch):
    content = digit_files(tmp_path, 1)[0].read_bytes()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    assert main(["predict", str(digits_run()), "-"]) == 0
    assert lines(capsys.readouterr().out)[0]["image"] == "-"


def test_csv_and_table(tmp_path, capsys):
    digit_files(tmp_path, 3)
    assert main(["predict", str(digits_run()), str(tmp_path), "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert len(rows) == 3
    assert list(rows[0]) == ["image", "class", "probability", "agreement", "passes"]
    assert main(["predict", str(digits_run()), str(tmp_path), "--format", "table"]) == 0
    assert "of 3" in capsys.readouterr().out


def test_confidence_stops_early(tmp_path, capsys):
    digit_files(tmp_path, 6)
    assert main(["predict", str(digits_run()), str(tmp_path), "--confidence", "0"]) == 0
    assert {entry["passes"] for entry in lines(capsys.readouterr().out)} == {1}
    assert main(["predict", str(digits_run()), str(tmp_path), "--confidence", "1"]) == 0
    assert {entry["passes"] for entry in lines(capsys.readouterr().out)} == {3}
    assert main(["predict", str(digits_run()), str(tmp_path), "--confidence", "auto"]) == 0
    printed = capsys.readouterr().err
    assert "points of accuracy compared with all heads, on 143 validation images" in printed
    assert "warning: one of 143 validation images is 0.70 points, so the threshold depends on chance" in printed


def test_confidence_is_chosen_for_a_target(tmp_path, capsys):
    digit_files(tmp_path, 2)
    words = ["predict", str(digits_run()), str(tmp_path), "--confidence", "auto"]
    assert main([*words, "--passes", "1.5"]) == 0
    printed = capsys.readouterr().err
    assert re.search(r"1\.\d\d of 3 heads per image on average.* all heads, on 143 validation images", printed)
    assert "warning" not in printed
    assert main([*words, "--within", "100"]) == 0
    assert "1.00 of 3 heads per image" in capsys.readouterr().err
    for more, message in (
        (["--passes", "0.5"], "--passes: 0.5 was given; 1 or more is needed"),
        (["--within", "-1"], "--within: -1.0 was given; 0 or more is needed"),
        (["--passes", "1.5", "--within", "1"], "give only one of"),
    ):
        assert main([*words, *more]) == 2
        assert message in capsys.readouterr().err
    assert main([*words[:-1], "0.9", "--passes", "1.5"]) == 2
    assert "--passes: only --confidence auto uses it" in capsys.readouterr().err


def test_mistakes_end_with_status_2(tmp_path, capsys):
    image = str(digit_files(tmp_path / "images", 1)[0])
    assert main(["prune", str(digits_run()), "--out", str(tmp_path / "pruned")]) == 0
    capsys.readouterr()
    for words, message in (
        ([str(digits_run())], "none was given"),
        ([str(tmp_path / "nothing"), image], "does not exist"),
        ([str(digits_run()), image, ""], "an empty name was given"),
        ([str(digits_run()), image, "--batch-size", "0"], "at least 1"),
        ([str(digits_run()), image, "--confidence", "90"], "90.0 was given; a number from 0 to 1 is needed"),
        (
            [str(digits_run()), image, "--confidence", "high"],
            "'high' was given; a number from 0 to 1 is needed, or auto",
        ),
        ([str(digits_run()), image, "--confidence", ""], "'' was given; a number from 0 to 1 is needed, or auto"),
        ([str(digits_run()), image, "--confidence", "nan"], "nan was given; a number from 0 to 1 is needed"),
        ([str(tmp_path / "pruned"), image, "--confidence", "0.9"], "has one head, so there is nothing to stop early"),
        ([str(digits_run()), "-", image, "-"], "- was given twice, but standard input holds one image"),
        ([str(digits_run()), image, "--data", "nowhere"], "--data: only --confidence auto uses it"),
        (
            [str(digits_run()), image, "--data", "digits", "--confidence", "0.9"],
            "--data: only --confidence auto uses it",
        ),
    ):
        assert main(["predict", *words]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.parametrize(("head", "message"), [("r0", "has one head"), ("all", "runs its heads at once")])
def test_an_onnx_file_cannot_stop_early(head, message, tmp_path, capsys):
    image, out = str(digit_files(tmp_path / "images", 1)[0]), str(tmp_path / "graph")
    assert main(["prune", str(digits_run()), "--out", out, "--head", head, "--format", "onnx"]) == 0
    assert main(["predict", out, image, "--confidence", "0.9"]) == 2
    assert message in capsys.readouterr().err


def test_names_cannot_steer_the_terminal(tmp_path, capsys):
    folder = copy_of_run(tmp_path / "run")
    config = json.loads((folder / "config.json").read_text())
    config["data"]["classes"] = [f"\x1b[31m[red]{i}" for i in range(10)]
    (folder / "config.json").write_text(json.dumps(config))
    image = digit_files(tmp_path / "images", 1)[0]
    assert main(["predict", str(folder), str(image), "--format", "table"]) == 0
    out = capsys.readouterr().out
    assert "\x1b[31m" not in out
    assert "[red]" in out


def test_a_folder_is_searched_as_for_training(tmp_path):
    digit_files(tmp_path / "elsewhere", 2)
    for hidden in (".hidden", "__MACOSX"):
        digit_files(tmp_path / "photos" / hidden, 1)
    os.symlink(tmp_path / "elsewhere", tmp_path / "photos" / "album")
    (tmp_path / "photos" / "phone.heic").write_bytes(b"a photograph")
    found = list(find_images([str(tmp_path / "photos")]))
    assert [os.path.dirname(os.path.relpath(name, tmp_path / "photos")) for name in found] == ["album", "album", ""]


def test_choosing_a_threshold_needs_a_validation_split(capsys):
    assert 0.5 <= choose_threshold(digits_run()) <= 1
    assert "of 3 heads per image" in capsys.readouterr().err
    assert choose_threshold(digits_run(), passes=3) == 1
    with pytest.raises(ConfigError, match=r"`val_fraction`.*give a number") as caught:
        choose_threshold(digits_run(transforms="r0,r1", val_fraction=0.0))
    assert caught.value.field == "confidence"


@pytest.mark.parametrize(("field", "value"), [("passes", 0.5), ("within", float("nan")), ("within", -1)])
def test_an_impossible_target_is_refused(field, value):
    with pytest.raises(ConfigError) as caught:
        choose_threshold(digits_run(), **{field: value})
    assert caught.value.field == field


def test_data_that_moved_can_be_given_for_the_threshold(tmp_path, capsys):
    data = images_file(tmp_path / "before.npz")
    train_run(data, tmp_path / "run", transforms="r0,r1", val_fraction=0.2)
    data.rename(tmp_path / "after.npz")
    image = digit_files(tmp_path / "images", 1)[0]
    words = ["predict", str(tmp_path / "run"), str(image), "--confidence", "auto"]
    assert main(words) == 2
    printed = capsys.readouterr().err
    assert "give --data" in printed
    assert ".;" not in printed
    assert main([*words, "--data", str(tmp_path / "nowhere")]) == 2
    assert capsys.readouterr().err.endswith("imagenet200; or give a number, such as 0.9\n")
    assert main([*words, "--data", str(tmp_path / "after.npz")]) == 0
    assert "validation images" in capsys.readouterr().err


@pytest.mark.usefixtures("permissions_count")
def test_files_without_permission_are_reported_and_skipped(tmp_path, capsys):
    digit_files(tmp_path / "photos", 2)
    hidden = digit_files(tmp_path / "photos" / "locked", 1)[0]
    hidden.parent.chmod(0)
    try:
        for word, left in ((tmp_path / "photos", 2), (hidden.parent, 0), (hidden, 0), (hidden.parent / "*", 0)):
            assert main(["predict", str(digits_run()), str(word)]) == 1
            printed = capsys.readouterr()
            assert len(lines(printed.out)) == left
            assert f"{word if not left else hidden.parent}: Permission denied" in printed.err
    finally:
        hidden.parent.chmod(0o700)


def test_a_name_that_is_too_long_is_skipped(tmp_path, capsys):
    image = str(digit_files(tmp_path, 1)[0])
    assert main(["predict", str(digits_run()), "x" * 300, image]) == 1
    printed = capsys.readouterr()
    assert [entry["image"] for entry in lines(printed.out)] == [image]
    assert "x: File name too long" in printed.err


def test_heads_of_one_transform_get_different_names():
    assert head_names(("r0", "r1", "r0")) == ["r0", "r1", "r0#2"]


def test_a_folder_without_images_is_kept(tmp_path):
    assert list(find_images([str(tmp_path)])) == [str(tmp_path)]


def test_a_glob_looks_into_the_folders_it_matches_and_names_an_image_once(tmp_path):
    digit_files(tmp_path / "a", 2)
    digit_files(tmp_path / "a" / "deep", 1)
    found = [str(tmp_path / "a" / name) for name in ("0-0.png", "1-1.png", "deep/0-0.png")]
    assert list(find_images([str(tmp_path / "a" / "*")])) == found
    assert sorted(find_images([str(tmp_path / "**" / "*")])) == found


def test_a_file_name_that_is_not_utf_8_does_not_end_the_csv(tmp_path, monkeypatch):
    path = digit_files(tmp_path, 2)[0]
    os.rename(path, os.fsencode(tmp_path) + b"/a\xff.png")
    out = io.TextIOWrapper(io.BytesIO(), "utf-8", errors="strict")
    monkeypatch.setattr(sys, "stdout", out)
    assert main(["predict", str(digits_run()), str(tmp_path), "--format", "csv"]) == 0
    out.seek(0)
    assert [row["image"].rpartition("/")[2] for row in csv.DictReader(out)] == ["1-1.png", "a?.png"]


def test_json_lines_are_always_utf_8_and_names_cannot_break_them(tmp_path):
    digit_files(tmp_path, 2)
    names = ["größe 数.png", "a\x9b\u2028b.png"]
    for path, name in zip(sorted(tmp_path.iterdir()), names, strict=True):
        path.rename(tmp_path / name)
    os.rename(digit_files(tmp_path / "c", 1)[0], os.fsencode(tmp_path) + b"/c/\xff.png")
    words = [sys.executable, "-m", "transnet", "predict", str(digits_run()), str(tmp_path), "--format", "jsonl"]
    environ = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    printed = subprocess.run(words, capture_output=True, env=environ, check=True).stdout.decode()
    assert "/größe 数.png" in printed
    assert r"/a\u009b\u2028b.png" in printed
    assert sorted(entry["image"] for entry in lines(printed)) == sorted(find_images([str(tmp_path)]))
