"""``transnet --version``: what a bug report needs."""

import os
import platform


def report() -> str:
    """Return versions, devices, and the bf16 support, threads and allocator of training, one per line."""
    import torch

    from transnet.allocator import allocator_settings, reuse_memory
    from transnet.runs.provenance import commit, versions
    from transnet.train.device import has_bf16, usable_threads

    reuse_memory()
    versions_of = versions()
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    bf16 = [kind for kind in ("cpu", "cuda") if has_bf16(torch.device(kind))]
    lines = [
        f"transnet {versions_of.pop('transnet')} ({commit() or 'no commit'})",
        *(f"{name} {version}" for name, version in versions_of.items()),
        f"system {platform.platform()}",
        f"devices {', '.join([f'CPU ({torch.backends.cpu.get_cpu_capability()})', *gpus])}",
        f"bf16 {', '.join(bf16) or 'none'}",
        f"threads {usable_threads()} of {os.cpu_count()} cores",
        f"allocator {allocator_settings() or 'default'}",
    ]
    return "\n".join(lines)
