"""Training from settings to result, and what goes wrong in it."""

import re
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from data_files import encoded, noise
from small_runs import Plain, command, epochs_written, images_file, plain, run, settings, weights
from transnet import TransNet, load
from transnet.study.kernels import score_kernels
from transnet.train import prepare
from transnet.train.config import ConfigError
from transnet.train.device import is_for_want_of_memory
from transnet.train.distributed import World
from transnet.train.interrupt import Stopped
from transnet.train.loop import Trainer, train
from transnet.train.run import Run
from transnet.train.state import TrainingError


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return images_file(tmp_path_factory.mktemp("data") / "x.npz")


# ---------------------------------------------------------------------------------------------------------- a whole run


def test_a_run_learns_and_its_record_agrees_with_its_result(data: Path, tmp_path: Path) -> None:
    result = run(data, tmp_path / "run", epochs=12)
    assert result["test"]["pruned"]["accuracy"] > 0.8
    metrics = Run(tmp_path / "run").read_metrics()
    assert [entry["epoch"] for entry in metrics] == list(range(1, 13))
    assert [entry["step"] for entry in metrics] == [5 * epoch for epoch in range(1, 13)]
    assert metrics[-1]["test"] == result["test"]
    assert metrics[-1]["loss"][0] < 0.5 * metrics[0]["loss"][0]
    assert all(0 <= accuracy <= 1 for entry in metrics for accuracy in entry["accuracy"])
    assert result["train"]["n"] == 150


def test_the_record_of_the_first_step_is_the_fresh_networks_loss(data: Path, tmp_path: Path) -> None:
    run(data, tmp_path / "run", epochs=1, batch_size=150, lr=0.0, pad=0, transforms="r0")
    net = load(tmp_path / "run").train()
    from transnet.data import open_data
    from transnet.data.augment import View

    opened = open_data(str(data))
    view = View.of(size=8, stored=8, pad=0, mean=opened.mean, std=opened.std, device=torch.device("cpu"))
    with torch.no_grad():
        logits = net(view.centre(opened.train.resident(8, progress=False)))
    entry = Run(tmp_path / "run").read_metrics()[0]
    assert entry["loss"][0] == pytest.approx(
        torch.nn.functional.cross_entropy(logits[:, 0], opened.train.labels).item(), rel=1e-4
    )
    hits = (logits[:, 0].argmax(1) == opened.train.labels).float().mean().item()
    assert entry["accuracy"][0] == pytest.approx(hits, abs=1e-6)


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
        found = [entry["epoch"] for entry in Run(tmp_path / str(every)).read_metrics() if "test" in entry]
        assert found == expected
    assert weights(tmp_path / "0") == weights(tmp_path / "1")  # looking changes nothing


def test_a_validation_split_is_measured_beside_the_test_set(data: Path, tmp_path: Path) -> None:
    result = run(data, tmp_path / "run", val_fraction=0.2, flip=True)
    assert result["val"]["pruned"]["n"] == 30
    assert result["val_flip"]["full"]["passes"] == 4
    assert result["train"]["n"] == 120
    assert result["test"]["full"]["n"] == 40
    assert Run(tmp_path / "run").read_metrics()[0]["val"]["full"]["n"] == 30
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
    found = Run(tmp_path / "run").read_metrics()[0]["loss"][0]
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
    assert result["precision"] == "bf16"


@pytest.mark.parametrize("name", ["meta", "tpu", "cuda:x", "cuda:99", "GPU 0"])
def test_an_unknown_device_is_a_clear_error(data: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="--device: "):
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


# ----------------------------------------------------------------------------------------------- what goes wrong


class Explodes(Plain):
    """Its output is not a number from a training step on."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self.step = step

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x * (float("nan") if self.training and self.steps + 1 >= self.step else 1.0))


def test_a_loss_that_is_not_finite_names_step_rate_and_last_good_checkpoint(data: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    with pytest.raises(TrainingError) as caught:
        run(data, tmp_path / "run", Explodes(13), checkpoint_every=1)
    message = str(caught.value)
    assert "the loss is nan at step 12 (epoch 3, step 3 of 5), learning rate " in message
    assert str(tmp_path / "run" / "state" / "00000010") in message
    assert "Try a smaller --lr" in message
    assert epochs_written(tmp_path / "run") == [1, 2]


def test_a_learning_rate_far_too_high_is_named(data: Path, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"learning rate [\d.]+e\+\d+; last good checkpoint: none"):
        run(data, tmp_path / "run", plain(), lr=1e12, warmup=0.0)


def test_weights_ruined_by_the_very_last_step_are_no_result(data: Path, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="the weights are not finite after step 0"):
        run(data, tmp_path / "run", plain(), epochs=1, batch_size=150, lr=3e38, warmup=0.0)
    assert not (tmp_path / "run" / "model.safetensors").exists()


def test_ruined_weights_are_never_a_good_checkpoint(data: Path, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"not finite.*last good checkpoint: none"):
        run(data, tmp_path / "run", plain(), epochs=2, batch_size=150, lr=3e38, warmup=0.0, checkpoint_every=1)


def test_a_failed_run_exits_1_without_a_traceback(data: Path, tmp_path: Path) -> None:
    process = command("-m", "transnet", "train", data, "--out", tmp_path / "run", "--lr", "1e30", "--device", "cpu")
    _, errors = process.communicate(timeout=180)
    assert process.returncode == 1
    assert "Traceback" not in errors
    assert re.search(r"transnet: the (loss is|weights are not)", errors)


def test_a_batch_of_one_that_the_network_cannot_take_is_named(data: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^--batch-size: 1 is too few a step; take more: Expected more than 1 value"):
        train(settings(data, tmp_path / "run", model="timm:lcnet_050", transforms="r0", batch_size=1), quiet=True)
    assert not (tmp_path / "run").exists()


class Greedy(Plain):
    """Asks for more memory than there is from a training step on."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training and self.steps >= 2:
            torch.empty(2**50, dtype=torch.uint8)
        return super().forward(x)


def test_want_of_memory_is_a_message_that_says_what_needs_less(data: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    with pytest.raises(TrainingError, match=r"^out of memory on CPU") as caught:
        run(data, tmp_path / "run", Greedy(), transforms="r0,r1,r2", batch_size=50)
    assert "150 images through the network at once: a batch of 50 times 3 heads. A smaller --batch" in str(caught.value)
    assert "--jobs" not in str(caught.value)
    with pytest.raises(
        TrainingError, match="Up to 3 runs share the device: --jobs 1 gives all of it to each"
    ) as caught:
        train(settings(data, tmp_path / "shared"), model=Greedy(), quiet=True, at_once=3)
    assert "--batch-size" not in str(caught.value)  # a study has no such option


def test_a_model_that_finds_no_memory_at_all_is_not_called_unfit(data: Path, tmp_path: Path) -> None:
    class Huge(Plain):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x + torch.empty(2**50, dtype=torch.uint8)[0])

    with pytest.raises(TrainingError, match=r"^out of memory on CPU"):
        run(data, tmp_path / "run", Huge())


def test_want_of_memory_is_found_beneath_what_it_led_to() -> None:
    def capture() -> None:
        try:
            torch.empty(2**50, dtype=torch.uint8)
        except RuntimeError:
            raise RuntimeError("the capture failed")  # noqa: B904

    with pytest.raises(RuntimeError, match="capture") as caught:
        capture()
    assert is_for_want_of_memory(caught.value)
    assert is_for_want_of_memory(MemoryError())
    assert is_for_want_of_memory(RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"))
    assert not is_for_want_of_memory(RuntimeError("shapes differ"))


class OnlyTrains(Plain):
    """Its outputs are numbers in training only."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x * (float("nan") if self.steps and not self.training else 1.0))


def test_outputs_that_are_no_numbers_are_no_result(data: Path, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="the loss on the test set is nan, though it was finite in training"):
        run(data, tmp_path / "run", OnlyTrains())
    assert not (tmp_path / "run" / "result.json").exists()
    written = (tmp_path / "run" / "metrics.jsonl").read_text()
    assert "NaN" not in written  # which is no JSON
    assert [entry["test"]["full"]["loss"] for entry in Run(tmp_path / "run").read_metrics()] == [None] * 3


def test_a_penalty_on_kernels_needs_kernels(data: Path, tmp_path: Path) -> None:
    flat = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    with pytest.raises(ConfigError, match="--invariance-weight: Sequential has no square kernels larger than 1×1"):
        run(data, tmp_path / "run", model=flat, invariance_weight=1.0)
    assert not (tmp_path / "run").exists()
    with pytest.raises(ConfigError, match="invariance: a Sequential has no square kernels"):
        score_kernels(TransNet(flat), group="r0,r1", measure="l2")


def test_stray_commas_among_the_transforms_do_no_harm(data: Path, tmp_path: Path) -> None:
    run(data, tmp_path / "run", epochs=1, transforms="r0,, r1,")
    assert load(tmp_path / "run").transforms == ("r0", "r1")


def test_what_could_not_be_loaded_is_not_trained(data: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--image-size: 1040 was given; 1024 is the most"):
        run(data, tmp_path / "run", image_size=1040)
    with pytest.raises(ConfigError, match="a list of up to 64 names is needed"):
        run(data, tmp_path / "run", transforms=",".join(["r0"] * 65))
    assert not (tmp_path / "run").exists()


def normalised() -> nn.Module:
    """With batch norm on maps of one pixel, which a single image cannot train."""
    layers = (nn.Conv2d(1, 4, 3), nn.AdaptiveAvgPool2d(1), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 3))
    return nn.Sequential(*layers)


def test_a_last_batch_that_batch_norm_cannot_train_on_is_said_first(data: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--batch-size: 149 leaves 1 to the last step; change it: Expected more"):
        run(data, tmp_path / "run", normalised(), batch_size=149, transforms="r0")
    assert not (tmp_path / "run").exists()
    run(data, tmp_path / "run", normalised(), batch_size=149, transforms="r0,r1")  # two views of the image
    run(data, tmp_path / "other", normalised(), batch_size=148, transforms="r0")


def test_trying_the_last_batch_leaves_the_statistics_alone(data: Path, tmp_path: Path) -> None:
    config = settings(data, tmp_path / "run", batch_size=149, transforms="r0,r1")
    trainer = Trainer(config, World(), torch.device("cpu"), normalised(), data=None, quiet=True)
    trainer.prepare()
    trainer.run.release()
    assert trainer.net.backbone[2].running_mean.count_nonzero() == 0
    assert trainer.net.backbone[2].num_batches_tracked == 0


# --------------------------------------------------------------------------------------------- natural transforms


@pytest.mark.parametrize(("model", "slow"), [("resnet18-cifar", True), ("resnet8-small", False)])
def test_a_network_that_is_slow_on_a_cpu_is_remarked_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], model: str, slow: bool
) -> None:
    file = images_file(tmp_path / "few.npz", n=12, test=6)
    train(settings(file, tmp_path / "run", epochs=1, batch_size=12, model=model))
    assert ("is slow on a CPU; --model resnet8-small is quick" in capsys.readouterr().err) == slow


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
