"""Training from settings to result, and what goes wrong in it."""

import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from data_files import encoded, noise
from small_runs import images_file, normalised, plain, run, settings, weights
from transnet import load
from transnet.runs.folder import Run
from transnet.runs.records import encode
from transnet.train import setup as prepare
from transnet.train.distributed import World
from transnet.train.interrupt import Stopped
from transnet.train.trainer import Trainer, train


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return images_file(tmp_path_factory.mktemp("data") / "x.npz")


# ---------------------------------------------------------------------------------------------------------- a whole run


def test_a_run_learns_and_its_record_agrees_with_its_result(data: Path, tmp_path: Path) -> None:
    result = run(data, tmp_path / "run", epochs=12)
    assert result["test"]["pruned"]["accuracy"] > 0.8
    metrics = Run(tmp_path / "run").metrics()
    assert [entry.epoch for entry in metrics] == list(range(1, 13))
    assert [entry.step for entry in metrics] == [5 * epoch for epoch in range(1, 13)]
    assert encode(metrics[-1].test)["full"] == result["test"]["full"]
    assert metrics[-1].loss[0] < 0.5 * metrics[0].loss[0]
    assert all(0 <= accuracy <= 1 for entry in metrics for accuracy in entry.accuracy)
    assert result["train"]["n"] == 150


def test_the_record_of_the_first_step_is_the_fresh_networks_loss(data: Path, tmp_path: Path) -> None:
    run(data, tmp_path / "run", epochs=1, batch_size=150, lr=0.0, pad=0, transforms="r0")
    net = load(tmp_path / "run").train()
    from transnet.data import open_data
    from transnet.data.augment import View
    from transnet.data.geometry import Geometry

    opened = open_data(str(data))
    view = View.create(Geometry.square(8), mean=opened.mean, std=opened.std)
    with torch.no_grad():
        logits = net(view.centre(opened.train.resident((8, 8), progress=False)))
    entry = Run(tmp_path / "run").metrics()[0]
    assert entry.loss[0] == pytest.approx(
        torch.nn.functional.cross_entropy(logits[:, 0], opened.train.labels).item(), rel=1e-4
    )
    hits = (logits[:, 0].argmax(1) == opened.train.labels).float().mean().item()
    assert entry.accuracy[0] == pytest.approx(hits, abs=1e-6)


def test_measuring_tries_out_no_convolutions(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)  # as `train` sets it on a GPU
    model, tried = plain(), set()
    model.register_forward_pre_hook(lambda net, _: tried.add((net.training, torch.backends.cudnn.benchmark)))
    config = settings(data, tmp_path / "run", epochs=1, batch_size=30)
    trainer = Trainer(config, World(), torch.device("cpu"), model, data=None, quiet=True)
    trainer.prepare()
    tried.clear()  # the network was tried on the shape of the images
    trainer._epochs(0)
    trainer._measure()
    assert tried == {(True, True), (False, False)}


def test_curves_only_at_the_end_where_asked(data: Path, tmp_path: Path) -> None:
    for every, expected in ((0, [3]), (2, [2, 3]), (1, [1, 2, 3])):
        run(data, tmp_path / str(every), evaluate_every=every)
        found = [entry.epoch for entry in Run(tmp_path / str(every)).metrics() if entry.test]
        assert found == expected
    assert weights(tmp_path / "0") == weights(tmp_path / "1")  # looking changes nothing


def test_a_validation_split_is_measured_beside_the_test_set(data: Path, tmp_path: Path) -> None:
    result = run(data, tmp_path / "run", val_fraction=0.2, flip=True)
    assert result["val"]["pruned"]["n"] == 30
    assert result["val_flip"]["full"]["passes"] == 4
    assert result["train"]["n"] == 120
    assert result["test"]["full"]["n"] == 40
    assert Run(tmp_path / "run").metrics()[0].val.full.n == 30
    assert run(data, tmp_path / "without")["val"] is None


@pytest.mark.parametrize("changes", [{"mixup": 0.4}, {"cutmix": 1.0}, {"mixup": 0.2, "cutmix": 1.0, "batch_size": 7}])
def test_mixing_trains_every_head(data: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    result = run(data, tmp_path / "run", epochs=4, label_smoothing=0.1, transforms="r0,r1,m1", **changes)
    assert all(np.isfinite(head["loss"]) for head in result["test"]["heads"])
    run(data, tmp_path / "plain", epochs=4, label_smoothing=0.1, transforms="r0,r1,m1",
        **{"batch_size": changes.get("batch_size", 32)})  # fmt: skip
    assert weights(tmp_path / "run") != weights(tmp_path / "plain")


@pytest.mark.parametrize("changes", [{"batch_size": 1, "epochs": 1}, {"batch_size": 1000}, {"batch_size": 149}])
def test_any_batch_size_works(data: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    assert np.isfinite(run(data, tmp_path / "run", **changes)["test"]["full"]["loss"])


@pytest.mark.parametrize("changes", [{"transforms": "r1,r2"}, {"heads": "shared"}, {"bn": "separate"}, {"init": "copy"},
                                     {"schedule": "steps", "nesterov": False}, {"momentum": 0.0},
                                     {"precision": "bf16"}])  # fmt: skip
def test_every_variant_trains_and_repeats_bit_for_bit(data: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    run(data, tmp_path / "a", **changes)
    run(data, tmp_path / "b", **changes)
    assert weights(tmp_path / "a") == weights(tmp_path / "b")


def test_training_leaves_torch_as_it_was(data: Path, tmp_path: Path) -> None:
    assert not torch.are_deterministic_algorithms_enabled()
    before = signal.getsignal(signal.SIGINT)
    run(data, tmp_path / "run", epochs=1)
    assert not torch.are_deterministic_algorithms_enabled()
    assert signal.getsignal(signal.SIGINT) is before
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        run(data, tmp_path / "warned", epochs=1)
        assert torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(False)


def test_the_epochs_loss_is_the_mean_over_its_images(data: Path, tmp_path: Path) -> None:
    config = settings(data, tmp_path / "run", batch_size=140, epochs=1)
    trainer = Trainer(config, World(), torch.device("cpu"), plain(), data=None, quiet=True)
    trainer.train()
    first, last = trainer.step.losses[:, 0].tolist()  # of 140 images, and of 10
    found = Run(tmp_path / "run").metrics()[0].loss[0]
    assert found == pytest.approx((140 * first + 10 * last) / 150, rel=1e-6)
    assert found != pytest.approx((first + last) / 2, rel=1e-4)


def test_several_processes_go_on_as_several(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Trainer(settings(data, tmp_path / "run"), World(), torch.device("cpu"), None, data=None, quiet=True)
    trainer.prepare()
    trainer.run.release()
    assert "\n  transnet train " in trainer.how_to_go_on(1, 0)
    trainer.world = World(rank=0, size=2)
    assert "\n  torchrun … -m transnet train " in trainer.how_to_go_on(1, 0)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert "\n  torchrun --nproc-per-node 2 -m transnet train " in trainer.how_to_go_on(1, 0)


def test_layers_that_were_frozen_stay_so(data: Path, tmp_path: Path) -> None:
    def trained(model: nn.Module, out: Path) -> Tensor:
        run(data, out, model=model, epochs=1, transforms="r0,r1")
        from safetensors.torch import load_file

        return load_file(out / "model.safetensors")["backbone.2.running_mean"]

    frozen = normalised()
    frozen[2].eval()
    assert trained(frozen, tmp_path / "frozen").count_nonzero() == 0
    assert trained(normalised(), tmp_path / "free").count_nonzero() > 0
    assert trained(normalised().eval(), tmp_path / "evaluated").count_nonzero() > 0  # a whole network is to be trained


def test_another_precision_on_another_device_is_said(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(Stopped):
        run(data, tmp_path / "run", model=plain(stop_at=7), transforms="r0")
    monkeypatch.setattr(prepare, "precision_on", lambda *_: "bf16")
    result = train(settings(data, tmp_path / "run", transforms="r0", resume=True), model=plain())
    assert "warning: begun in fp32, but this device goes on in bf16" in capfd.readouterr().err
    assert result.precision == "bf16"


@pytest.mark.parametrize("name", ["meta", "tpu", "cuda:x", "cuda:99", "GPU 0"])
def test_an_unknown_device_is_a_clear_error(data: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="device: "):
        run(data, tmp_path / "run", device=name)


# ------------------------------------------------------------------------------------------------------------ streaming


@pytest.mark.parametrize("workers", [0, 2])
def test_streamed_and_resident_images_train_the_same_weights(data: Path, tmp_path: Path, workers: int) -> None:
    a = run(data, tmp_path / "resident", plain(), pad=2, flip=True, storage="resident")
    b = run(data, tmp_path / "stream", plain(), pad=2, flip=True, storage="stream", workers=workers)
    assert weights(tmp_path / "resident") == weights(tmp_path / "stream")
    assert a["test_flip"] == b["test_flip"]


def test_crops_without_padding_are_the_same_streamed_and_resident(tmp_path: Path) -> None:
    file = images_file(tmp_path / "x.npz", size=70, n=40, test=10)
    for storage in ("resident", "stream"):
        result = run(file, tmp_path / storage, plain(), image_size=16, storage=storage, workers=0, flip=True)
        assert result["config"]["data"]["stored_size"] == 18
    assert weights(tmp_path / "resident") == weights(tmp_path / "stream")


def test_images_that_are_not_square_are_the_same_streamed_and_resident(tmp_path: Path) -> None:
    for c in range(3):
        (tmp_path / "data" / str(c)).mkdir(parents=True)
        for i in range(6):
            pixels = noise(10 * c + i, *((30, 75) if i % 2 else (61, 20)))
            (tmp_path / "data" / str(c) / f"{i}.png").write_bytes(encoded(pixels))
    for storage in ("resident", "stream"):
        run(tmp_path / "data", tmp_path / storage, plain(channels=3), image_size=16, storage=storage, workers=0)
    assert weights(tmp_path / "resident") == weights(tmp_path / "stream")


def test_quiet_says_nothing(data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run(data, tmp_path / "run", transforms="r0,m0", flip=True)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(("model", "slow"), [("resnet18-cifar", True), ("resnet8-small", False)])
def test_a_network_that_is_slow_on_a_cpu_is_remarked_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], model: str, slow: bool
) -> None:
    file = images_file(tmp_path / "few.npz", n=12, test=6)
    train(settings(file, tmp_path / "run", epochs=1, batch_size=12, model=model))
    assert ("is slow on a CPU; `model` resnet8-small is quick" in capsys.readouterr().err) == slow


@pytest.mark.parametrize("flip", [True, False])
def test_a_natural_pair_is_warned_of_only_where_images_are_flipped(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], flip: bool
) -> None:
    train(settings(data, tmp_path / "run", transforms="r0,m0", flip=flip, epochs=1))
    assert ("warning: images are flipped in training, so m0 and r0" in capfd.readouterr().err) == flip


def test_a_plan_that_was_drawn_ahead_is_for_its_own_epoch_alone(data: Path, tmp_path: Path) -> None:
    trainer = Trainer(settings(data, tmp_path / "run"), World(), torch.device("cpu"), None, data=None, quiet=True)
    trainer.prepare()
    first, second, third = (trainer._plan(epoch) for epoch in range(3))
    trainer._ahead = 1, second
    assert trainer._plan(1) is second
    assert torch.equal(trainer._plan(0).order, first.order)
    assert torch.equal(trainer._plan(2).order, third.order)
    assert not torch.equal(second.order, third.order)
