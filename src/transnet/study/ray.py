"""A study on a Ray cluster (extra ``cluster``): a run is a task, with a GPU or a core of its own.

The study's folder must be on storage that all nodes share, and ``transnet`` must be installed on them. If a worker or
its node dies, Ray gives the task to another one, which continues from the run's last checkpoint.

    ray start --head; transnet reproduce pruned --data cifar100 --out /shared/cifar100 --on ray
"""

import os
import signal
from dataclasses import replace
from typing import Any

from transnet.data.catalog import DATASETS
from transnet.errors import ConfigError
from transnet.study.local import Ended, train_run
from transnet.study.plan import PlannedRun

_RETRIES = 10  # deaths of a worker or node that a run survives
_WAIT_FOR_LOCK = 60.0  # seconds, for the process on a node that only seemed dead


class RayCluster:
    """The cluster at ``RAY_ADDRESS``, the one this machine is part of, or else a new one of this machine alone."""

    def __init__(self, *, device: str = "auto", jobs: int | None = None) -> None:
        try:
            import ray
        except ImportError:
            raise ConfigError("ray was given, but Ray is not installed; pip install ray", field="on") from None
        self._ray = ray
        self._own = not ray.is_initialized()
        if self._own:
            ray.init(log_to_driver=False, configure_logging=False)
        resources = ray.cluster_resources()
        gpus = resources.get("GPU", 0) if device != "cpu" else 0
        if device.startswith("cuda") and not gpus:
            raise ConfigError(f"{device} was given; no node of the cluster has a GPU", field="device")
        self._at_once = jobs or 1 if gpus else 1
        self.slots = max(int(gpus * self._at_once if gpus else resources.get("CPU", 1)), 1)
        needs = {"num_gpus": 1 / self._at_once, "num_cpus": 1} if gpus else {"num_cpus": 1}
        # An error of the run itself would come again, so only deaths are tried again.
        self._task = ray.remote(max_retries=_RETRIES, retry_exceptions=False, **needs)(_task)
        self._waiting: dict[Any, str] = {}

    def start(self, run: PlannedRun) -> bool:
        """Hand the run to Ray at once: it keeps the queue, and a cluster that grows needs to see all of it."""
        here = os.path.abspath(os.path.expanduser(run.data))  # Ray's processes have other working directories
        data = here if run.data not in DATASETS and os.path.exists(here) else run.data
        given = replace(run, config=replace(run.config, out=os.path.abspath(run.config.out)), data=data)
        self._waiting[self._task.remote(given, self._at_once)] = run.name
        return True

    def ended(self) -> list[Ended]:
        """The runs whose tasks have ended since the last call."""
        ready = (
            self._ray.wait(list(self._waiting), num_returns=len(self._waiting), timeout=0)[0] if self._waiting else ()
        )
        found = []
        for task in ready:
            name = self._waiting.pop(task)
            try:
                found.append(self._ray.get(task))
            except Exception as error:  # whatever Ray makes of a run's end
                found.append(Ended(name, error=str(error).strip().splitlines()[-1]))
        return found

    def stop(self) -> None:
        """Cancel every task. One that trains is interrupted as by Ctrl-C: it finishes its step and saves."""
        for task in self._waiting:
            self._ray.cancel(task)
        if self._waiting:
            self._ray.wait(list(self._waiting), num_returns=len(self._waiting))
        self._waiting.clear()

    def close(self) -> None:
        """End every task that is left, and leave the cluster."""
        for task in self._waiting:
            self._ray.cancel(task, force=True)
        self._waiting.clear()
        if self._own:
            self._ray.shutdown()


def _task(run: PlannedRun, at_once: int) -> Ended:
    """Ray sets the threads by the cores that the task asked for."""
    # Ray cancels a task as Ctrl-C does. A cluster started with SIGINT ignored would ignore that until the run trains.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return train_run(run, at_once, wait=_WAIT_FOR_LOCK)
