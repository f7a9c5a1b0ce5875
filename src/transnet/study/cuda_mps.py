"""Several runs on one GPU at once.

Without further measures, a GPU gives each process slices of its time. Under NVIDIA's Multi-Process Service the kernels
of several processes run side by side, so one run computes while another waits for its CPU. `benchmarks/shared_gpu.py`
measures both.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

CONTROL = "nvidia-cuda-mps-control"
AT_ONCE = 2  # runs on a GPU, if the service is available and the memory suffices
SPARE = 1.25  # free memory that the next run needs, as a multiple of what it is expected to take

# Waits until the process that started it has ended or closed the pipe, then ends the service.
_UNTIL_THE_END = 'cat > /dev/null; echo quit | "$0" > /dev/null 2>&1; rm -rf "$1"'

# Opens the first GPU through the driver alone, which takes a second; importing torch would take many.
_USE = """
import ctypes
driver, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
raise SystemExit(bool(driver.cuInit(0) or driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)))
"""


class Service:
    """The Multi-Process Service for processes that are started with its ``environment``. It ends with this process."""

    def __init__(self) -> None:
        folder = tempfile.mkdtemp(prefix="transnet-")
        self.environment = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        environment = {**os.environ, **self.environment}
        self._keeper = subprocess.Popen(
            ["sh", "-c", _UNTIL_THE_END, CONTROL, folder],
            stdin=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
        try:
            subprocess.run([CONTROL, "-d"], check=True, env=environment, stdout=subprocess.DEVNULL, timeout=30)
            subprocess.run([sys.executable, "-c", _USE], check=True, env=environment, capture_output=True, timeout=60)
        except (OSError, subprocess.SubprocessError) as error:
            self.close()
            raise OSError(f"{CONTROL}: {error}") from error

    def close(self) -> None:
        """End it. Call this when no process uses it any more."""
        assert self._keeper.stdin is not None
        self._keeper.stdin.close()
        with suppress(subprocess.TimeoutExpired):  # it waits for its last client, which may hang in the driver
            self._keeper.wait(timeout=30)


def start_service() -> Service | None:
    """Start the service for runs that share a GPU; None if it is unavailable or not needed."""
    # The service numbers the GPUs that it sees from 0, so its clients would see others than these.
    visible = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    numbers = [name for name in visible if name.isdigit()]
    renumbered = numbers != [str(i) for i in range(len(numbers))]
    if is_served() or shutil.which(CONTROL) is None or renumbered:
        return None
    try:
        return Service()
    except OSError:  # not allowed here, as in some containers
        return None


def is_served() -> bool:
    """Whether the service runs already, for all processes of this machine."""
    return bool(os.environ.get("CUDA_MPS_PIPE_DIRECTORY")) or Path("/tmp/nvidia-mps/control").exists()


def used_and_free(gpu: str) -> tuple[float, float] | None:
    """A GPU's memory in MiB that all processes use, and that is free; None if it is unknown."""
    try:
        used, free = query_gpu(gpu, "memory.used,memory.free").split(",")
        return float(used), float(free)
    except ValueError:
        return None


def query_gpu(gpu: str, fields: str) -> str:
    """Ask the driver about a GPU, by its number or UUID, without opening it; empty if it gives no answer."""
    command = ["nvidia-smi", "-i", gpu, f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=30).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
