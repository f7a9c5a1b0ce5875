"""Rules for the memory format, the precision and the number of threads."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from small_models import small
from transnet import backbones
from transnet.train import device
from transnet.train.device import is_tiny, set_threads, usable_threads, use_channels_last

CPU = torch.device("cpu")
X86 = platform.machine().lower() in ("x86_64", "amd64")


# -------------------------------------------------------------------------------------------------------- memory format


@pytest.mark.skipif(torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"), reason="needs AVX2")
@pytest.mark.parametrize(
    ("name", "channels", "expected"),
    [
        ("resnet8-small", 3, True), ("resnet8-small", 1, False), ("wrn16-4-cifar", 3, True),
        ("timm:tf_efficientnet_lite0", 3, True), ("timm:efficientnet_b0", 3, True), ("timm:convnext_atto", 3, False),
        ("timm:vit_tiny_patch16_224", 3, False), ("torchvision:vgg11", 3, False),
    ],
)  # fmt: skip
def test_channels_last_is_chosen_for_colour_and_batch_norm(name: str, channels: int, expected: bool) -> None:
    net = backbones.create(name, num_classes=3, in_channels=channels, image_size=32)
    assert use_channels_last("auto", CPU, net, channels) == expected
    assert use_channels_last("yes", CPU, net, channels)
    assert not use_channels_last("no", CPU, net, channels)


def test_a_gpu_uses_channels_last_and_an_unmeasured_processor_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    net = backbones.create("resnet8-small", num_classes=3)
    assert use_channels_last("auto", torch.device("cuda"), nn.Linear(1, 1), 1)
    assert not use_channels_last("no", torch.device("cuda"), net, 3)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "DEFAULT")
    assert not use_channels_last("auto", CPU, net, 3)


# ------------------------------------------------------------------------------------------------------------ precision


@pytest.mark.skipif(not X86, reason="needs an x86 processor")
def test_bf16_is_refused_if_the_processor_would_emulate_it(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "transnet", "train", "digits", "--precision", "bf16", "--device", "cpu"]
    environment = {**os.environ, "ATEN_CPU_CAPABILITY": "avx2"}
    done = subprocess.run(
        [*words, "--out", tmp_path / "run"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("transnet: --precision: ")
    assert "fp32" in done.stderr
    assert not (tmp_path / "run").exists()


def test_auto_is_fp32_on_a_cpu_and_bf16_on_a_gpu_that_does_not_emulate_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def supported(*, including_emulation: bool = True) -> bool:
        asked.append(including_emulation)
        return including_emulation

    monkeypatch.setattr(torch.cuda, "is_bf16_supported", supported)
    assert device.precision_for(CPU, "auto") == "fp32"
    assert device.precision_for(torch.device("cuda"), "auto") == "fp32"
    assert asked == [False]


@pytest.mark.skipif(not device.has_bf16(CPU), reason="needs a processor with bf16")
def test_bf16_gains_without_convolutions_in_groups() -> None:
    depthwise = nn.Sequential(nn.Conv2d(4, 4, 3, groups=4), nn.Linear(1, 1))
    assert device.gains_from_bf16(small(), CPU)
    assert not device.gains_from_bf16(depthwise, CPU)


# -------------------------------------------------------------------------------------------------------------- threads


def groups(root: Path, own: str, files: dict[str, str]) -> int:
    """The threads in a file system with these control groups."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(own)
    for name, content in files.items():
        (root / "sys/fs/cgroup" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "sys/fs/cgroup" / name).write_text(content)
    return usable_threads(root)


@pytest.mark.parametrize(
    ("own", "files", "expected"),
    [
        ("0::/\n", {"cpu.max": "250000 100000\n"}, 2),
        ("0::/\n", {"cpu.max": "50000 100000\n"}, 1),
        ("0::/\n", {"cpu.max": "max 100000\n"}, 4),
        ("0::/a/b\n", {"a/cpu.max": "300000 100000\n", "a/b/cpu.max": "max 100000\n"}, 3),
        ("0::/docker/id\n", {"cpu.max": "100000 50000\n"}, 2),
        ("3:cpuset:/\n2:cpu,cpuacct:/a", {"cpu/a/cpu.cfs_quota_us": "200000", "cpu/a/cpu.cfs_period_us": "100000"}, 2),
        ("2:cpu:/\n0::/\n", {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 4),
        ("", {}, 4),
    ],
)  # fmt: skip
def test_the_quota_of_the_control_groups_limits_the_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str, files: dict[str, str], expected: int
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    assert groups(tmp_path, own, files) == expected
    assert usable_threads(tmp_path / "nothing") == 4


def test_a_tiny_network_gets_one_thread_unless_the_environment_sets_the_number(monkeypatch: pytest.MonkeyPatch) -> None:
    digits = backbones.create("resnet8-small", num_classes=10, in_channels=1)
    photographs = backbones.create("timm:tf_efficientnet_lite0", num_classes=10)
    assert is_tiny(digits, 8 * 8 * 128 * 4)
    assert not is_tiny(digits, 32 * 32 * 128)
    assert not is_tiny(photographs, 128 * 128 * 32)
    found: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", found.append)
    set_threads(digits, 8 * 8 * 128)  # conftest sets OMP_NUM_THREADS
    assert found == []
    monkeypatch.delenv("OMP_NUM_THREADS")
    set_threads(digits, 8 * 8 * 128)
    set_threads(photographs, 128 * 128 * 32)
    assert found == [1, usable_threads()]
