"""How long runs take, from the speed of the runs that a folder already has, and how to stay within a time budget."""

import os
import re
import statistics
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from transnet.data import open_data
from transnet.data.catalog import NAMES, needs_download
from transnet.errors import ConfigError, DataError
from transnet.runs.folder import Run
from transnet.study.plan import PlannedRun

LEAST = 10.0  # seconds: a shorter budget is over before a run has started


class Estimate:
    """Training passes and seconds of planned runs.

    The speed is that of finished runs on this device: of the same variant, or else of the same network on the same
    images. Without any, unfinished runs count, whichever device they were begun on.

    Args:
        runs: the planned runs.
        device: this machine's, as in ``result.json``; the number of threads does not matter.
        open_data: open the data of runs that have not begun to count its images, if that needs no download.
    """

    def __init__(self, runs: Sequence[PlannedRun], device: str, *, open_data: bool = False) -> None:
        self.runs, self._device, self._open_data = runs, device.partition(",")[0], open_data
        self._images: dict[tuple[object, ...], int | None] = {}
        self.refresh()

    def refresh(self) -> None:
        """Look at the runs' folders again."""
        finished = ((run, Run(run.path).result()) for run in self.runs if Run(run.path).finished)
        self._finished = [(run, one) for run, one in finished if one.device.partition(",")[0] == self._device]
        self._speeds: dict[tuple[object, ...], float | None] = {}

    def passes(self, run: PlannedRun) -> int | None:
        """Training passes of the whole run."""
        images = self._images_of(run)
        return None if images is None else images * run.config.epochs * run.heads

    def seconds(self, run: PlannedRun) -> float | None:
        """Seconds until the run is finished, if it trains alone or beside as many runs as before; None if unknown."""
        if run.done:
            return 0.0
        passes, speed = self.passes(run), self._speed(run)
        if passes is None or not speed:
            return None
        return passes * (1 - epochs_done(run) / run.config.epochs) / speed

    def left(self, runs: Iterable[PlannedRun], at_once: int) -> float | None:
        """Seconds until all of these are finished; None if that is unknown of any."""
        seconds = [self.seconds(run) for run in runs]
        known = [each for each in seconds if each is not None]
        return max(sum(known) / at_once, *known, 0.0) if len(known) == len(seconds) else None

    @property
    def start_up(self) -> float:
        """Seconds until a run trains, by the runs of this device."""
        return max((one.prepare_seconds + one.compile_seconds for _, one in self._finished), default=0.0)

    def _speed(self, run: PlannedRun) -> float | None:
        """Passes per second."""
        alike, key = _network(run), (*_network(run), run.kind)
        if key not in self._speeds:
            rates = {one: result.cost.train_passes / max(result.seconds, 1e-9) for one, result in self._finished}
            same = [rate for one, rate in rates.items() if _network(one) == alike]
            self._speeds[key] = (
                _mean([rate for one, rate in rates.items() if (*_network(one), one.kind) == key])
                or _mean(same)
                or _mean([rate for one in self.runs if _network(one) == alike and (rate := _speed_so_far(one))])
            )
        return self._speeds[key]

    def _images_of(self, run: PlannedRun) -> int | None:
        """Training images, by a run that has begun on the same images, or else by the data."""
        if self._images.get(key := _images_key(run)) is None:
            begun = [one for one in self.runs if _images_key(one) == key and Run(one.path).config.exists()]
            if begun:
                self._images[key] = Run(begun[0].path).settings().data.sizes.train
            elif self._open_data:
                self._images[key] = _count_images(run)
        return self._images.get(key)


class Budget:
    """The time that a study may take.

    Args:
        seconds: all of it.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds, self._begun = seconds, time.monotonic()
        self._reserve = min(max(0.05 * seconds, 3.0), 60.0)  # to finish a step, save and end

    @property
    def left(self) -> float:
        """Seconds until every run has to stop."""
        return self.seconds - self._reserve - (time.monotonic() - self._begun)

    def check(self, estimate: Estimate) -> None:
        """Raise if the budget is too short for a run to start and save one checkpoint."""
        needed = max(LEAST, estimate.start_up + self._reserve)
        if self.seconds < needed:
            raise ConfigError(
                f"{self.seconds:.0f} s is too short for a run to start and save one checkpoint; "
                f"give at least {needed:.0f} s",
                field="budget",
            )

    def choose(self, waiting: Sequence[PlannedRun], estimate: Estimate) -> list[PlannedRun]:
        """The runs that may start now: first those that have begun or will fit, then those that can be continued."""
        if self.left <= estimate.start_up:  # it would stop before it has anything to save
            return []

        def last(run: PlannedRun) -> bool:
            seconds = estimate.seconds(run)
            return not epochs_done(run) and seconds is not None and seconds > self.left

        return sorted(waiting, key=last)


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


def epochs_done(run: PlannedRun) -> int:
    """Epochs that a run has written to ``metrics.jsonl``."""
    try:
        return min(Run(run.path).metrics_file.read_bytes().count(b"\n"), run.config.epochs)
    except OSError:
        return 0


def is_here(data: str) -> bool:
    """Whether data can be opened without a download."""
    if data in NAMES:
        return not needs_download(data)
    return Path(os.path.expanduser(data)).exists()


def _count_images(run: PlannedRun) -> int | None:
    config = run.config
    if not is_here(run.data):
        return None
    try:
        opened = open_data(
            run.data, image_size=config.image_size, val_fraction=config.val_fraction,
            train_fraction=config.train_fraction, label_column=config.label_column, on_bad_image=config.on_bad_image,
        )  # fmt: skip
    except DataError:
        return None
    return len(opened.train)


def _speed_so_far(run: PlannedRun) -> float | None:
    """Passes per second of a run that may not be finished."""
    rates = [entry.images_per_second for entry in Run(run.path).metrics()]
    return run.heads * statistics.fmean(rates) if rates else None


def _network(run: PlannedRun) -> tuple[object, ...]:
    """What runs with the same network and images have in common."""
    return run.config.data, run.config.model, run.config.image_size


def _images_key(run: PlannedRun) -> tuple[object, ...]:
    return *_network(run), run.config.train_fraction, run.config.val_fraction


def _mean(values: list[float]) -> float | None:
    return statistics.fmean(values) if values else None
