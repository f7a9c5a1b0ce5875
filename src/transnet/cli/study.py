"""``transnet study``."""

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from transnet.arguments import Positional, argument
from transnet.cli.options import parse
from transnet.console import duration, say

if TYPE_CHECKING:
    from transnet.study.execute import Outcome, Settings
    from transnet.study.file import Study


@dataclasses.dataclass(frozen=True)
class Options:
    """Train the variants of a study file with every seed, and write the report: DIR/report.html.

    A study file is TOML: data, seeds, options for all variants under [train], options of each under [variants.NAME],
    and what to compare under [[compare]]. Calling the command again continues where it stopped.

    Example: transnet study widths.toml photos --seeds 3 --out results/widths
    """

    study: Annotated[Positional[str], argument(metavar="FILE-or-NAME")]
    """A .toml file, or the name of a study that comes with the package, such as pruned or ablation."""
    data: Annotated[Positional[str | None], argument(metavar="DATA")] = None
    """The data, as for `transnet train`. None: what the file names."""
    out: Annotated[str, argument(metavar="DIR")] = "study"
    """Folder of the study: runs/, logs/, figures/, report.html. Several studies may share it."""
    dry_run: bool = False
    """List the runs with their training passes and estimated minutes, and train nothing."""
    budget: Annotated[str | None, argument(metavar="25m")] = None
    """Time limit, such as 25m or 1h30m, for a machine that is available only for a while. Runs are stopped in time
    and saved, and the time that is left to do is printed."""
    seeds: int | None = None
    """Train every variant with the seeds 0…N−1. None: the file's seeds."""
    on: Literal["here", "ray"] = "here"
    """here: processes of this machine. ray: a Ray cluster, with DIR on storage that all nodes share."""


def main(arguments: Sequence[str]) -> int:
    """Carry out a study, or all studies of a queue."""
    options = parse(Options, "study", arguments)
    from transnet.errors import ConfigError
    from transnet.study.estimate import Budget, read_duration
    from transnet.study.execute import Settings
    from transnet.study.file import read_study

    study = read_study(options.study)
    if study.queue and (options.data or options.seeds):
        given = "data" if options.data else "seeds"
        raise ConfigError("a queue's files have their own; leave it out", field=given)
    entries = study.queue or ()
    studies = [(one.study, str(Path(options.out) / one.out)) for one in entries] or [(study, options.out)]
    studies = [(one.changed(data=options.data, seeds=options.seeds), out) for one, out in studies]
    budget = Budget(read_duration(options.budget)) if options.budget is not None else None
    if options.dry_run:
        for one, out in studies:
            list_runs(one, Settings(out, options.on))
        return 0
    return carry_out([(one, Settings(out, options.on, budget=budget)) for one, out in studies])


def carry_out(studies: "Sequence[tuple[Study, Settings]]") -> int:
    """Carry out studies one after the other, write their reports, and return the exit status."""
    from transnet.study.execute import estimate, prepare, run_study

    if len(studies) > 1:  # so that a mistake in the last one is found before the first one trains
        for study, settings in studies:
            prepare(study, settings)
    status = 0
    for i, (study, settings) in enumerate(studies):
        outcome = run_study(study, settings)
        for name, error in outcome.failed.items():
            say(f"transnet: {name} failed: {error}")
        status = max(status, 1 if outcome.failed else 0)
        if outcome.stopped:
            later = [estimate(one, runs := prepare(one, own)).left(runs, 1) for one, own in studies[i + 1 :]]
            _say_stopped(outcome, [outcome.seconds_left, *later])
            return status if outcome.out_of_time else 1
        _report(study, settings)
    return status


def _say_stopped(outcome: "Outcome", seconds: list[float | None]) -> None:
    known = [one for one in seconds if one is not None]
    left = f"about {duration(sum(known))}" if len(known) == len(seconds) else "an unknown time"
    why = "the time is used up" if outcome.out_of_time else "stopped"
    say(f"transnet: {why}; everything is saved, and {left} of training is left. The same command continues from here")


def _report(study: "Study", settings: "Settings") -> None:
    from transnet.errors import FileError
    from transnet.report.page import write_report
    from transnet.study.plan import folder_lock
    from transnet.study.results import comparisons, read_runs

    try:
        series = [one for one in read_runs(settings.out) if one.name == study.series]
    except FileError:  # every run failed
        return
    for title, gap in (pair for one in series for pair in comparisons(one)):
        say(f"{title}: {gap}")
    with folder_lock(settings.out):
        page = write_report(settings.out)
    print(page)


def list_runs(study: "Study", settings: "Settings") -> None:
    """Print the runs of a study with their training passes and estimated minutes."""
    from rich.console import Console
    from rich.table import Table

    from transnet.study.estimate import epochs_done
    from transnet.study.execute import estimate, prepare

    runs = prepare(study, settings)
    speed = estimate(study, runs)
    table = Table(title=f"{study.series} in {settings.out}", title_justify="left")
    for column in ("run", "epochs", "training passes", "minutes left"):
        table.add_column(column, justify="left" if column == "run" else "right")
    for run in runs:
        passes, seconds, done = speed.passes(run), speed.seconds(run), epochs_done(run)
        table.add_row(
            run.name,
            f"{done} of {run.config.epochs}" if done else str(run.config.epochs),
            f"{passes:,}" if passes is not None else f"{run.config.epochs * run.heads} per image",
            "done" if run.done else f"{seconds / 60:.1f}" if seconds is not None else "unknown",
        )
    Console(width=None if sys.stdout.isatty() else 160).print(table)
    known = [(passes, seconds) for run in runs for passes, seconds in [(speed.passes(run), speed.seconds(run))]]
    passes = sum(p for p, _ in known if p is not None) if all(p is not None for p, _ in known) else None
    minutes = sum(s for _, s in known if s is not None) / 60 if all(s is not None for _, s in known) else None
    print(
        f"{len(runs)} runs, {'unknown' if passes is None else f'{passes:,}'} training passes, "
        f"{'unknown' if minutes is None else f'{minutes:.1f}'} minutes left, one run at a time"
    )
