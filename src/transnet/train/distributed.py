"""One process or many: who this process is, and what part of each batch is its own.

    torchrun --nproc-per-node 4 -m transnet train cifar100 --out runs/t2

A batch is split among the processes, not multiplied: ``--batch-size`` is the global one, every image is seen once an
epoch and counted once in evaluation, whatever their number.

With ``--max-restarts 3`` a run goes on by itself after a process died. Over several nodes, set
TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 for torchrun then, or the new processes may look for those that ended.
"""

import atexit
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
    """The processes of a run. ``World()`` is the single process."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0

    @property
    def first(self) -> bool:
        """Whether this process writes files and speaks to the user."""
        return self.rank == 0

    def share(self, n: int) -> tuple[int, int]:
        """This process's part of ``n`` things, as (start, length); the first processes get the odd ones."""
        each, odd = divmod(n, self.size)
        return self.rank * each + min(self.rank, odd), each + (self.rank < odd)

    def sum(self, value: Tensor) -> Tensor:
        """The sum over all processes, in place."""
        if self.size > 1:
            dist.all_reduce(value)
        return value

    def copy_from_first(self, tensors: Iterable[Tensor]) -> None:
        """Give every process the first one's values, in place."""
        if self.size > 1:
            for tensor in tensors:
                dist.broadcast(tensor, 0)

    def any(self, flag: bool, device: torch.device) -> bool:
        """Whether any process says so."""
        if self.size == 1:
            return flag
        return bool(self.sum(torch.tensor(int(flag), device=device)).item())

    def barrier(self) -> None:
        """Wait for all."""
        if self.size > 1:
            dist.barrier()


def restarts() -> int:
    """How often torchrun started this process again after a failure: then the run goes on by itself."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def join(device: str) -> World:
    """Join the processes that torchrun started; a single process where it did not.

    They stay together until they end: to part and meet again for a second run, each would have to wait until all
    others have left.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return World()
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    cuda = device != "cpu" and torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(local_rank % torch.cuda.device_count())
    if not dist.is_initialized():
        _meet("nccl" if cuda else "gloo")
        atexit.register(_part)
    return World(dist.get_rank(), dist.get_world_size(), local_rank)


def _meet(backend: str) -> None:
    # The others wait while the first one decodes the images. One that dies is noticed by torchrun, not by this.
    patience = timedelta(hours=2)
    store, rank, size = next(rendezvous("env://", timeout=patience))
    if os.environ.get("GROUP_WORLD_SIZE") == "1":
        # torchrun keeps its store when it starts the processes again: the addresses of those that ended are still
        # in it. (The count is each node's own, so that with several nodes it would part them.)
        store = PrefixStore(f"start {restarts()}", store)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=patience)


def _part() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
