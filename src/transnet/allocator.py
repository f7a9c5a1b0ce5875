"""Keep freed memory for the next training step, which glibc would otherwise return and map again for every tensor."""

import ctypes
import os
import platform
import re

# Settings of the allocators of C (group 1), Python and torch.
_SETTINGS = re.compile("(MALLOC_.*|GLIBC_TUNABLES|LD_PRELOAD)|PYTHONMALLOC|PYTORCH_(?:CUDA_|HIP_)?ALLOC_CONF")
_done: list[str] = []  # what `reuse_memory` has set


def reuse_memory() -> None:
    """Set glibc's thresholds. Elsewhere, or if the environment configures C's allocator, do nothing."""
    given = any(match[1] for match in map(_SETTINGS.fullmatch, os.environ) if match)
    if _done or given or platform.libc_ver()[0] != "glibc":
        return
    mallopt = ctypes.CDLL(None).mallopt
    # An older glibc refuses so high a threshold.
    mapped = "M_MMAP_THRESHOLD=1073741824" if mallopt(-3, 2**30) else mallopt(-4, 0) and "M_MMAP_MAX=0"
    _done.extend(filter(None, (mapped, mallopt(-1, -1) and "M_TRIM_THRESHOLD=-1")))


def release_memory() -> None:
    """Return the memory that was kept, before work with tensors of other sizes."""
    if _done:
        ctypes.CDLL(None).malloc_trim(0)


def allocator_settings() -> str:
    """The settings of this process's allocators; empty for the defaults."""
    given = (f"{name}={value}" for name, value in sorted(os.environ.items()) if _SETTINGS.fullmatch(name))
    return " ".join([*given, *_done])
