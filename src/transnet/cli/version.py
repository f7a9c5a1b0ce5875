"""``transnet --version``: what a bug report needs."""

import os
import platform
import re
from pathlib import Path

# Settings of the allocators of C, Python and torch.
_ALLOCATORS = re.compile(r"MALLOC_.*|GLIBC_TUNABLES|LD_PRELOAD|PYTHONMALLOC|PYTORCH_(CUDA_|HIP_)?ALLOC_CONF")


def report() -> str:
    """Return versions, devices, support of bf16, threads and the allocator, one per line."""
    import torch

    from transnet.runs.provenance import commit, versions

    versions_of = versions()
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    settings = [f"{name}={value}" for name, value in sorted(os.environ.items()) if _ALLOCATORS.fullmatch(name)]
    cpu_info = Path("/proc/cpuinfo")  # only Linux reports whether the CPU computes in bf16 without emulation
    flags = cpu_info.read_text() if cpu_info.exists() else ""
    on_cpu = "yes" if re.search(r"\b(avx512_bf16|amx_bf16|bf16)\b", flags) else "no"
    on_gpu = f", GPU {'yes' if torch.cuda.is_bf16_supported() else 'no'}" if gpus else ""
    lines = [
        f"transnet {versions_of.pop('transnet')} ({commit() or 'no commit'})",
        *(f"{name} {version}" for name, version in versions_of.items()),
        f"system {platform.platform()}",
        f"devices {', '.join([f'CPU ({torch.backends.cpu.get_cpu_capability()})', *gpus])}",
        f"bf16 CPU {on_cpu}{on_gpu}",
        f"threads {torch.get_num_threads()} of {os.cpu_count()} cores",
        f"allocator {' '.join(settings) or 'default'}",
    ]
    return "\n".join(lines)
