"""A study on a Ray cluster (extra ``cluster``): a run is a task, with a GPU or a core of its own.

The study's folder must lie on storage that all nodes share, and ``transnet`` must be installed on them. When a
worker or its node dies, Ray gives the task to another, which goes on from the run's last checkpoint.

    ray start --head; transnet reproduce pruned --data cifar100 --out /shared/cifar100 --on ray
"""

import dataclasses
import os
import signal
from pathlib import Path
from typing import Any

from transnet.data.catalog import NAMES
from transnet.errors import ConfigError
from transnet.runs.config import TrainConfig
from transnet.study.plan import PlannedRun, Study
from transnet.study.worker import TOLD, train_alone

RETRIES = 10  # deaths of a worker or node that a run survives


class Cluster:
    """The cluster at ``RAY_ADDRESS``, the one this machine is part of, or else a new one of this machine alone.

    Args:
        study: for ``jobs`` (runs that share a GPU) and ``device``.
    """

    def __init__(self, study: Study) -> None:
        try:
            import ray
        except ImportError:
            raise ConfigError("`on` ray: Ray is not installed; pip install ray") from None
        self._ray = ray
        self._own = not ray.is_initialized()
        if self._own:
            ray.init(log_to_driver=False, configure_logging=False)
        gpus = ray.cluster_resources().get("GPU", 0) if study.device != "cpu" else 0
        if study.device.startswith("cuda") and not gpus:
            raise ConfigError("cuda was given; no node of the cluster has a GPU", field="device")
        self._at_once = study.jobs or 1 if gpus else 1
        needs = {"num_gpus": 1 / self._at_once, "num_cpus": 1} if gpus else {"num_cpus": 1}
        # An error of the run itself would come again; only deaths are tried again.
        self._task = ray.remote(max_retries=RETRIES, retry_exceptions=False, **needs)(_train)
        self._waiting: dict[Any, str] = {}

    def start(self, run: PlannedRun) -> bool:
        """Hand the run to Ray, at once: it keeps the queue, and a cluster that grows wants to see it."""
        config = dataclasses.replace(run.config, out=str(Path(run.config.out).absolute()))
        data = os.path.expanduser(run.data)
        if run.data not in NAMES and os.path.exists(data):
            data = os.path.abspath(data)  # Ray's processes stand in other folders
        self._waiting[self._task.remote(config, data, self._at_once)] = run.name
        return True

    def ended(self) -> list[tuple[str, str | None]]:
        """The tasks that ended."""
        if not self._waiting:
            return []
        ready, _ = self._ray.wait(list(self._waiting), num_returns=len(self._waiting), timeout=0)
        found: list[tuple[str, str | None]] = []
        for task in ready:
            name = self._waiting.pop(task)
            try:
                found.append((name, self._ray.get(task)))
            except Exception as error:  # whatever Ray makes of a run's end
                found.append((name, str(error).strip().splitlines()[-1]))
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


def _train(config: TrainConfig, data: str, at_once: int) -> str | None:
    """The task: the run's error, or None. Ray sets the threads by the cores that the task asked for."""
    from transnet.train.interrupt import Stopped
    from transnet.train.state import TrainingError

    # Ray cancels a task as Ctrl-C does. A cluster started with SIGINT ignored would ignore that until the run trains.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        train_alone(config, data, at_once)
    except Stopped:
        return TOLD
    except (ValueError, OSError, TrainingError) as error:
        return str(error)
    return None
