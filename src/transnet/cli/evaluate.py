"""``transnet evaluate``."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from transnet.arguments import argument
from transnet.cli.options import Device, OwnTransforms, Runs, make_folder, parse
from transnet.console import say
from transnet.errors import ConfigError
from transnet.runs.records import Score, Scores, encode

if TYPE_CHECKING:
    from transnet.train.evaluate import ClassScore
    from transnet.train.evaluate_runs import Evaluation


@dataclasses.dataclass(frozen=True)
class Options:
    """Evaluate finished runs on their test set: pruned, full and every head, with and without flip TTA.

    Several runs, of any kind, are evaluated one by one and as an ensemble, the mean of their outputs. For each, this
    prints accuracy, balanced accuracy, loss and calibration error, the disagreement of the heads or of the ensemble's
    members, the class counts and the recall of each class.

    Example: transnet evaluate runs/t2 --json
    """

    runs: Runs
    data: str | None = None
    """Evaluate on this dataset's test split instead of the run's own. It must have the same classes."""
    split: Literal["test", "val"] = "test"
    """The split to evaluate on. val needs a run that was trained with --val-fraction."""
    anytime: bool = False
    """Also measure accuracy and passes of early exit (`transnet predict --confidence`), without flip TTA."""
    out: Annotated[str | None, argument(metavar="DIR")] = None
    """With --anytime: the folder for the curve of accuracy against passes, as anytime-RUN.svg."""
    save_predictions: bool = False
    """Write the class scores of all test images to predictions.npz in each run's folder. Ensembles, calibration and
    early exit can be computed from it without the weights."""
    transform: OwnTransforms = ()
    device: Device = "auto"
    json: bool = False
    """Print JSON instead of tables."""


def main(arguments: Sequence[str]) -> int:
    """Print the scores of runs."""
    options = parse(Options, "evaluate", arguments)
    if options.out and not options.anytime:
        raise ConfigError("only `anytime` draws a curve; add that, or leave it out", field="out")
    out = make_folder(options.out)
    from transnet.cli.scores import notes, print_classes, print_early_exit, print_scores
    from transnet.train.evaluate_runs import evaluate_runs

    results = evaluate_runs(
        options.runs, data=options.data, split=options.split, device=options.device, early_exit=options.anytime,
        save_predictions=options.save_predictions, transform=options.transform,
    )  # fmt: skip
    if out:
        _draw(results, options.runs, out)
    split = {"test": "test", "val": "validation"}[options.split]
    if options.json:
        print(json.dumps({name: as_json(result) for name, result in results.items()}, indent=1))
        for name, result in results.items():
            for note in notes(result.plain, result.classes, split):
                say(f"{name}: {note}")
        return 0
    for name, result in results.items():
        print(name)
        print_scores(result.plain, result.flip)
        print_classes(result.plain, result.classes, split)
        if result.early_exit:
            print_early_exit(result.early_exit)
    if len(options.runs) > 1 and "ensemble" not in results:
        say("no ensemble: these runs have different test images")
    return 0


def as_json(found: "Evaluation") -> dict[str, object]:
    """An evaluation as JSON content."""
    views = {"plain": _scores(found.plain), "flip": _scores(found.flip) if found.flip else None}
    content: dict[str, object] = {**views, "classes": [_class(entry) for entry in found.classes]}
    if early_exit := found.early_exit:
        content["anytime"] = {
            "judged_by": early_exit.judged_by, "chosen_on": early_exit.chosen_on, "heads": early_exit.curve.heads,
            "full": early_exit.curve.full, "points": early_exit.points.columns(), "curve": early_exit.curve.columns(),
        }  # fmt: skip
    return content


def _scores(scores: Scores) -> dict[str, object]:
    pruned = _score(scores.pruned) if scores.pruned else None
    return {"pruned": pruned, "full": _score(scores.full), "heads": [_score(head) for head in scores.heads]}


def _score(score: Score) -> dict[str, object]:
    """A score with the entries of its uncertainty; those of a single member have no disagreement."""
    uncertainty = encode(score.uncertainty) if score.uncertainty else {}
    if uncertainty.get("disagreement") is None:
        uncertainty = {key: value for key, value in uncertainty.items() if key == "calibration_error"}
    return encode(dataclasses.replace(score, uncertainty=None)) | uncertainty


def _class(entry: "ClassScore") -> dict[str, object]:
    left_out = ("name",) if entry.n_train is not None else ("name", "n_train")
    content = {key: value for key, value in encode(entry).items() if key not in left_out}
    return {"class": entry.name, "accuracy": entry.recall, **content}


def _draw(results: "Mapping[str, Evaluation]", runs: Sequence[str], out: Path) -> None:
    """Draw the curve of early exit of each run, numbered if runs (of two studies, for example) have the same name."""
    from transnet.report.curves import draw_early_exit

    names = [Path(path).resolve().name for path in runs]
    if len(set(names)) < len(names):
        names = [f"{i}-{name}" for i, name in enumerate(names, 1)]
    files = []
    for path, name in zip(runs, names, strict=True):
        if found := results[path].early_exit:
            title = f"{name}, {'validation' if found.judged_by == 'val' else 'test'} split"
            files.append(draw_early_exit(found.curve, out / f"anytime-{name}", title=title))
    say(f"drawn: {', '.join(map(str, files))}")
