"""Training, from settings to result."""

import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from data_files import encoded, noise
from small_runs import images_file, normalised, plain, run, settings, stopped_run, trainer, weights
from transnet import load
from transnet.data import open_data
from transnet.data.pixels import Geometry
from transnet.errors import ConfigError
from transnet.runs.config import TrainConfig
from transnet.runs.folder import Run
from transnet.runs.records import encode
from transnet.train import device, setup
from transnet.train.distributed import World
from transnet.train.evaluate_runs import evaluate_runs
from transnet.train.optim import materialize_state
from transnet.train.setup import Launch, prepare
from transnet.train.state import how_to_resume
from transnet.train.trainer import Trainer, train


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return images_file(tmp_path_factory.mktemp("data") / "x.npz")


# ---------------------------------------------------------------------------------------------------------- a whole run


def test_a_run_learns_and_its_log_agrees_with_its_result(data: Path, tmp_path: Path) -> None:
    result = run(data, tmp_path / "run", epochs=12)
    assert result["test"]["pruned"]["accuracy"] > 0.8
    metrics = Run(tmp_path / "run").metrics()
    assert [entry.epoch for entry in metrics] == list(range(1, 13))
    assert [entry.step for entry in metrics] == [5 * epoch for epoch in range(1, 13)]
    assert encode(metrics[-1].test)["full"] == result["test"]["full"]
    assert metrics[-1].loss[0] < 0.5 * metrics[0].loss[0]
    assert all(0 <= accuracy <= 1 for entry in metrics for accuracy in entry.accuracy)
    assert result["train"]["n"] == 150
    assert result["cost"]["train_flops"] > 12 * 150 * 2 * 3 * 0.9 * result["cost"]["predict_flops"]


def test_the_loss_of_the_first_step_is_that_of_the_initial_network(data: Path, tmp_path: Path) -> None:
    run(data, tmp_path / "run", epochs=1, batch_size=150, lr=0.0, pad=0, transforms="r0")
    net = load(tmp_path / "run").train()
    from transnet.data.augment import View

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


def test_evaluation_does_not_time_convolutions(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)  # as `train` sets it on a GPU
    model, found = plain(), set()
    model.register_forward_pre_hook(lambda net, _: found.add((net.training, torch.backends.cudnn.benchmark)))
    prepared = trainer(data, tmp_path / "run", model, epochs=1, batch_size=30)
    found.clear()  # `prepare` has tried the network on two images
    prepared.train()
    assert found == {(True, True), (False, False)}


def test_evaluation_can_be_less_frequent_and_changes_nothing(data: Path, tmp_path: Path) -> None:
    for every, expected in ((0, [3]), (2, [2, 3]), (1, [1, 2, 3])):
        run(data, tmp_path / str(every), evaluate_every=every)
        found = [entry.epoch for entry in Run(tmp_path / str(every)).metrics() if entry.test]
        assert found == expected
    assert weights(tmp_path / "0") == weights(tmp_path / "1")


def test_a_validation_split_is_evaluated_as_well_as_the_test_set(data: Path, tmp_path: Path) -> None:
    result = run(data, tmp_path / "run", val_fraction=0.2, flip=True)
    assert result["val"]["pruned"]["n"] == 30
    assert result["val_flip"]["full"]["passes"] == 4
    assert result["train"]["n"] == 120
    assert result["test"]["full"]["n"] == 40
    assert Run(tmp_path / "run").metrics()[0].val.full.n == 30
    assert run(data, tmp_path / "without")["val"] is None


@pytest.mark.parametrize("changes", [{"mixup": 0.4}, {"cutmix": 1.0}, {"mixup": 0.2, "cutmix": 1.0, "batch_size": 7}])
def test_every_head_learns_from_mixed_images(data: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    result = run(data, tmp_path / "run", epochs=12, label_smoothing=0.1, transforms="r0,r1,m1", **changes)
    assert min(head["accuracy"] for head in result["test"]["heads"]) > 0.8
    first, *_, last = Run(tmp_path / "run").metrics()
    assert all(after < before for before, after in zip(first.loss, last.loss, strict=True))
    assert min(last.loss) > 0.3  # mixed targets cannot be predicted with certainty


@pytest.mark.parametrize(("batch_size", "steps"), [(1, 150), (149, 2), (1000, 1)])
def test_a_batch_may_have_any_size_and_the_last_one_the_rest(
    data: Path, tmp_path: Path, batch_size: int, steps: int
) -> None:
    model, sizes = plain(), []
    model.register_forward_pre_hook(lambda net, args: sizes.append(len(args[0])) if net.training else None)
    result = run(data, tmp_path / "run", model, epochs=2, transforms="r0", batch_size=batch_size, lr=0.01)
    assert sum(sizes) == 2 * 150
    assert sizes[:steps] == [min(batch_size, 150)] * (150 // batch_size or 1) + [150 % batch_size] * (batch_size == 149)
    first, last = Run(tmp_path / "run").metrics()
    assert [first.step, last.step] == [steps, 2 * steps]
    assert last.loss[0] < first.loss[0]
    assert result["test"]["full"]["n"] == 40


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
    prepared = trainer(data, tmp_path / "run", plain(), batch_size=140, epochs=1)
    prepared.train()
    first, last = prepared.step.losses[:, 0].tolist()  # of 140 images, and of 10
    found = Run(tmp_path / "run").metrics()[0].loss[0]
    assert found == pytest.approx((140 * first + 10 * last) / 150, rel=1e-6)
    assert found != pytest.approx((first + last) / 2, rel=1e-4)


def test_the_terms_of_the_objective_are_logged_and_add_up_to_the_loss_that_is_minimised(
    data: Path, tmp_path: Path
) -> None:
    changes: dict[str, Any] = {"distillation": 0.5, "label_augmentation": 2.0, "invariance_weight": 0.1}
    prepared = trainer(data, tmp_path / "run", epochs=1, batch_size=140, label_smoothing=0.1, **changes)
    prepared.train()
    entry = Run(tmp_path / "run").metrics()[0]
    assert set(entry.terms) == {"cross_entropy", "distillation", "joint_label", "invariance"}
    assert all(value > 0 for value in entry.terms.values())
    assert entry.terms["cross_entropy"] != pytest.approx(sum(entry.loss) / 2, rel=1e-3)  # it includes the smoothing
    first, last = prepared.step.terms.sum(1).tolist()
    assert sum(entry.terms.values()) == pytest.approx((140 * first + 10 * last) / 150, rel=1e-5)
    run(data, tmp_path / "one", epochs=1)
    assert "terms" not in (tmp_path / "one" / "metrics.jsonl").read_text()


def test_several_processes_resume_as_several(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = trainer(data, tmp_path / "run").setup
    alone.run.release()
    assert "\n  transnet train " in how_to_resume(alone, 5)
    two = replace(alone, world=World(rank=0, size=2))
    assert "\n  torchrun … -m transnet train " in how_to_resume(two, 5)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert "\n  torchrun --nproc-per-node 2 -m transnet train " in how_to_resume(two, 5)


def test_a_run_with_another_optimizer_resumes_bit_identically(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def adamw(net: nn.Module, config: TrainConfig, _: torch.device) -> torch.optim.Optimizer:
        backbone, heads = net.backbone.parameters(), net.heads.parameters()
        optimizer = torch.optim.AdamW([{"params": backbone}, {"params": heads, "weight_decay": 0.0}], lr=config.lr)
        materialize_state(optimizer)
        return optimizer

    sgd = run(data, tmp_path / "sgd", plain())
    monkeypatch.setattr(setup, "build_optimizer", adamw)
    whole = run(data, tmp_path / "whole", plain())
    stopped_run(data, tmp_path / "run", step=7)
    run(data, tmp_path / "run", plain(), resume=True)
    assert weights(tmp_path / "run") == weights(tmp_path / "whole")
    assert whole["test"] != sgd["test"]


def test_frozen_layers_stay_frozen(data: Path, tmp_path: Path) -> None:
    def trained(model: nn.Module, out: Path) -> Tensor:
        run(data, out, model=model, epochs=1, transforms="r0,r1")
        from safetensors.torch import load_file

        return load_file(out / "model.safetensors")["backbone.2.running_mean"]

    frozen = normalised()
    frozen[2].eval()
    assert trained(frozen, tmp_path / "frozen").count_nonzero() == 0
    assert trained(normalised(), tmp_path / "free").count_nonzero() > 0
    assert (
        trained(normalised().eval(), tmp_path / "evaluated").count_nonzero() > 0
    )  # a whole network in evaluation mode is trained


def test_resuming_in_another_precision_is_a_warning(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    stopped_run(data, tmp_path / "run", step=7, transforms="r0")
    monkeypatch.setattr(device, "precision_for", lambda *_: "bf16")
    result = train(settings(data, tmp_path / "run", transforms="r0", resume=True), model=plain())
    assert "warning: the run was begun in fp32, but this device continues in bf16" in capfd.readouterr().err
    assert result.precision == "bf16"


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU can capture the step")
def test_a_step_that_cannot_be_captured_is_one_line_and_changes_nothing(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run(data, tmp_path / "eager", transforms="r0")
    capfd.readouterr()
    prepared = Trainer(prepare(Launch.of(settings(data, tmp_path / "run", transforms="r0"))))
    prepared.step.capture = True
    prepared.train()
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("warning: ")]
    assert len(lines) == 1
    assert "slower" in lines[0]
    assert weights(tmp_path / "run") == weights(tmp_path / "eager")


@pytest.mark.skipif(torch.backends.mps.is_available(), reason="this machine has an Apple GPU")
def test_an_apple_gpu_that_is_not_there_is_a_clear_error(data: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Apple GPU") as caught:
        run(data, tmp_path / "run", device="mps")
    assert caught.value.field == "device"
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["meta", "tpu", "cuda:x", "cuda:99", "GPU 0", "mps:1"])
def test_an_unknown_device_is_a_clear_error(data: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="device: "):
        run(data, tmp_path / "run", device=name)


# ------------------------------------------------------------------------------------------------------------ streaming


@pytest.mark.parametrize(("workers", "rotate"), [(0, None), (2, None), (0, "r0,m1,r2")])
def test_streamed_and_resident_images_train_the_same_weights(
    data: Path, tmp_path: Path, workers: int, rotate: str | None
) -> None:
    changes: dict[str, Any] = {"pad": 2, "flip": True, "rotate": rotate}
    a = run(data, tmp_path / "resident", plain(), storage="resident", **changes)
    b = run(data, tmp_path / "stream", plain(), storage="stream", workers=workers, **changes)
    assert weights(tmp_path / "resident") == weights(tmp_path / "stream")
    assert a["test_flip"] == b["test_flip"]


@pytest.mark.parametrize("rotate", [None, "r0,r1,m2"])
def test_crops_without_padding_are_the_same_streamed_and_resident(tmp_path: Path, rotate: str | None) -> None:
    file = images_file(tmp_path / "x.npz", size=70, n=40, test=10)
    changes: dict[str, Any] = {"image_size": 16, "workers": 0, "flip": True, "rotate": rotate}
    for storage in ("resident", "stream"):
        result = run(file, tmp_path / storage, plain(), storage=storage, **changes)
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


def test_rotation_is_an_augmentation_of_training_alone(data: Path, tmp_path: Path) -> None:
    results = {rotate: run(data, tmp_path / str(rotate), rotate=rotate) for rotate in (None, "r0", "r0,r1,r2,r3")}
    assert results["r0,r1,r2,r3"]["config"]["train"]["rotate"] == "r0,r1,r2,r3"
    assert "--rotate r0,r1,r2,r3" in results["r0,r1,r2,r3"]["command"]
    assert weights(tmp_path / "None") == weights(tmp_path / "r0") != weights(tmp_path / "r0,r1,r2,r3")
    again = evaluate_runs([str(tmp_path / "r0,r1,r2,r3")], device="cpu")[str(tmp_path / "r0,r1,r2,r3")]
    assert again.plain.full.accuracy == results["r0,r1,r2,r3"]["test"]["full"]["accuracy"]


def test_images_that_are_not_square_cannot_be_rotated_by_a_quarter(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = replace(open_data(str(data)), geometry=Geometry((6, 8), (8, 8)))
    monkeypatch.setattr(setup, "open_together", lambda _: wide)
    with pytest.raises(ConfigError, match="r1 needs square images") as error:
        run(data, tmp_path / "run", rotate="r0,r1")
    assert error.value.field == "rotate"
    assert not (tmp_path / "run").exists()


def test_a_quiet_run_prints_nothing(data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run(data, tmp_path / "run", transforms="r0,m0", flip=True)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(("model", "slow"), [("resnet18-cifar", True), ("resnet8-small", False)])
def test_a_network_that_is_slow_on_a_cpu_gets_a_note(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], model: str, slow: bool
) -> None:
    file = images_file(tmp_path / "few.npz", n=12, test=6)
    train(settings(file, tmp_path / "run", epochs=1, batch_size=12, model=model))
    assert ("is slow on a CPU; `model` resnet8-small is fast" in capsys.readouterr().err) == slow


@pytest.mark.parametrize("flip", [True, False])
def test_transforms_that_a_flip_makes_equal_are_a_warning_only_if_images_are_flipped(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], flip: bool
) -> None:
    train(settings(data, tmp_path / "run", transforms="r0,m0", flip=flip, epochs=1))
    assert ("warning: images are flipped in training, so m0 and r0" in capfd.readouterr().err) == flip


def test_every_epoch_has_its_own_plan_which_is_drawn_once(data: Path, tmp_path: Path) -> None:
    prepared = trainer(data, tmp_path / "run")
    orders = [prepared.plan_of(epoch).order for epoch in range(3)]
    assert prepared.plan_of(1) is prepared.plan_of(1)
    assert all(torch.equal(prepared.plan_of(epoch).order, orders[epoch]) for epoch in range(3))
    assert not torch.equal(orders[1], orders[2])


# ---------------------------------------------------------------------------------------- what `auto` chooses, and cost


def formats_of(data: Path, out: Path, model: nn.Module, **changes: Any) -> set[tuple[bool, bool]]:
    """Whether the backbone saw channels-last images, in training and in evaluation: (training, channels-last)."""
    found = set()

    def keep(net: nn.Module, args: tuple[Tensor, ...]) -> None:
        found.add((net.training, args[0].is_contiguous(memory_format=torch.channels_last)))

    model.register_forward_pre_hook(keep)
    prepared = trainer(data, out, model, epochs=1, flip=True, **changes)
    found.clear()  # `prepare` has tried the network
    prepared.train()
    return found


@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize("changes", [{}, {"pad": 2, "mixup": 0.4}, {"storage": "stream", "workers": 0, "cutmix": 1.0}])
def test_the_memory_format_reaches_the_network(tmp_path: Path, channels_last: bool, changes: dict[str, Any]) -> None:
    file = images_file(tmp_path / "x.npz", channels=3)
    setting = "yes" if channels_last else "no"
    changes = {"transforms": "r0,r1,m3", "channels_last": setting, **changes}
    found = formats_of(file, tmp_path / "run", plain(channels=3), **changes)
    assert found == {(True, channels_last), (False, channels_last)}


def test_a_run_records_the_chosen_memory_format_and_precision_and_keeps_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = images_file(tmp_path / "x.npz", channels=3)
    stopped_run(file, tmp_path / "run", step=7, model={"channels": 3}, channels_last="yes", precision="fp32")
    run(file, tmp_path / "run", plain(channels=3), resume=True)  # auto would choose no
    chosen = Run(tmp_path / "run").settings().train
    assert (chosen.channels_last, chosen.precision) == ("yes", "fp32")
    assert Run(tmp_path / "run").result().config.train == chosen
    run(file, tmp_path / "auto", epochs=1)
    fast = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "DEFAULT")
    run(file, tmp_path / "auto2", epochs=1)
    found = [Run(tmp_path / name).settings().train.channels_last for name in ("auto", "auto2")]
    assert found[1] == "no"
    assert found[0] == ("yes" if fast else "no")


def test_resuming_with_other_threads_is_a_warning(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    stopped_run(data, tmp_path / "run", step=7)
    torch.set_num_threads(2)
    try:
        result = train(settings(data, tmp_path / "run", resume=True), model=plain())
        assert torch.get_num_threads() == 2  # `train` never changes it
    finally:
        torch.set_num_threads(1)
    assert "warning: the run was begun with 1 thread, and this process has 2" in capfd.readouterr().err
    assert result.threads == 2


def test_every_image_is_scored_once_after_the_last_epoch(data: Path, tmp_path: Path) -> None:
    model, images = plain(), []
    model.register_forward_pre_hook(lambda net, args: None if net.training else images.append(len(args[0])))
    prepared = trainer(data, tmp_path / "run", model, flip=True, transforms="r0,r1", val_fraction=0.2, evaluate_every=0)
    images.clear()
    result = prepared.train()
    assert sum(images) == (40 + 30) * 2 * 2 + 120  # test and validation, heads, flip; the training set's identity head
    assert result.test_flip is not None
    assert result.test == replace(Run(tmp_path / "run").metrics()[-1].test, pruned=result.test.pruned)


def test_the_final_result_is_not_rounded_by_autocast(data: Path, tmp_path: Path) -> None:
    model, found = plain(), set()

    def keep(net: nn.Module, args: Any, output: Tensor) -> None:
        if not net.training:
            found.add(output.dtype)

    prepared = trainer(data, tmp_path / "run", model, precision="bf16", epochs=1)
    prepared.setup.net.backbone.conv.register_forward_hook(keep)
    prepared.train()
    assert found == {torch.bfloat16, torch.float32}  # of the curves, and of the result


def test_the_training_set_is_scored_only_where_it_is_compared(data: Path, tmp_path: Path) -> None:
    found = {}
    for generalization in (True, False):
        prepared = trainer(data, tmp_path / str(generalization), epochs=1, generalization=generalization)
        object.__setattr__(prepared.setup.config, "recipe", "another")
        found[generalization] = prepared.train()
        assert Run(tmp_path / str(generalization)).result() == found[generalization]
    assert found[False].train is found[False].generalization is None
    assert found[True].train is not None
    assert weights(tmp_path / "True") == weights(tmp_path / "False")
