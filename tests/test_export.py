import json
import os
import subprocess
import sys
import zipfile

import pytest
import torch
from torch import nn

from trained import copy_of_run, digit_files, digits_run
from transnet import TransNet, load
from transnet.cli import main
from transnet.errors import ConfigError, FileError
from transnet.runs.description import Description
from transnet.ship import export
from transnet.ship.export import ExportError, export_run, network_of_run
from transnet.ship.models import open_model

FORMATS = ("safetensors", "onnx", "pt2")


def images():
    return torch.randn(5, 1, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("head", ["r0", "r1", "r2"])
def test_a_pruned_head_is_that_head_on_the_untransformed_image(head):
    network, about = network_of_run(digits_run(), head)
    assert (about.kind, about.transforms, about.fold) == ("pruned", (head,), head != "r0")
    net, x = load(digits_run()), images()
    assert torch.allclose(network(x), net.logits(x)[:, net.transforms.index(head)], atol=1e-4)


def test_all_keeps_the_transnet():
    network, about = network_of_run(digits_run(), "all")
    assert about.kind == "full"
    assert torch.equal(network(images()), load(digits_run())(images()))


def test_best_is_chosen_on_the_validation_split_only(tmp_path):
    run = copy_of_run(tmp_path / "run")
    result = json.loads((run / "result.json").read_text())
    for entry, loss in zip(result["val"]["heads"], (0.3, 0.1, 0.2), strict=True):
        entry["loss"] = loss
    (run / "result.json").write_text(json.dumps(result))
    assert network_of_run(run, "best")[1].transforms == ("r1",)
    (run / "result.json").write_text(json.dumps({**result, "val": None}))
    with pytest.raises(ConfigError, match="no validation split") as caught:
        network_of_run(run, "best")
    assert caught.value.field == "head"


def test_an_unknown_head_is_refused_with_a_list_of_the_known_ones():
    with pytest.raises(ConfigError, match="head: unknown 'm3'; known are best all r0 r1 r2"):
        network_of_run(digits_run(), "m3")


def test_an_exported_model_cannot_be_exported_again(tmp_path):
    export_run(digits_run(), tmp_path / "plain")
    with pytest.raises(FileError, match="is an exported model"):
        export_run(tmp_path / "plain", tmp_path / "again")


def test_for_a_run_without_r0_the_heads_that_can_be_kept_are_listed(tmp_path):
    run = copy_of_run(tmp_path / "run", digits_run(transforms="r1,r2", epochs=1))
    with pytest.raises(ConfigError, match="no identity head r0; known are best all r1 r2"):
        network_of_run(run)
    result = json.loads((run / "result.json").read_text())
    (run / "result.json").write_text(json.dumps({**result, "val": None}))
    with pytest.raises(ConfigError, match="known are all r1 r2"):
        network_of_run(run)
    with pytest.raises(ConfigError, match="head: unknown 'm3'; known are all r1 r2"):
        network_of_run(run, "m3")
    assert network_of_run(run, "r1")[1].fold


def test_best_ignores_the_second_head_of_a_transform(tmp_path):
    run = copy_of_run(tmp_path / "run", digits_run(transforms="r0,r1,r0", epochs=1))
    result = json.loads((run / "result.json").read_text())
    for entry, loss in zip(result["val"]["heads"], (0.3, 0.2, 0.1), strict=True):
        entry["loss"] = loss
    (run / "result.json").write_text(json.dumps(result))
    assert network_of_run(run, "best")[1].transforms == ("r1",)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("head", ["r0", "r1", "all"])
def test_every_export_gives_the_runs_outputs(tmp_path, head, format):
    written = export_run(digits_run(), tmp_path / "out", head=head, format=format)
    assert written.real
    assert written.images == 64
    assert written.difference < 1e-4
    assert written.same == 1.0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["config.json", f"model.{format}"]
    if format == "pt2":
        return
    model = open_model(tmp_path / "out")
    assert model.about == written.about
    net = load(digits_run())
    for batch in (1, 2, 5):
        x = torch.randn(batch, 1, 8, 8)
        wanted = net.logits(x) if head == "all" else net.logits(x)[:, [net.transforms.index(head)]]
        assert torch.allclose(model.heads(x), wanted, atol=1e-4)


def test_the_command_reports_the_comparison(tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["prune", str(digits_run()), "--out", str(out), "--head", "r1", "--format", "onnx"]) == 0
    printed = capsys.readouterr().out
    assert "model.onnx: resnet8-small, head r1, with its transform folded in for 8×8" in printed
    assert "compared on 64 test images: logits within" in printed
    assert "100.0% of the classes the same" in printed
    image = digit_files(tmp_path / "images", 1)[0]
    assert main(["predict", str(out / "model.onnx"), str(image)]) == 0
    assert json.loads(capsys.readouterr().out)["heads"].keys() == {"r1"}


def test_without_the_data_it_compares_on_random_images(tmp_path):
    folder = copy_of_run(tmp_path / "run")
    config = json.loads((folder / "config.json").read_text())
    config["train"]["data"] = str(tmp_path / "gone")
    (folder / "config.json").write_text(json.dumps(config))
    assert not export_run(folder, tmp_path / "out").real


def test_other_outputs_are_an_error_and_no_file_is_left(tmp_path, monkeypatch, capsys):
    original = export.write_model

    def wrong(*arguments):
        written = original(*arguments)
        return lambda x: written(x) + 0.1

    monkeypatch.setattr(export, "write_model", wrong)
    assert main(["prune", str(digits_run()), "--out", str(tmp_path / "out")]) == 1
    assert "the written model's outputs differ: a logit by 0.1" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_network_that_cannot_be_exported_is_an_error(tmp_path):
    class Fickle(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(1, 2)

        def forward(self, x):
            return self.fc(x.mean((2, 3))) * (2 if x.mean() > 0 else 1)

    about = Description("pruned", "resnet8-small", ("r0",), ("a", "b"), 1, 8, 8, (0.5,), (0.5,))
    for format in ("onnx", "pt2"):
        with pytest.raises(ExportError, match="cannot export this network"):
            export.write_model(Fickle(), about, tmp_path, format)


def test_an_existing_folder_is_not_touched(tmp_path):
    (tmp_path / "mine").write_text("")
    with pytest.raises(ConfigError, match="exists") as caught:
        export_run(digits_run(), tmp_path)
    assert caught.value.field == "out"


def test_other_files_next_to_the_folder_are_kept(tmp_path):
    (tmp_path / "out.partial").mkdir()
    (tmp_path / "out.partial" / "notes.txt").write_text("precious")
    export_run(digits_run(), tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "out.partial"]
    assert (tmp_path / "out.partial" / "notes.txt").read_text() == "precious"


def test_a_terminal_without_unicode_works(tmp_path):
    words = ["prune", str(digits_run()), "--head", "r1", "--out", str(tmp_path / "out")]
    done = subprocess.run(
        [sys.executable, "-m", "transnet", *words],
        capture_output=True, env={**os.environ, "PYTHONIOENCODING": "ascii"}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert b"8?8" in done.stdout


def test_files_contain_no_paths_of_this_machine(tmp_path):
    for format in FORMATS:
        file = export_run(digits_run(), tmp_path / format, head="all", format=format).file
        content = file.read_bytes()
        if format == "pt2":
            with zipfile.ZipFile(file) as archive:
                content = b"".join(archive.read(name) for name in archive.namelist())
        assert b"site-packages" not in content
        assert export.__file__.rpartition("/")[0].encode() not in content


CASES = {
    "resnet18": ("timm:resnet18", 32, 32),
    "convnext": ("timm:convnext_atto", 32, 32),
    "vit": ("timm:vit_tiny_patch16_224", 32, 32),
}


@pytest.mark.slow
@pytest.mark.parametrize("head", ["r0", "all"])
@pytest.mark.parametrize("name", CASES)
def test_onnx_runtime_gives_what_pytorch_gives(tmp_path, name, head):
    model, size, stored = CASES[name]
    about = Description(
        "full", model, ("r0", "r1", "r2"), tuple("abcdefg"), 3, size, stored, (0.5,) * 3, (0.25,) * 3
    )  # fmt: skip
    torch.manual_seed(0)
    net = about.build().eval()
    assert isinstance(net, TransNet)
    for layer in net.modules():  # statistics as after training
        if isinstance(layer, nn.BatchNorm2d):
            layer.running_mean.normal_(std=0.1)
            layer.running_var.uniform_(0.5, 2)
    network = net
    if head != "all":
        network = net.prune(head).eval()
        about = Description(**{**about.__dict__, "kind": "pruned", "transforms": (head,)})
    x = torch.randn(9, 3, size, size)
    with torch.no_grad():
        wanted = net.logits(x) if head == "all" else net.logits(x)[:, :1]
    for format in ("onnx", "safetensors"):
        (tmp_path / format).mkdir()
        given = export.write_model(network, about, tmp_path / format, format)(x)
        assert float((given - wanted).abs().max()) < 1e-4
