"""``transnet evaluate``."""

import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from transnet.arguments import Positional, argument
from transnet.cli.options import make_folder, output_folder, parse
from transnet.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class Options:
    """Measure finished runs on their test set: pruned, full, every head, with and without flip TTA.

    Several runs, of any kind, are measured one by one and as an ensemble: the mean of their outputs. Each is given
    with its accuracy, balanced accuracy, loss and calibration error, the disagreement of the heads or of the ensemble's
    members, the class counts and the recall of each class.

    Example: transnet evaluate runs/t2 --json
    """

    runs: Annotated[Positional[tuple[str, ...]], argument(metavar="RUN…")]
    """Folders of finished runs."""
    data: str | None = None
    """Measure on this data set's test split instead of the run's own; it must have the same classes."""
    split: Literal["test", "val"] = "test"
    """Which split; val requires a run with --val-fraction."""
    anytime: bool = False
    """Also measure accuracy and passes of early exit (`transnet predict --confidence`), without flip TTA."""
    out: Annotated[str | None, argument(metavar="DIR")] = None
    """For --anytime: draw accuracy against passes in this folder, as anytime-RUN.svg."""
    save_predictions: bool = False
    """Write each run's class scores on its test images to RUN/predictions.npz, for ensembles without the weights."""
    device: str = "auto"
    """cpu, cuda, … auto: a GPU if there is one."""
    json: bool = False
    """Print JSON instead of a table."""


def main(arguments: Sequence[str]) -> int:
    """Print the scores of runs."""
    options = parse(Options, "evaluate", arguments)
    out = output_folder(options.out)
    if out and not options.anytime:
        raise ConfigError(f"{out} was given, but only `anytime` draws; add that, or leave it out", field="out")
    if options.save_predictions and (options.data or options.split != "test"):
        message = "only the scores on a run's own test images are saved; leave `data` and `split` out"
        raise ConfigError(message, field="save_predictions")
    from transnet.train.class_report import imbalance_notes, print_classes, print_notes, zero_recall_notes
    from transnet.train.evaluate_runs import evaluate_runs, save_predictions
    from transnet.train.progress import print_anytime, print_scores

    results = evaluate_runs(
        options.runs, data=options.data, split=options.split, device=options.device, anytime=options.anytime
    )
    files = _draw(results, options.runs, make_folder(out)) if out else []
    if files:
        print("drawn: " + ", ".join(str(file) for file in files), file=sys.stderr)
    for path in options.runs if options.save_predictions else ():
        print(f"saved: {save_predictions(path, device=options.device)}", file=sys.stderr)
    split = {"test": "test", "val": "validation"}[options.split]
    if options.json:
        print(json.dumps(results, indent=1))
        for name, result in results.items():
            classes = result["classes"]
            notes = [*imbalance_notes(classes), *zero_recall_notes(result["plain"], classes, split)]
            print_notes((f"{name}: {note}" for note in notes), stderr=True)
        return 0
    explained = False
    for name, result in results.items():
        print(name)
        print_scores(result["plain"], result["flip"], explained=explained)
        print_classes(result["plain"], result["classes"], split)
        explained = explained or "disagreement" in result["plain"]["full"]
        if "anytime" in result:
            print_anytime(result["anytime"])
    if len(options.runs) > 1 and "ensemble" not in results:
        print("no ensemble: these runs were tested on different images", file=sys.stderr)
    return 0


def _draw(results: dict[str, Any], runs: Sequence[str], out: Path) -> list[Path]:
    import torch

    from transnet.early_exit import Curve
    from transnet.report.early_exit import draw

    files = []
    names = [Path(path).resolve().name for path in runs]
    if len(set(names)) < len(names):  # such as runs of two studies
        names = [f"{i}-{name}" for i, name in enumerate(names, 1)]
    for path, name in zip(runs, names, strict=True):
        found = results[path]["anytime"]
        columns = {key: torch.tensor(column) for key, column in found["curve"].items()}
        title = f"{name}, {'validation' if found['judged_by'] == 'val' else 'test'} split"
        files.append(
            draw(Curve(**columns, full=found["full"], heads=found["heads"]), out / f"anytime-{name}", title=title)
        )
    return files
