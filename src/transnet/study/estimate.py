"""Estimate how long runs take from the runs that a folder already has, and keep a study within a time budget."""

import os
import re
import statistics
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from transnet.data import open_data
from transnet.data.catalog import DATASETS, needs_download
from transnet.errors import ConfigError
from transnet.runs.folder import Run
from transnet.study.cuda_mps import query_gpu
from transnet.study.local import gpus_for
from transnet.study.plan import PlannedRun


class _Speed(NamedTuple):
    run: PlannedRun
    per_second: float  # training passes per image, in a second
    device: str = ""  # without the number of threads; empty if the run is not finished
    start_up: float = 0.0  # seconds until it trained


class Estimate:
    """Estimate the seconds that planned runs take.

    The speed is that of finished runs on ``device`` (by default this machine's): of the same variant, or else with the
    same data and batch size. If there are none, it is that of runs on other devices and of unfinished runs, and at last
    of the same network on other data.
    """

    def __init__(self, runs: Sequence[PlannedRun], device: str | None = None) -> None:
        if device is None:
            gpus = gpus_for(runs[0].config.device) if runs else []
            device = query_gpu(gpus[0], "name") if gpus else "CPU"
        self.runs, self._device = runs, device.partition(",")[0]
        self._images: dict[tuple[object, ...], int | None] = {}  # by task
        self.refresh()

    def refresh(self) -> None:
        """Read the speeds from the runs' folders again."""
        self._speeds = []
        for run in self.runs:
            folder = Run(run.path)
            if folder.finished:
                result = folder.result()
                start_up = result.prepare_seconds + result.compile_seconds
                speed = run.passes_per_image / max(result.seconds, 1e-9)
                self._speeds.append(_Speed(run, speed, result.device.partition(",")[0], start_up))
            elif seconds := [entry.seconds for entry in folder.metrics()]:
                self._speeds.append(_Speed(run, run.heads / max(statistics.fmean(seconds), 1e-9)))
        # Seconds until a run trains on this device.
        self.start_up = max((one.start_up for one in self._speeds if one.device == self._device), default=0.0)

    def seconds(self, run: PlannedRun) -> float | None:
        """Seconds until the run is finished, if it trains alone or beside as many runs as before; None if unknown."""
        if run.done:
            return 0.0
        same_task = [one for one in self._speeds if _task(one.run) == _task(run)]
        same_device = [one for one in same_task if one.device == self._device]
        same_variant = [one for one in same_device if one.run.kind == run.kind]
        speeds = [one.per_second for one in same_variant or same_device or same_task]
        alike = [one for one in self._speeds if _network(one.run) == _network(run)]
        if not speeds and alike and (images := self.images(run)):
            speeds = [one.per_second * n / images for one in alike if (n := self.images(one.run))]
        left = run.heads * (run.config.epochs - run.epochs_done)
        return left / statistics.fmean(speeds) if speeds else None

    def left(self, runs: Iterable[PlannedRun], at_once: int) -> float | None:
        """Seconds until all of these runs are finished; None if that is unknown for any of them."""
        seconds = [self.seconds(run) for run in runs]
        known = [each for each in seconds if each is not None]
        return max(sum(known) / at_once, *known, 0.0) if len(known) == len(seconds) else None

    def images(self, run: PlannedRun) -> int | None:
        """Training images of a run; None if their number is unknown before a download."""
        if self._images.get(_task(run)) is None:
            self._images[_task(run)] = _count_images(run)
        return self._images[_task(run)]


def _task(run: PlannedRun) -> tuple[object, ...]:
    """The settings that determine how long a pass takes and how many images there are."""
    config = run.config
    return config.data, config.train_fraction, config.val_fraction, *_network(run)


def _network(run: PlannedRun) -> tuple[object, ...]:
    """The settings that determine how long a pass takes."""
    config, named = run.config, DATASETS.get(run.config.data)
    own = (named.model, named.geometry.size) if named else (None, None)
    return config.model or own[0], config.image_size or own[1], config.batch_size, config.precision


def _count_images(run: PlannedRun) -> int | None:
    config = run.config
    if Run(run.path).config.exists():
        return Run(run.path).settings().data.sizes.train
    if not is_local(run.data):
        return None
    opened = open_data(
        run.data, image_size=config.image_size, val_fraction=config.val_fraction,
        train_fraction=config.train_fraction, label_column=config.label_column, on_bad_image=config.on_bad_image,
    )  # fmt: skip
    return len(opened.train)


class Budget:
    """The time that a study may take, in seconds from now."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self._begun = seconds, time.monotonic()
        self._reserve = min(max(0.05 * seconds, 3.0), 60.0)  # to finish a step, save and end

    @property
    def left(self) -> float:
        """Seconds until every run has to stop."""
        return self.seconds - self._reserve - (time.monotonic() - self._begun)

    def check(self, estimate: Estimate) -> None:
        """Raise if the budget is too short for a run to start and save one checkpoint."""
        needed = max(10.0, estimate.start_up + self._reserve)  # seconds
        if self.seconds < needed:
            problem = f"{self.seconds:.0f} s is too short for a run to start and save; give at least {needed:.0f} s"
            raise ConfigError(problem, field="budget")

    def in_order(self, waiting: Sequence[PlannedRun], estimate: Estimate) -> list[PlannedRun]:
        """Put runs that have begun or will fit before those that can only be begun now and continued another time."""
        return sorted(waiting, key=lambda run: not run.epochs_done and (estimate.seconds(run) or 0.0) > self.left)


def read_duration(text: str) -> float:
    """Convert a duration such as 25m, 90s or 1h30m to seconds."""
    found = re.fullmatch(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s)?", text.strip())
    if not text.strip() or not found:
        raise ConfigError(f"{text!r} was given; a time such as 25m, 90s or 1h30m is needed", field="budget")
    hours, minutes, seconds = (float(part or 0) for part in found.groups())
    return 3600 * hours + 60 * minutes + seconds


def is_local(data: str) -> bool:
    """Whether data can be opened without a download."""
    return not needs_download(data) if data in DATASETS else Path(os.path.expanduser(data)).exists()
