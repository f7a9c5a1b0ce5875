"""One process or many: the rank of this process, and its share of each batch.

    torchrun --nproc-per-node 4 --max-restarts 3 -m transnet train cifar100 --out runs/t2

The batch size is that of all processes together. Every image is used once per epoch and counted once in evaluation,
whatever the number of processes.
"""

import atexit
import gc
import os
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous


@dataclass(frozen=True)
class World:
    """The processes of a run. ``World()`` is a single process."""

    rank: int = 0
    size: int = 1

    @property
    def is_primary(self) -> bool:
        """Whether this is the first process, which writes files and prints messages."""
        return self.rank == 0

    def share(self, n: int) -> tuple[int, int]:
        """This process's share of ``n`` items, as (start, length). The first processes get the remainder."""
        each, odd = divmod(n, self.size)
        return self.rank * each + min(self.rank, odd), each + (self.rank < odd)

    def sum(self, value: Tensor) -> Tensor:
        """The sum over all processes."""
        if self.size > 1:
            value = value.clone()
            dist.all_reduce(value)
        return value

    def mean(self, value: Tensor) -> Tensor:
        """The mean over all processes."""
        return self.sum(value) / self.size

    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        """Copy the first process's values to all others, in place."""
        if self.size > 1:
            for tensor in tensors:
                dist.broadcast(tensor, 0)

    def any(self, flag: bool, device: torch.device) -> bool:
        """Whether the flag is set in any process."""
        return flag if self.size == 1 else bool(self.sum(torch.tensor(int(flag), device=device)).item())

    def barrier(self) -> None:
        """Wait for all processes."""
        if self.size > 1:
            dist.barrier()


def restarts() -> int:
    """How often torchrun has restarted this process after a failure; the run then resumes by itself."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def join(device: str) -> World:
    """Join the processes that torchrun started, until they end, or return the world of a single process."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return World()
    cuda = device != "cpu" and torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    if not dist.is_initialized():
        _connect("nccl" if cuda else "gloo")
        atexit.register(_disconnect)
    return World(dist.get_rank(), dist.get_world_size())


def _connect(backend: str) -> None:
    # The others wait while the first process decodes the images. torchrun notices if one dies, without this timeout.
    timeout = timedelta(hours=2)
    store, rank, size = next(rendezvous("env://", timeout=timeout))
    if os.environ.get("GROUP_WORLD_SIZE") == "1":
        # torchrun keeps its store when it restarts the processes, and the store still has the addresses of those that
        # ended. (The count is each node's own, so on several nodes the prefix would separate them.)
        store = PrefixStore(f"start {restarts()}", store)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout)


def _disconnect() -> None:
    if dist.is_initialized():
        gc.collect()  # networks wrapped by DDP must go before the group whose threads they use
        dist.destroy_process_group()
