"""``transnet study``."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from transnet.arguments import Positional, argument
from transnet.cli.options import parse
from transnet.console import duration, print_table, say

if TYPE_CHECKING:
    from transnet.study.estimate import Budget
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
    """Time limit, such as 25m or 1h30m. Runs are stopped in time and saved, and the time left to train is printed."""
    seeds: int | None = None
    """Train every variant with the seeds 0…N−1. None: the file's seeds."""
    on: Literal["here", "ray"] = "here"
    """here: processes of this machine. ray: a Ray cluster, with DIR on storage that all nodes share."""


def main(arguments: Sequence[str]) -> int:
    """Carry out a study, or all studies of a queue."""
    options = parse(Options, "study", arguments)
    from transnet.errors import ConfigError
    from transnet.study.estimate import Budget, read_duration
    from transnet.study.file import read_study

    study = read_study(options.study)
    for name, given in (("data", options.data), ("seeds", options.seeds)):
        if study.queue and given is not None:
            raise ConfigError("a queue's files have their own; leave it out", field=name)
    studies = [(one, str(Path(options.out) / out)) for one, out in study.queue or ((study, ""),)]
    studies = [(one.changed(data=options.data, seeds=options.seeds), out) for one, out in studies]
    budget = Budget(read_duration(options.budget)) if options.budget is not None else None
    if options.dry_run:
        _list_runs(studies, options.on)
        return 0
    return carry_out(studies, on=options.on, budget=budget)


def carry_out(
    studies: "Sequence[tuple[Study, str]]", *, on: Literal["here", "ray"], jobs: int | None = None,
    budget: "Budget | None" = None,
) -> int:  # fmt: skip
    """Carry out studies in their folders one after the other, write their reports, and return the exit status."""
    from transnet.study.estimate import Estimate
    from transnet.study.execute import plan_and_check, run_study
    from transnet.study.plan import plan_runs

    if len(studies) > 1:  # so that a mistake in the last one is found before the first one trains
        for study, out in studies:
            plan_and_check(study, out, on)
    status = 0
    for i, (study, out) in enumerate(studies):
        outcome = run_study(study, out, on=on, jobs=jobs, budget=budget)
        for name, error in outcome.failed.items():
            say(f"transnet: {name} failed: {error}")
            status = 1
        if outcome.stopped:
            runs = list({run.path: run for one, folder in studies[i:] for run in plan_runs(one, folder)}.values())
            estimate = Estimate(runs)
            known = [run for run in runs if estimate.seconds(run) is not None]
            left = f"about {duration(estimate.left(known, outcome.at_once) or 0.0)}" if known else "an unknown time"
            left += f" and {len(runs) - len(known)} runs of unknown length" if 0 < len(known) < len(runs) else ""
            why = "the time is used up" if outcome.out_of_time else "stopped"
            say(f"transnet: {why}, {left} of training left; everything is saved. The same command continues from here")
            return status if outcome.out_of_time else 1
        _report(study, out)
    return status


def _report(study: "Study", out: str) -> None:
    from transnet.errors import FileError
    from transnet.report.page import write_report
    from transnet.study.plan import folder_lock
    from transnet.study.results import comparisons, read_runs

    try:
        series = [one for one in read_runs(out) if one.name == study.series]
    except FileError:  # every run failed
        return
    for one in series:
        for title, gap in comparisons(one):
            say(f"{title}: {gap}")
    with folder_lock(out):
        print(write_report(out))


def _list_runs(studies: "Sequence[tuple[Study, str]]", on: Literal["here", "ray"]) -> None:
    from transnet.study.estimate import Estimate
    from transnet.study.execute import plan_and_check
    from transnet.study.plan import decided

    planned = [plan_and_check(study, out, on) for study, out in studies]
    every = list({run.path: run for runs in planned for run in runs}.values())  # studies may share runs
    estimate = Estimate(every)
    passes = {run.path: None if (n := estimate.images(run)) is None else n * run.passes_per_image for run in every}
    for (study, out), runs in zip(studies, planned, strict=True):
        rows = []
        for run in (run for run in runs if len(studies) == 1 or not run.done):
            epochs = f"{run.epochs_done} of {run.config.epochs}" if run.epochs_done else str(run.config.epochs)
            count = passes[run.path]
            shown = f"{run.passes_per_image} per image" if count is None else f"{count:,}"
            rows.append((run.name, epochs, shown, "done" if run.done else _minutes(estimate.seconds(run))))
        title = f"{study.file.removesuffix('.toml')}: {study.series} in {out}"
        if rows:
            print_table(("run", "epochs", "training passes", "minutes left"), rows, title)
        else:
            print(f"{title}: all {len(runs)} runs are done")
        for name in sorted(study.variants.keys() - decided(study, out).variants.keys()):
            print(f"{study.series}-{name} waits for the study that decides its options")
    counts = list(passes.values())
    total = "unknown" if None in counts else f"{sum(count or 0 for count in counts):,}"
    known = [seconds for run in every if (seconds := estimate.seconds(run)) is not None]
    minutes = _minutes(sum(known) if known else None)
    more = f" and {len(every) - len(known)} runs of unknown length" if 0 < len(known) < len(every) else ""
    finished = sum(run.done for run in every)
    print(f"{len(every)} runs, {finished} done, {total} training passes")
    print(f"{minutes} minutes left{more}, one run at a time")


def _minutes(seconds: float | None) -> str:
    return "unknown" if seconds is None else f"{seconds / 60:.1f}"
