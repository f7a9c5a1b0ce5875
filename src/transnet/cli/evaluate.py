"""``transnet evaluate``."""

import dataclasses
import json
import sys
from collections.abc import Sequence
from typing import Annotated, Literal

import tyro


@dataclasses.dataclass(frozen=True)
class Options:
    """Measure finished runs on their test set: pruned, full, every head, with and without the mirror image.

    Several runs, of any kind, are measured one by one and as an ensemble: the mean of their outputs. Beside accuracy
    and loss stand the calibration error and how far heads, or the members of an ensemble, disagree, and of a run the
    classes that its pruned classifier knows least.

    Example: transnet evaluate runs/t2 --json
    """

    runs: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="RUN…")]
    """Folders of finished runs."""
    data: str | None = None
    """Measure on this data set's test split instead of the run's own; it must have the same classes."""
    split: Literal["test", "val"] = "test"
    """Which split; val where the run was trained with --val-fraction."""
    device: str = "auto"
    """cpu, cuda, … auto: a GPU where there is one."""
    json: bool = False
    """Print JSON instead of a table."""


def run(arguments: Sequence[str]) -> int:
    """Print the scores of runs."""
    options = tyro.cli(Options, prog="transnet evaluate", args=list(arguments))
    from transnet.train.evaluation import evaluate_runs
    from transnet.train.progress import print_scores

    results = evaluate_runs(options.runs, data=options.data, split=options.split, device=options.device)
    if options.json:
        print(json.dumps(results, indent=1))
        return 0
    explained = False
    for name, result in results.items():
        print(name)
        print_scores(result["plain"], result["flip"], result.get("classes"), explained=explained)
        explained = explained or "disagreement" in result["plain"]["full"]
    if len(options.runs) > 1 and "ensemble" not in results:
        print("no ensemble: these runs were tested on different images", file=sys.stderr)
    return 0
