"""Failures in training: each names its cause and what to try, and leaves no run that looks finished."""

import re
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from small_runs import Plain, command, epochs_written, images_file, normalised, plain, run, settings, trainer
from transnet import load
from transnet.errors import ConfigError
from transnet.runs.folder import Run
from transnet.train.device import is_out_of_memory
from transnet.train.failures import TrainingError
from transnet.train.trainer import train


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return images_file(tmp_path_factory.mktemp("data") / "x.npz")


class Explodes(Plain):
    """Its output is NaN from a training step on."""

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
    assert "Try a smaller `lr`" in message
    assert epochs_written(tmp_path / "run") == [1, 2]


def test_a_learning_rate_far_too_high_is_named(data: Path, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"learning rate [\d.]+e\+\d+; last good checkpoint: none"):
        run(data, tmp_path / "run", plain(), lr=1e12, warmup=0.0)


def test_weights_that_the_last_step_ruined_are_no_result(data: Path, tmp_path: Path) -> None:
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
    with pytest.raises(ConfigError, match=r"^batch_size: 1 is too small; take more: Expected more than 1 value"):
        train(settings(data, tmp_path / "run", model="timm:lcnet_050", transforms="r0", batch_size=1), quiet=True)
    assert not (tmp_path / "run").exists()


class Greedy(Plain):
    """Allocates more memory than there is, from a training step on."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training and self.steps >= 2:
            torch.empty(2**50, dtype=torch.uint8)
        return super().forward(x)


def test_out_of_memory_is_a_message_with_what_needs_less(data: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    with pytest.raises(TrainingError, match=r"^out of memory on CPU") as caught:
        run(data, tmp_path / "run", Greedy(), transforms="r0,r1,r2", batch_size=50)
    assert "150 images through the network at once: a batch of 50 times 3 heads. A smaller `batch_size`" in str(
        caught.value
    )
    assert "`jobs`" not in str(caught.value)
    with pytest.raises(
        TrainingError, match="Up to 3 runs share the device: `jobs` 1 gives all of it to each"
    ) as caught:
        train(settings(data, tmp_path / "shared"), model=Greedy(), quiet=True, at_once=3)
    assert "`batch_size`" not in str(caught.value)  # a study has no such option


def test_out_of_memory_in_the_first_trial_is_not_a_mistake_of_the_model(data: Path, tmp_path: Path) -> None:
    class Huge(Plain):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x + torch.empty(2**50, dtype=torch.uint8)[0])

    with pytest.raises(TrainingError, match=r"^out of memory on CPU"):
        run(data, tmp_path / "run", Huge())


def test_out_of_memory_is_found_as_the_context_of_another_error() -> None:
    def capture() -> None:
        try:
            torch.empty(2**50, dtype=torch.uint8)
        except RuntimeError:
            raise RuntimeError("the capture failed")  # noqa: B904

    with pytest.raises(RuntimeError, match="capture") as caught:
        capture()
    assert is_out_of_memory(caught.value)
    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"))
    assert not is_out_of_memory(RuntimeError("shapes differ"))


class OnlyTrains(Plain):
    """Its outputs are finite in training only."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x * (float("nan") if self.steps and not self.training else 1.0))


def test_outputs_that_are_not_finite_are_no_result(data: Path, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="the loss on the test set is nan, though it was finite in training"):
        run(data, tmp_path / "run", OnlyTrains())
    assert not (tmp_path / "run" / "result.json").exists()
    written = (tmp_path / "run" / "metrics.jsonl").read_text()
    assert "NaN" not in written  # it is not valid JSON
    assert [entry.test.full.loss for entry in Run(tmp_path / "run").metrics()] == [None] * 3


def test_a_penalty_on_kernels_needs_kernels(data: Path, tmp_path: Path) -> None:
    flat = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    with pytest.raises(ConfigError, match="invariance_weight: Sequential has no square kernels larger than 1×1"):
        run(data, tmp_path / "run", model=flat, invariance_weight=1.0)
    assert not (tmp_path / "run").exists()


def test_extra_commas_in_the_transforms_do_no_harm(data: Path, tmp_path: Path) -> None:
    run(data, tmp_path / "run", epochs=1, transforms="r0,, r1,")
    assert load(tmp_path / "run").transforms == ("r0", "r1")


def test_a_run_that_could_not_be_loaded_is_not_trained(data: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="image_size: 1040 was given"):
        run(data, tmp_path / "run", image_size=1040)
    with pytest.raises(ConfigError, match="length <= 64"):
        run(data, tmp_path / "run", transforms=",".join(["r0"] * 65))
    assert not (tmp_path / "run").exists()


def test_a_last_batch_that_batch_norm_cannot_train_on_is_an_error_before_training(data: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"batch_size: 149 leaves 1 for the last step; change it: Expected more"):
        run(data, tmp_path / "run", normalised(), batch_size=149, transforms="r0")
    assert not (tmp_path / "run").exists()
    run(data, tmp_path / "run", normalised(), batch_size=149, transforms="r0,r1")  # two views of the image
    run(data, tmp_path / "other", normalised(), batch_size=148, transforms="r0")


def test_trying_the_last_batch_does_not_change_the_statistics(data: Path, tmp_path: Path) -> None:
    prepared = trainer(data, tmp_path / "run", normalised(), batch_size=149, transforms="r0,r1").setup
    prepared.run.release()
    assert prepared.net.backbone[2].running_mean.count_nonzero() == 0
    assert prepared.net.backbone[2].num_batches_tracked == 0


def test_training_with_a_torch_that_is_too_old_names_the_version_to_install(tmp_path: Path) -> None:
    script = (
        "import sys, torch\ntorch.__version__ = '2.8.0'\n"
        "from transnet import TransNet, fold, heads_loss, layer_invariance, load\nprint('the method works')\n"
        "from transnet.cli import main\nsys.exit(main(['train', 'digits', '--out', 'run']))"
    )
    process = command("-c", script, cwd=tmp_path)
    printed, errors = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "the method works" in printed
    assert re.fullmatch(r"transnet: training .* torch 2\.11 or newer, and 2\.8\.0 is installed.*\n", errors)
    assert not (tmp_path / "run").exists()
