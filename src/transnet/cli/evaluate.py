"""``transnet evaluate``."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from transnet.arguments import Positional, argument
from transnet.cli.options import make_folder, output_folder, parse
from transnet.console import say
from transnet.errors import ConfigError

if TYPE_CHECKING:
    from transnet.train.evaluate_runs import Evaluation


@dataclasses.dataclass(frozen=True)
class Options:
    """Evaluate finished runs on their test set: pruned, full and every head, with and without flip TTA.

    Several runs, of any kind, are evaluated one by one and as an ensemble, the mean of their outputs. For each, this
    prints accuracy, balanced accuracy, loss and calibration error, the disagreement of the heads or of the ensemble's
    members, the class counts and the recall of each class.

    Example: transnet evaluate runs/t2 --json
    """

    runs: Annotated[Positional[tuple[str, ...]], argument(metavar="RUN…")]
    """Folders of finished runs."""
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
    device: str = "auto"
    """cpu, cuda, … auto: a GPU if there is one."""
    json: bool = False
    """Print JSON instead of tables."""


def main(arguments: Sequence[str]) -> int:
    """Print the scores of runs."""
    options = parse(Options, "evaluate", arguments)
    out = output_folder(options.out)
    if out and not options.anytime:
        raise ConfigError(f"{out} was given, but only `anytime` draws a curve; add that, or leave it out", field="out")
    from transnet.cli.class_report import notes, print_classes, print_notes
    from transnet.cli.scores import print_early_exit, print_scores
    from transnet.train.evaluate_runs import evaluate_runs

    results = evaluate_runs(
        options.runs, data=options.data, split=options.split, device=options.device, early_exit=options.anytime,
        save_predictions=options.save_predictions,
    )  # fmt: skip
    if out:
        files = _draw(results, options.runs, make_folder(out))
        say("drawn: " + ", ".join(map(str, files)))
    split = {"test": "test", "val": "validation"}[options.split]
    if options.json:
        print(json.dumps({name: as_json(result) for name, result in results.items()}, indent=1))
        for name, result in results.items():
            found = notes(result.plain, result.classes, split)
            print_notes((f"{name}: {note}" for note in found), stderr=True)
        return 0
    explained = False
    for name, result in results.items():
        print(name)
        print_scores(result.plain, result.flip, explained=explained)
        print_classes(result.plain, result.classes, split)
        full = result.plain.full.uncertainty
        explained = explained or (full is not None and full.disagreement is not None)
        if result.early_exit:
            print_early_exit(result.early_exit)
    if len(options.runs) > 1 and "ensemble" not in results:
        say("no ensemble: these runs have different test images")
    return 0


def as_json(found: "Evaluation") -> dict[str, Any]:
    """An evaluation as JSON content."""
    from transnet.runs.records import encode

    content: dict[str, Any] = {"plain": None, "flip": None}
    for view, scores in (("plain", found.plain), ("flip", found.flip)):
        if scores:
            encoded = encode(scores)
            content[view] = {
                "pruned": _flat(encoded["pruned"]), "full": _flat(encoded["full"]),
                "heads": [_flat(head) for head in encoded["heads"]],
            }  # fmt: skip
    content["classes"] = [_class(encode(entry)) for entry in found.classes]
    if early_exit := found.early_exit:
        content["anytime"] = {
            "judged_by": early_exit.judged_by, "chosen_on": early_exit.chosen_on, "heads": early_exit.curve.heads,
            "full": early_exit.curve.full, "points": early_exit.points.columns(), "curve": early_exit.curve.columns(),
        }  # fmt: skip
    return content


def _flat(score: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """A score with the entries of its uncertainty; those of a single member have no disagreement."""
    if score is None:
        return None
    found = score.get("uncertainty", {})
    single = found.get("disagreement") is None
    return {key: value for key, value in score.items() if key != "uncertainty"} | {
        key: value for key, value in found.items() if key == "calibration_error" or not single
    }


def _class(entry: Mapping[str, Any]) -> dict[str, Any]:
    content = {"class": entry["name"], "accuracy": entry["recall"], **entry}
    del content["name"]
    if content["n_train"] is None:
        del content["n_train"]
    return content


def _draw(results: "Mapping[str, Evaluation]", runs: Sequence[str], out: Path) -> list[Path]:
    from transnet.report.curves import draw_early_exit

    files = []
    names = [Path(path).resolve().name for path in runs]
    if len(set(names)) < len(names):  # for example runs of two studies
        names = [f"{i}-{name}" for i, name in enumerate(names, 1)]
    for path, name in zip(runs, names, strict=True):
        if found := results[path].early_exit:
            title = f"{name}, {'validation' if found.judged_by == 'val' else 'test'} split"
            files.append(draw_early_exit(found.curve, out / f"anytime-{name}", title=title))
    return files
