"""How long runs take, from the speed of the runs that a folder already has, and how to stay within a time budget."""

import os
import re
import statistics
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from transnet.data import open_data
from transnet.data.catalog import NAMES, needs_download
from transnet.errors import ConfigError, DataError
from transnet.runs.folder import Run
from transnet.study.cuda_mps import gpu_name
from transnet.study.local import gpus_for
from transnet.study.plan import PlannedRun

_SHORTEST = 10.0  # seconds: a shorter budget is over before a run has started


class _Speed(NamedTuple):
    run: PlannedRun
    device: str  # without the number of threads; empty if the run is not finished
    passes_per_second: float
    start_up: float  # seconds until it trained


class Estimate:
    """Training passes and seconds of planned runs.

    The speed is that of finished runs on this device: of the same variant, or else of the same network. Without any,
    all runs of that network count, whichever device they were trained on. ``device`` is this machine's by default.
    """

    def __init__(self, runs: Sequence[PlannedRun], device: str | None = None) -> None:
        if device is None:
            gpus = gpus_for(runs[0].config.device) if runs else []
            device = gpu_name(gpus[0]) if gpus else "CPU"
        self.runs, self._device = runs, device.partition(",")[0]
        self._images: dict[tuple[float, float], int | None] = {}
        self._finished: dict[str, _Speed] = {}
        self.refresh()

    def refresh(self) -> None:
        """Read the speeds from the runs' folders again."""
        unfinished = []
        for run in self.runs:
            folder = Run(run.path)
            if folder.finished and run.name not in self._finished:
                result = folder.result()
                self._finished[run.name] = _Speed(
                    run,
                    device=result.device.partition(",")[0],
                    passes_per_second=result.cost.train_passes / max(result.seconds, 1e-9),
                    start_up=result.prepare_seconds + result.compile_seconds,
                )
            elif not folder.finished and (entries := folder.metrics()):
                images_per_second = statistics.fmean(entry.images_per_second for entry in entries)
                unfinished.append(_Speed(run, "", run.heads * images_per_second, 0.0))
        self._speeds = [*self._finished.values(), *unfinished]
        # Seconds until a run trains on this device.
        self.start_up = max((one.start_up for one in self._speeds if one.device == self._device), default=0.0)

    def passes(self, run: PlannedRun) -> int | None:
        """Training passes of the whole run."""
        images = self._training_images(run)
        return None if images is None else images * run.size

    def seconds(self, run: PlannedRun) -> float | None:
        """Seconds until the run is finished, if it trains alone or beside as many runs as before; None if unknown."""
        if run.done:
            return 0.0
        alike = [
            one
            for one in self._speeds
            if (one.run.config.model, one.run.config.image_size) == (run.config.model, run.config.image_size)
        ]
        here = [one for one in alike if one.device == self._device]
        same = [one for one in here if one.run.kind == run.kind]
        speeds = [one.passes_per_second for one in same or here or alike]
        passes = self.passes(run) if speeds else None
        return None if passes is None else passes * run.left / statistics.fmean(speeds)

    def left(self, runs: Iterable[PlannedRun], at_once: int) -> float | None:
        """Seconds until all of these are finished; None if that is unknown of any."""
        seconds = [self.seconds(run) for run in runs]
        known = [each for each in seconds if each is not None]
        return max(sum(known) / at_once, *known, 0.0) if len(known) == len(seconds) else None

    def _training_images(self, run: PlannedRun) -> int | None:
        """By a run that has begun on the same images, or else by the data if that needs no download."""
        config = run.config
        part = config.train_fraction, config.val_fraction
        if self._images.get(part) is None:
            alike = (Run(one.path) for one in self.runs if (one.config.train_fraction, one.config.val_fraction) == part)
            begun = next((folder for folder in alike if folder.config.exists()), None)
            if begun:
                self._images[part] = begun.settings().data.sizes.train
            elif is_here(run.data):
                try:
                    opened = open_data(
                        run.data, image_size=config.image_size, val_fraction=config.val_fraction,
                        train_fraction=config.train_fraction, label_column=config.label_column,
                        on_bad_image=config.on_bad_image,
                    )  # fmt: skip
                except DataError:
                    return None
                self._images[part] = len(opened.train)
        return self._images.get(part)


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
        needed = max(_SHORTEST, estimate.start_up + self._reserve)
        if self.seconds < needed:
            raise ConfigError(
                f"{self.seconds:.0f} s is too short for a run to start and save one checkpoint; "
                f"give at least {needed:.0f} s",
                field="budget",
            )

    def in_order(self, waiting: Sequence[PlannedRun], estimate: Estimate) -> list[PlannedRun]:
        """First the runs that have begun or will fit, then those that can only be begun and continued another time."""

        def too_long(run: PlannedRun) -> bool:
            return not run.epochs_done and (estimate.seconds(run) or 0.0) > self.left

        return sorted(waiting, key=too_long)


def read_duration(text: str) -> float:
    """Seconds of a duration such as 25m, 90s or 1h30m.

    Raises:
        ConfigError: if it is none.
    """
    found = re.fullmatch(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s)?", text.strip())
    if not text.strip() or not found:
        raise ConfigError(f"{text!r} was given; a time such as 25m, 90s or 1h30m is needed", field="budget")
    hours, minutes, seconds = (float(part or 0) for part in found.groups())
    return 3600 * hours + 60 * minutes + seconds


def is_here(data: str) -> bool:
    """Whether data can be opened without a download."""
    return not needs_download(data) if data in NAMES else Path(os.path.expanduser(data)).exists()
