"""Several runs on one GPU at once.

By itself a GPU gives each process slices of its time. Under NVIDIA's Multi-Process Service their kernels run side by
side, and one run computes while the other waits for its host. `benchmarks/shared_gpu.py` measures both.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

CONTROL = "nvidia-cuda-mps-control"
AT_ONCE = 2  # runs on a GPU, where the service is there and the memory suffices
SPARE = 1.25  # memory that must be free, in what the next run is expected to take

# Waits until the process that started it is gone, however it ended, or closes the pipe; then ends the service.
_UNTIL_THE_END = 'cat > /dev/null; echo quit | "$0" > /dev/null 2>&1; rm -rf "$1"'

# Begins to use the first GPU; by the driver alone, in a second where torch would take many.
_USE = """
import ctypes
driver, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
raise SystemExit(bool(driver.cuInit(0) or driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)))
"""


class Service:
    """The Multi-Process Service for the processes that get its ``environment``. It ends with this process.

    Raises:
        OSError: where it does not start.
    """

    def __init__(self) -> None:
        folder = tempfile.mkdtemp(prefix="transnet-")
        self.environment = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        environment = {**os.environ, **self.environment}
        try:
            subprocess.run([CONTROL, "-d"], check=True, env=environment, stdout=subprocess.DEVNULL, timeout=30)
        except subprocess.SubprocessError as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise OSError(f"{CONTROL} -d: {error}") from error
        self._keeper = subprocess.Popen(
            ["sh", "-c", _UNTIL_THE_END, CONTROL, folder],
            stdin=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )

    def works(self) -> bool:
        """Whether a process can use a GPU through it: it may start where it is not allowed to serve."""
        environment = {**os.environ, **self.environment}
        try:
            subprocess.run([sys.executable, "-c", _USE], check=True, env=environment, capture_output=True, timeout=60)
        except subprocess.SubprocessError:
            return False
        return True

    def close(self) -> None:
        """End it; to be called when no process uses it any more."""
        assert self._keeper.stdin is not None
        self._keeper.stdin.close()
        with suppress(subprocess.TimeoutExpired):  # it waits for its last client, which may hang in the driver
            self._keeper.wait(timeout=30)


def is_served() -> bool:
    """Whether someone else started the service, and all processes here use it."""
    return bool(os.environ.get("CUDA_MPS_PIPE_DIRECTORY")) or Path("/tmp/nvidia-mps/control").exists()


def _renumbers() -> bool:
    """Whether the service would count the GPUs otherwise than its clients, which it hands on: from 0, what it sees."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    numbers = [name.strip() for name in visible if name.strip().isdigit()]
    return numbers != [str(i) for i in range(len(numbers))]


def start_service() -> Service | None:
    """The service for runs that share a GPU; None where one is not to be had or not needed."""
    if is_served() or shutil.which(CONTROL) is None or _renumbers():
        return None
    try:
        service = Service()
    except OSError:  # not allowed here, as in some containers
        return None
    if service.works():
        return service
    service.close()
    return None


def used_and_free(gpu: str) -> tuple[float, float] | None:
    """A GPU's memory in MiB, of all processes; None where it cannot be told.

    Args:
        gpu: its number or UUID, as in ``CUDA_VISIBLE_DEVICES``.
    """
    query = ["nvidia-smi", "-i", gpu, "--query-gpu=memory.used,memory.free", "--format=csv,noheader,nounits"]
    try:
        told = subprocess.run(query, check=True, capture_output=True, text=True, timeout=30).stdout
        used, free = told.split(",")
        return float(used), float(free)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
