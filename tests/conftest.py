"""Setup of every test: one thread, its own folders and a seed. Tests that need a GPU are skipped without one."""

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from transnet import console

# The tests' networks are too small for threads, and the number of threads changes a sum's last digits.
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"  # for the processes that tests start

# A machine under load may be slow, which is no failure.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):  # `item.keywords` also has the names of folders
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(autouse=True)
def own_folders(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test uses the user's own data or cache, or another test's way to name settings in messages."""
    monkeypatch.setattr(console, "rewrite", str)
    monkeypatch.setenv("TRANSNET_CACHE", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setenv("TRANSNET_DATA", str(tmp_path_factory.mktemp("data")))
    monkeypatch.delenv("TRANSNET_IMAGENET", raising=False)
    monkeypatch.delenv("TRANSNET_REWRITES", raising=False)


@pytest.fixture(scope="session")
def small_study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a study with its report: every kind of run, at least two seeds, one epoch each, few images."""
    from transnet.cli import main

    out = tmp_path_factory.mktemp("study")
    words = "reproduce all --data digits --seeds 2 --epochs 1 --train-fraction 0.1 --device cpu --out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRANSNET_CACHE", str(tmp_path_factory.mktemp("cache")))
        assert main([*words.split(), str(out)]) == 0
    assert (out / "report.html").exists()
    return out


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Capabilities(ctypes.Structure):
    _fields_ = tuple(
        (f"{kind}{word}", ctypes.c_uint32) for word in "01" for kind in ("effective", "permitted", "inherited")
    )


@pytest.fixture
def permissions_count() -> Iterator[None]:
    """Make file permissions apply to root too, by dropping two of its capabilities during the test."""
    if os.geteuid():
        yield
        return
    libc, header, held = ctypes.CDLL(None, use_errno=True), _Header(0x20080522, 0), _Capabilities()
    if libc.capget(ctypes.byref(header), ctypes.byref(held)):
        pytest.skip("the capabilities of root cannot be read here")
    before = held.effective0
    held.effective0 = before & ~0b110  # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH
    assert libc.capset(ctypes.byref(header), ctypes.byref(held)) == 0
    try:
        yield
    finally:
        held.effective0 = before
        assert libc.capset(ctypes.byref(header), ctypes.byref(held)) == 0
