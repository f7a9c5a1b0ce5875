"""Freed memory is kept only in processes of commands that train."""

import os
import platform
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")

OWN = ("MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD", "PYTHONMALLOC")


def python(code: str, **more: str) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(OWN)}
    words = [sys.executable, "-c", code]
    return subprocess.run(words, env=environment | more, capture_output=True, text=True, check=True).stdout.strip()


FAULTS = """
import resource
from transnet.allocator import allocator_settings, release_memory, reuse_memory
{before}
import torch
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
for _ in range(20):  # the heap grows until its gaps fit
    torch.ones(2**25)
freed, faults = resident(), resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(4):
    torch.ones(2**25)
faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
release_memory()
print(faults, freed - resident(), allocator_settings())
"""


def test_freed_memory_is_used_again_until_it_is_released() -> None:
    faults, released, *settings = python(FAULTS.format(before="reuse_memory()")).split()
    assert int(faults) < 1000  # of 4 · 128 MiB, which are 131,072 pages
    assert int(released) > 2**26
    assert settings[-1] == "M_TRIM_THRESHOLD=-1"
    assert len(settings) == 2
    faults, released, *settings = python(FAULTS.format(before="")).split()
    assert int(faults) > 1000 or int(released) == 0
    assert not settings


@pytest.mark.parametrize(
    ("name", "value"), [("MALLOC_ARENA_MAX", "2"), ("GLIBC_TUNABLES", "glibc.malloc.arena_max=2"), ("LD_PRELOAD", "")]
)
def test_an_allocator_that_the_environment_configures_is_left_alone(name: str, value: str) -> None:
    code = "from transnet.allocator import *; reuse_memory(); print(allocator_settings())"
    assert python(code, **{name: value}) == f"{name}={value}"


@pytest.mark.parametrize(
    ("command", "trains"),
    [("train", True), ("study", True), ("reproduce", True), ("demo", True), ("predict", False), ("serve", False)],
)
def test_only_commands_that_train_keep_memory(command: str, trains: bool) -> None:
    code = f"""
import sys
sys.argv = ["transnet", "{command}", "--help"]
from transnet.__main__ import main
from transnet.allocator import allocator_settings
try:
    main()
except SystemExit:
    print("\\n" + str("M_TRIM_THRESHOLD" in allocator_settings()))
"""
    assert python(code).splitlines()[-1] == str(trains)
