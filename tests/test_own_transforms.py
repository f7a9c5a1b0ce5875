"""Transforms of the user's own: given by name and import path, checked, recorded, and never imported from a file."""

import base64
import copy
import io
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from small_runs import command, images_file, run, trainer, weights
from trained import digits_run
from transnet import TransNet, load
from transnet.backbones import create
from transnet.cli import main
from transnet.errors import ConfigError, ModelError, TransnetError
from transnet.report.kernels import compare_kernels
from transnet.runs.config import TrainConfig
from transnet.runs.folder import Run
from transnet.runs.own_transforms import OwnTransform, parse, with_functions
from transnet.runs.provenance import command as command_of
from transnet.ship.export import export_run, network_of_run
from transnet.ship.hub import SharedModel
from transnet.ship.models import open_model
from transnet.ship.serve import head_views
from transnet.study.file import read_study
from transnet.train.evaluate_runs import evaluate_runs
from transnet.transforms import gray, invert

GRAY, INVERT = "gray=transnet.transforms:gray", "invert=transnet.transforms:invert"
MINE = """
from pathlib import Path

import torch

Path(__file__).with_suffix(".imported").touch()
WEIGHTS = torch.tensor([0.2, 0.7, 0.1])
calls = 0
number = 3


def luma(x):
    return (x * WEIGHTS.to(x)[:, None, None]).sum(1, keepdim=True).expand_as(x)


def smaller(x):
    return x[..., 1:]


def doubles(x):
    return x.double()


def noisy(x):
    return x + torch.randn_like(x)


def coin(x):
    return x.flip(-1) if torch.rand(()) < 0.5 else x


def counts(x):
    global calls
    calls += 1
    return x + calls


def fails(x):
    raise KeyError("colour")


def in_place(x):
    return x.neg_()
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder has a module ``mine``, and creates the returned file whenever it is imported."""
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    yield tmp_path / "mine.imported"
    sys.modules.pop("mine", None)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return images_file(tmp_path_factory.mktemp("data") / "x.npz", n=60, channels=3)


@pytest.fixture(scope="module")
def own(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with both examples."""
    out = tmp_path_factory.mktemp("own") / "run"
    run(data, out, transforms="r0,gray,invert", transform=(GRAY, INVERT), epochs=2, val_fraction=0.2)
    return out


@pytest.fixture
def luma(data: Path, mine: Path, tmp_path: Path) -> Path:
    """A finished run with a function of the module ``mine``, which is not imported any more."""
    run(data, tmp_path / "luma", transforms="r0,luma", transform=("luma=mine:luma",), epochs=1)
    sys.modules.pop("mine")
    mine.unlink()
    return tmp_path / "luma"


# ------------------------------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("entry", "keyword"),
    [
        ("gray", "NAME=module:function"), ("gray=a.b", "NAME=module:function"), ("=a:b", "NAME"), ("a b=c:d", "NAME"),
        ("r1=a:b", "D4"), ("m3=a:b", "D4"), ("gray=a;b:c", "NAME"), (3, "NAME"),
    ],
)  # fmt: skip
def test_an_entry_that_names_no_function(entry: str, keyword: str) -> None:
    with pytest.raises(ConfigError, match=keyword) as caught:
        parse([entry])
    assert caught.value.field == "transform"


def test_a_name_has_one_function() -> None:
    assert parse([GRAY, GRAY]) == parse(GRAY) == {"gray": "transnet.transforms:gray"}
    with pytest.raises(ConfigError, match="twice"):
        parse([GRAY, "gray=transnet.transforms:invert"])


@pytest.mark.parametrize(
    ("path", "keyword"),
    [
        ("nowhere.transforms:gray", "No module named"), ("transnet.transforms:grey", "has no attribute"),
        ("mine:number", "int"), ("mine:luma.missing", "AttributeError"),
    ],
)  # fmt: skip
def test_a_function_that_cannot_be_imported(mine: Path, path: str, keyword: str) -> None:
    with pytest.raises(ConfigError, match=keyword) as caught:
        OwnTransform(f"own={path}")
    assert caught.value.field == "transform"


@pytest.mark.parametrize("broken", ["1 +", "raise KeyError(1)", "import nowhere"])
def test_a_module_that_fails(mine: Path, tmp_path: Path, broken: str) -> None:
    (tmp_path / "broken_module.py").write_text(broken)
    with pytest.raises(ConfigError, match="cannot be imported"):
        OwnTransform("own=broken_module:f")


@pytest.mark.parametrize(
    ("function", "keyword"),
    [
        ("smaller", "keep the shape"), ("doubles", "keep the shape, the type"), ("fails", "KeyError"),
        ("noisy", "two results"), ("coin", "two results"), ("counts", "two results"),
    ],
)  # fmt: skip
def test_a_function_that_cannot_be_trained_with_leaves_no_folder(
    mine: Path, data: Path, tmp_path: Path, function: str, keyword: str
) -> None:
    with pytest.raises(ConfigError, match=keyword) as caught:
        run(data, tmp_path / "run", transforms="r0,own", transform=(f"own=mine:{function}",))
    assert caught.value.field == "transform"
    assert not (tmp_path / "run").exists()


def test_a_checked_function_is_compiled_and_traced(mine: Path) -> None:
    net = TransNet(create("resnet8-small", num_classes=3), with_functions(("r0", "luma"), "luma=mine:luma")).eval()
    x = torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        plain = net(x)
        torch.testing.assert_close(torch.compile(net, backend="eager", fullgraph=True)(x), plain)
        torch.testing.assert_close(copy.deepcopy(net)(x), plain)


def test_a_function_may_work_in_place(mine: Path) -> None:
    x = torch.randn(2, 3, 4, 4)
    before = x.clone()
    assert torch.equal(OwnTransform("own=mine:in_place")(x.clone()), -before)


def test_a_transform_without_its_function_names_the_option(data: Path, tmp_path: Path) -> None:
    with pytest.raises(TransnetError, match="`transform`") as caught:
        run(data, tmp_path / "run", transforms="r0,gray")
    assert caught.value.field == "transforms"


# ------------------------------------------------------------------------------------- training and its record


def test_the_run_records_name_and_path_and_its_command_repeats_it(own: Path) -> None:
    assert json.loads((own / "config.json").read_text())["train"]["transform"] == [GRAY, INVERT]
    assert f"--transform {GRAY} --transform {INVERT}" in Run(own).result().command
    assert [head.name for head in Run(own).result().test.heads] == ["r0", "gray", "invert"]


def test_a_run_without_own_transforms_records_none() -> None:
    assert "transform" not in json.loads((digits_run() / "config.json").read_text())["train"]


def test_the_heads_see_the_transformed_images(data: Path, tmp_path: Path) -> None:
    net = trainer(data, tmp_path / "run", transforms="r0,gray,invert", transform=(GRAY, INVERT)).setup.net.eval()
    x = torch.randn(3, 3, 8, 8)
    with torch.no_grad():
        logits = net.logits(x)
        for i, function in enumerate([lambda x: x, gray, invert]):
            # The head of r0 with the weights of head i gives head i's logits on the transformed image.
            only = net.keep("r0")
            only.heads[0].load_state_dict(net.heads[i].state_dict())
            torch.testing.assert_close(only(function(x)), logits[:, i])


def test_a_run_that_was_stopped_resumes_with_the_same_function_only(data: Path, tmp_path: Path) -> None:
    options = {"transforms": "r0,invert", "transform": (INVERT,), "checkpoint_every": 1}
    run(data, tmp_path / "whole", **options)
    stopped = trainer(data, tmp_path / "run", **options)
    stopped.step.prepare()
    stopped.train_epoch(0)
    stopped.state.done = stopped.setup.feed.steps
    stopped.state.save()
    stopped.setup.run.release()
    for given in ((), ("invert=operator:neg",)):
        with pytest.raises(ConfigError, match=INVERT) as caught:
            run(data, tmp_path / "run", **{**options, "transform": given}, resume=True)
        assert caught.value.field == "transform"
    run(data, tmp_path / "run", **options, resume=True)
    assert weights(tmp_path / "run") == weights(tmp_path / "whole")


def test_a_function_that_is_not_used_gets_a_note(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--transforms", "r0", "--transform", GRAY, "--epochs", "1", "--model", "resnet8-small", "--device", "cpu"]
    assert main(["train", str(data), *words, "--out", str(tmp_path / "run")]) == 0
    assert f"--transform {GRAY} is not among --transforms r0" in capsys.readouterr().err
    load(tmp_path / "run")


def test_the_script_finds_a_module_in_the_current_folder(data: Path, tmp_path: Path) -> None:
    """In processes of torchrun, each of which starts as the installed script does: without the current folder."""
    (tmp_path / "mine.py").write_text(MINE)
    script = "from transnet.__main__ import main\nmain()"
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "start.py").write_text(script)
    words = ["--transforms", "r0,luma", "--transform", "luma=mine:luma", "--epochs", 1, "--model", "resnet8-small"]
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2]
    words = ["scripts/start.py", "train", data, *words, "--device", "cpu", "--out", "run"]
    process = command(*torchrun, *words, cwd=tmp_path)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    assert Run(tmp_path / "run").result().processes == 2


# ---------------------------------------------------------------------------------------- reading a run again


def test_what_reads_a_run_needs_the_function_again_and_imports_nothing(luma: Path, mine: Path, tmp_path: Path) -> None:
    digit = str(tmp_path / "digit.png")
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(digit)
    folder = str(tmp_path / "all")
    reading = [
        lambda given: load(luma, transform=given),
        lambda given: evaluate_runs([str(luma)], transform=given),
        lambda given: open_model(luma, transform=given),
        lambda given: network_of_run(luma, "all", given),
        lambda given: export_run(luma, folder, head="all", transform=given),
        lambda given: open_model(folder, transform=given),
    ]
    for read in reading[:-1]:
        for given in ((), "luma=transnet.transforms:gray"):
            with pytest.raises(ConfigError, match="luma=mine:luma") as caught:
                read(given)
            assert caught.value.field == "transform"
    assert not mine.exists()
    for read in reading:
        read("luma=mine:luma")
    mine.unlink()
    with pytest.raises(ConfigError, match="luma=mine:luma"):
        open_model(folder)


@pytest.mark.parametrize(
    "words",
    [
        ["evaluate", "RUN"],
        ["predict", "RUN", "x.png"],
        ["serve", "RUN"],
        ["prune", "RUN", "--head", "all", "--out", "all"],
        ["train", "--config", "RUN/config.json", "--out", "new"],
    ],
)
def test_commands_name_the_option_to_give(
    luma: Path, mine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(tmp_path / "x.png")
    assert main([word.replace("RUN", str(luma)) for word in words]) == 2
    error = capsys.readouterr().err
    assert error.startswith("transnet: --transform: ")
    assert "--transform luma=mine:luma" in error
    assert not mine.exists()


def test_commands_work_with_the_function(own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Image.fromarray(np.full((8, 8, 3), 90, np.uint8)).save(tmp_path / "x.png")
    given = ["--transform", GRAY, "--transform", INVERT]
    assert main(["evaluate", str(own), *given, "--json", "--save-predictions", "--device", "cpu"]) == 0
    scores = json.loads(capsys.readouterr().out)[str(own)]["plain"]
    assert scores["full"]["accuracy"] == pytest.approx(Run(own).result().test.full.accuracy)
    for confidence in ([], ["--confidence", "auto"]):
        words = ["predict", str(own), str(tmp_path / "x.png"), *given, *confidence, "--device", "cpu"]
        assert main(words) == 0
        assert "gray" in json.loads(capsys.readouterr().out)["heads"] or confidence
    assert main(["prune", str(own), *given, "--head", "all", "--out", str(tmp_path / "all")]) == 0
    assert "heads r0 gray invert" in capsys.readouterr().out
    words = ["--config", str(own / "config.json"), "--epochs", "1", "--out", str(tmp_path / "new")]
    assert main(["train", *words, *given]) == 0


def test_an_ensemble_with_a_run_that_has_no_own_transforms(own: Path, data: Path, tmp_path: Path) -> None:
    run(data, tmp_path / "plain", transforms="r0", epochs=1, val_fraction=0.2)
    found = evaluate_runs([str(own), str(tmp_path / "plain")], transform=(GRAY, INVERT))
    assert "ensemble" in found


def test_the_pruned_network_needs_nothing(own: Path, tmp_path: Path) -> None:
    for head, format in (("r0", "safetensors"), ("r0", "onnx"), ("best", "safetensors")):
        out = tmp_path / f"{head}-{format}"
        assert export_run(own, out, head=head, format=format).about.transforms == ("r0",)
        assert "transform" not in json.loads((out / "config.json").read_text())
        assert open_model(out).heads(torch.zeros(2, 3, 8, 8)).shape == (2, 1, 3)
    assert SharedModel.from_run(own).about.kind == "pruned"


def test_without_the_functions_only_the_heads_of_d4_work(own: Path) -> None:
    net, x = load(own, transform=None), torch.randn(2, 3, 8, 8)
    whole = load(own, transform=(GRAY, INVERT))
    with torch.no_grad():
        torch.testing.assert_close(net.predict(x, heads="r0"), whole.logits(x)[:, 0])
        with pytest.raises(ConfigError, match=GRAY):
            net(x)


def test_a_page_shows_what_the_heads_see(own: Path) -> None:
    model, file = open_model(own, transform=(GRAY, INVERT)), io.BytesIO()
    pixels = np.random.default_rng(0).integers(60, 200, (8, 8, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file, "PNG")
    heads = head_views(model, file.getvalue())["heads"]
    seen = [np.array(Image.open(io.BytesIO(base64.b64decode(head["view"].partition(",")[2])))) for head in heads]
    assert np.array_equal(seen[0], pixels)
    mean = 255 * np.array(model.about.mean)
    assert np.abs(seen[2] - (2 * mean - pixels).clip(0, 255)).max() <= 1
    std = np.array(model.about.std)
    in_units = (seen[1] - mean) / std
    assert np.ptp(in_units[(seen[1] > 0).all(-1) & (seen[1] < 255).all(-1)], axis=-1).max() <= 1 / std.min()


# --------------------------------------------------------------------- export, folding and the invariance score


@pytest.mark.parametrize("format", ["onnx", "pt2"])
def test_a_graph_holds_no_function_of_the_user(own: Path, tmp_path: Path, format: str) -> None:
    with pytest.raises(ConfigError, match="gray") as caught:
        export_run(own, tmp_path / "x", head="all", format=format, transform=(GRAY, INVERT))
    assert caught.value.field == "format"
    assert not (tmp_path / "x").exists()


def test_sharing_and_folding_refuse_an_own_transform_by_name(own: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="gray"):
        SharedModel.from_run(own, "all")
    with pytest.raises(ModelError, match="'gray' is a custom transform"):
        export_run(own, tmp_path / "x", head="gray", transform=(GRAY, INVERT))
    with pytest.raises(ModelError, match="'gray' is a custom transform"):
        load(own, transform=(GRAY, INVERT)).prune("gray", image_size=8)


def test_the_best_head_is_one_that_can_be_kept(own: Path, tmp_path: Path) -> None:
    result = json.loads((own / "result.json").read_text())
    for head in result["val"]["heads"]:
        head["loss"] = 0.1 if head["name"] == "gray" else 1.0
    copy = shutil.copytree(own, tmp_path / "copy")
    (copy / "result.json").write_text(json.dumps(result))
    assert network_of_run(copy, "best")[1].transforms == ("r0",)


def test_the_invariance_score_is_that_of_the_kernels_and_refuses_the_name(own: Path) -> None:
    assert compare_kernels([str(own)], "r0,r1", "l2").runs[str(own)].transforms == "r0,gray,invert"
    with pytest.raises(ConfigError, match="gray") as caught:
        compare_kernels([str(own)], "r0,gray", "l2")
    assert caught.value.field == "group"


# ------------------------------------------------------------------------------------------- files from strangers


@pytest.mark.parametrize("transform", [["luma=mine:luma; import os"], [3], "luma", ["r0=mine:luma"], []])
def test_a_config_with_a_wrong_entry_is_refused(luma: Path, mine: Path, transform: object) -> None:
    content = json.loads((luma / "config.json").read_text())
    content["train"]["transform"] = transform
    (luma / "config.json").write_text(json.dumps(content))
    with pytest.raises(TransnetError):
        load(luma, transform=None)
    assert not mine.exists()


def test_the_module_is_imported_before_the_network_is_built_without_memory(luma: Path) -> None:
    with torch.no_grad():
        assert load(luma, transform="luma=mine:luma")(torch.randn(2, 3, 8, 8)).shape == (2, 3)


def test_names_are_resolved_in_order() -> None:
    found = with_functions(("gray", "r0", "gray"), GRAY)
    assert found[1] == "r0"
    assert found[0] == found[2]


def test_a_command_repeats_the_option() -> None:
    config = TrainConfig("digits", "x", transforms="r0,gray", transform=GRAY)
    assert config.transform == (GRAY,)
    assert f"--transform {GRAY}" in command_of(config)


# --------------------------------------------------------------------------------------------------------- studies

STUDY = """
seeds = 1
save_predictions = true

[train]
epochs = 1
model = "resnet8-small"
device = "cpu"
transform = ["luma=mine:luma"]

[variants.base]
transforms = "r0"

[variants.own]
transforms = "r0,luma,gray"
transform = ["luma=mine:luma", "gray=transnet.transforms:gray"]
"""


def test_a_study_trains_with_functions_in_its_own_processes(data: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "kinds.toml").write_text(STUDY)
    process = command("-m", "transnet", "study", "kinds.toml", data, "--out", "study", cwd=tmp_path)
    printed, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    folder = tmp_path / "study" / "runs" / "kinds-own-s0"
    assert Run(folder).result().config.train.transform == ("luma=mine:luma", GRAY)
    assert (folder / "predictions.npz").exists()
    assert "report.html" in printed


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ('"gray=transnet.transforms:gray"]', '"r1=transnet.transforms:gray"]', 16),
        ("r0,luma,gray", "r0,luma,grey", 15),
        ('transform = ["luma=mine:luma"]', 'transform = ["luma"]', 9),
    ],
)
def test_a_mistake_in_a_study_is_reported_with_its_line(tmp_path: Path, old: str, new: str, line: int) -> None:
    (tmp_path / "kinds.toml").write_text(STUDY.replace(old, new))
    with pytest.raises(ConfigError, match=f"line {line}"):
        read_study(tmp_path / "kinds.toml")


def test_a_study_with_a_function_that_is_not_there_begins_nothing(
    data: Path, mine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "kinds.toml").write_text(STUDY.replace("mine:luma", "mine:lume"))
    assert main(["study", "kinds.toml", str(data), "--out", "study"]) == 2
    assert "module 'mine' has no attribute 'lume'" in capsys.readouterr().err
    assert not (tmp_path / "study").exists()
