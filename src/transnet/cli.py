"""The command line: one verb, one function.

Nothing heavy is imported before a verb needs it: ``transnet --help`` answers at once.
"""

import dataclasses
import difflib
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

if TYPE_CHECKING:
    from transnet.train.config import TrainConfig

VERBS = {
    "train": "train a classifier with one head per transform of the images",
    "evaluate": "measure finished runs: pruned, full, every head, ensembles",
    "prune": "turn a run into the plain classifier, or into ONNX, checked",
    "predict": "the classes of image files, by any trained model",
    "serve": "a page to try a model on: drop an image, see what each head sees",
    "invariance": "how far the kernels of runs are from invariant ones, with figures",
    "reproduce": "train what a table or figure of the paper needs, and report",
    "report": "write the page of a study's finished runs",
    "demo": "base against TransNet on scikit-learn's digits, in under two minutes",
}

HELP = """usage: transnet VERB …

Image classifiers that generalise better at no cost at prediction time.

{verbs}

transnet VERB --help explains a verb. First steps:

  transnet demo
  transnet train cifar100 --transforms r0,r1 --out runs/t2
  transnet evaluate runs/t2
  transnet prune runs/t2 --out models/better
  transnet reproduce pruned --data digits --out reproduced
"""


def run(arguments: Sequence[str]) -> int:
    """Carry out a command; the exit status: 0 success, 2 a user's mistake, 1 anything else."""
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(HELP.format(verbs="\n".join(f"  {verb:<10} {what}" for verb, what in VERBS.items())), end="")
        return 0 if arguments else 2
    if arguments[0] == "--version":
        from transnet import __version__

        print(f"transnet {__version__}")
        return 0
    verb, rest = arguments[0], arguments[1:]
    if verb not in VERBS:
        near = difflib.get_close_matches(verb, VERBS, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        print(f"transnet: unknown verb {verb!r}{hint} (known: {' '.join(VERBS)})", file=sys.stderr)
        return 2
    carry_out: Callable[[Sequence[str]], int] = globals()[f"_{verb}"]
    return _guarded(carry_out, rest)


def _guarded(carry_out: Callable[[Sequence[str]], int], arguments: Sequence[str]) -> int:
    """A user's mistake never ends in a traceback."""
    try:
        return carry_out(arguments)
    except (ValueError, FileNotFoundError) as error:
        return _fail(error, 2)
    except KeyboardInterrupt:
        return _fail("interrupted", 1)
    except OSError as error:
        return _fail(error, 1)
    except Exception as error:
        from transnet.ship.export import ExportError
        from transnet.train.checkpoint import CheckpointError
        from transnet.train.interrupt import Stopped
        from transnet.train.loop import TrainingError

        if isinstance(error, (CheckpointError, TrainingError, ExportError, Stopped)):
            return _fail(error, 1)
        raise


def _fail(error: Exception | str, status: int) -> int:
    print(f"transnet: {error}", file=sys.stderr)
    return status


def _train(arguments: Sequence[str]) -> int:
    config = _train_config(arguments)
    from transnet.train.loop import train
    from transnet.train.progress import print_scores

    result = train(config)
    if os.environ.get("RANK", "0") == "0":  # one of torchrun's processes speaks for all
        print(f"test set of {result['test']['full']['n']:,} images; trained in {result['train_seconds']:.1f} s")
        print_scores({"plain": result["test"], "with flip": result["test_flip"]})
    return 0


def _train_config(arguments: Sequence[str]) -> "TrainConfig":
    """The options over their defaults: those of a run's config, or of the recipe for the data set."""
    from transnet.train.config import ConfigError, TrainConfig, configured, from_dict, read_config

    words = _without(arguments, "--config")

    def parsed(default: TrainConfig) -> TrainConfig:
        return tyro.cli(TrainConfig, prog="transnet train", args=words, default=default)

    if path := _value(arguments, "--config"):
        if _value(arguments, "--recipe"):
            raise ConfigError("--recipe: a run's --config has its settings already; leave one of the two out")
        return parsed(from_dict({**read_config(Path(path)), "out": tyro.MISSING, "resume": False}))
    # Which defaults hold depends on two of the options: they are read first.
    first = parsed(configured(tyro.MISSING, tyro.MISSING))
    return parsed(
        dataclasses.replace(configured(first.data, first.out, recipe=first.recipe), data=tyro.MISSING, out=tyro.MISSING)
    )


def _value(arguments: Sequence[str], flag: str) -> str | None:
    for i, word in enumerate(arguments):
        if word.startswith(flag + "="):
            return word.partition("=")[2]
        if word == flag and i + 1 < len(arguments):
            return arguments[i + 1]
    return None


def _without(arguments: Sequence[str], flag: str) -> list[str]:
    kept, skip = [], False
    for word in arguments:
        if skip:
            skip = False
        elif word == flag:
            skip = True
        elif not word.startswith(flag + "="):
            kept.append(word)
    return kept


@dataclasses.dataclass(frozen=True)
class EvaluateOptions:
    """Measure finished runs on their test set: pruned, full, every head, with and without flip.

    Several runs, of any kind, are measured one by one and as an ensemble: the mean of their outputs. Beside accuracy
    and loss stand the calibration error and how far heads, or the members of an ensemble, disagree.

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


def _evaluate(arguments: Sequence[str]) -> int:
    options = tyro.cli(EvaluateOptions, prog="transnet evaluate", args=list(arguments))
    from transnet.train.evaluation import evaluate_runs
    from transnet.train.progress import print_scores

    results = evaluate_runs(options.runs, data=options.data, split=options.split, device=options.device)
    if options.json:
        print(json.dumps(results, indent=1))
        return 0
    for name, result in results.items():
        print(name)
        print_scores({"plain": result["plain"], "with flip": result["flip"]})
    if len(options.runs) > 1 and "ensemble" not in results:
        print("no ensemble: these runs were tested on different images", file=sys.stderr)
    return 0


@dataclasses.dataclass(frozen=True)
class DemoOptions:
    """Train base, T2 and T3 on scikit-learn's digits with few training images, and compare them."""

    out: str | None = None
    """Keep the runs here; finished ones are not trained again."""
    seeds: int = 3
    """Runs of each kind, seeds 0…N−1."""
    train_fraction: float = 0.15
    """Share of the training images."""
    epochs: int = 60
    """Of each run."""
    json: Annotated[str | None, tyro.conf.arg(metavar="FILE")] = None
    """Write the figures, run by run, to this file too."""


def _demo(arguments: Sequence[str]) -> int:
    options = tyro.cli(DemoOptions, prog="transnet demo", args=list(arguments))
    if options.seeds < 1:
        raise ValueError(f"--seeds: {options.seeds} was given; at least 1 is needed")
    from transnet.study.demo import demo, summary

    out = Path(options.out) if options.out else None
    rows = demo(out, seeds=options.seeds, train_fraction=options.train_fraction, epochs=options.epochs)
    if options.json:
        Path(options.json).write_text(json.dumps(summary(rows), indent=1))
    return 0


@dataclasses.dataclass(frozen=True)
class PruneOptions:
    """Prune a finished run to the plain classifier, as a folder with the model and its config.json.

    What was written is loaded again and compared with the run on test images before the command succeeds.

    Example: transnet prune runs/t2 --out models/better
    """

    run: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    """Folder of a finished run."""
    out: Annotated[str, tyro.conf.arg(metavar="DIR")]
    """Folder to make."""
    head: str = "r0"
    """The head to keep. Any but r0 has its transform folded into the weights. best: the one of the lowest validation
    loss, for a run with --val-fraction. all: the full model, its transforms inside."""
    format: Literal["safetensors", "onnx", "pt2"] = "safetensors"
    """safetensors: weights under the model's own names. onnx: for ONNX Runtime. pt2: for torch.export."""


def _prune(arguments: Sequence[str]) -> int:
    options = tyro.cli(PruneOptions, prog="transnet prune", args=list(arguments))
    from transnet.ship.export import export_run

    written = export_run(options.run, options.out, head=options.head, format=options.format)
    about, side = written.about, written.about.image_size
    folded = f", its transform folded in for {side}×{side}" if about.fold else ""
    print(f"{written.file}: {about.model}, head{'s' * (about.kind == 'full')} {' '.join(about.transforms)}{folded}")
    images = f"{written.images} {'test images' if written.real else 'made-up images (the data is not there)'}"
    print(f"compared on {images}: logits within {written.difference:.1e}, {written.same:.1%} of the classes the same")
    return 0


@dataclasses.dataclass(frozen=True)
class PredictOptions:
    """Predict the class of images: its probability, and how many heads agree.

    MODEL is a run, a folder that transnet prune made, an .onnx file, or hf:owner/name. An image that cannot be read is
    reported and passed over; the exit status is then 1.

    Example: transnet predict runs/t2 photos/ --confidence 0.9
    """

    model: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="MODEL")]
    """The trained model."""
    images: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="IMAGE…")]
    """Files, folders, globs; - reads one image from standard input."""
    confidence: float | Literal["auto"] | None = None
    """Anytime prediction: run head by head, and stop at this probability. auto: the lowest that stays within 0.1
    points of all heads on the run's validation split."""
    format: Literal["table", "jsonl", "csv"] | None = None
    """None: a table on a terminal, JSON lines elsewhere."""
    batch_size: int = 64
    """Images at a time."""
    device: str = "auto"
    """cpu, cuda, … auto: a GPU where there is one."""


def _predict(arguments: Sequence[str]) -> int:
    options = tyro.cli(PredictOptions, prog="transnet predict", args=list(arguments))
    from transnet.ship.predict import predict_files

    return predict_files(
        options.model, options.images, format=options.format or ("table" if sys.stdout.isatty() else "jsonl"),
        out=sys.stdout, confidence=options.confidence, batch_size=options.batch_size, device=options.device,
    )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class ServeOptions:
    """Open a page to try a model on: drop an image, see what each head sees, says and decides.

    The page answers this machine only, loads nothing from elsewhere, and keeps no image.

    Example: transnet serve runs/t2
    """

    model: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    """A run, or any model that transnet predict takes."""
    confidence: float = 0.9
    """Where the anytime rule's threshold stands at first."""
    host: str = "127.0.0.1"
    """Address to listen on; any but a loopback one lets others in, who need no password."""
    port: int = 8000
    """0: any free one."""
    browser: bool = True
    """Open the page in a browser."""
    device: str = "auto"
    """cpu, cuda, … auto: a GPU where there is one."""


def _serve(arguments: Sequence[str]) -> int:
    options = tyro.cli(ServeOptions, prog="transnet serve", args=list(arguments))
    from transnet.ship.serve import serve

    serve(
        options.model, host=options.host, port=options.port, confidence=options.confidence, device=options.device,
        browser=options.browser,
    )  # fmt: skip
    return 0


@dataclasses.dataclass(frozen=True)
class InvarianceOptions:
    """How far the kernels of finished runs are from invariant ones: a table, and the paper's Figs. 5 and 6.

    Higher is less invariant for l2 and relative, more invariant for cosine and pearson. 1×1 kernels are left out.

    Example: transnet invariance runs/base runs/t2 runs/t3 --out figures
    """

    runs: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="RUN…")]
    """Folders of finished runs."""
    group: str = "r0,r1,r2,r3"
    """The transforms, completed to the group they generate; one group for all runs."""
    measure: Literal["l2", "relative", "cosine", "pearson"] = "l2"
    """l2 is the paper's score."""
    out: Annotated[str | None, tyro.conf.arg(metavar="DIR")] = None
    """Draw the figures here, as SVG, PDF and PNG, and keep their data as JSON."""
    json: bool = False
    """Print JSON instead of a table."""


def _invariance(arguments: Sequence[str]) -> int:
    options = tyro.cli(InvarianceOptions, prog="transnet invariance", args=list(arguments))
    if not options.runs:
        raise ValueError("invariance: no run given; give the folder of a finished run")
    from transnet.study.kernels import compare, draw, print_comparison

    comparison = compare(list(options.runs), group=options.group, measure=options.measure)
    if options.json:
        print(json.dumps(comparison, indent=1))
    else:
        print_comparison(comparison)
    if options.out:
        files = draw(comparison, Path(options.out))
        (Path(options.out) / "invariance.json").write_text(json.dumps(comparison, indent=1))
        print("drawn: " + ", ".join(str(file) for file in files if file.suffix == ".png"), file=sys.stderr)
    return 0


def _reproduce(arguments: Sequence[str]) -> int:
    from transnet.study.plan import Study

    study = tyro.cli(Study, prog="transnet reproduce", args=list(arguments))
    from transnet.study.reproduce import reproduce

    outcome, page = reproduce(study)
    for name, error in outcome.failed.items():
        print(f"transnet: {name} failed: {error}", file=sys.stderr)
    if outcome.stopped:
        return _fail("stopped; everything is saved. The same command goes on from here", 1)
    if page:
        print(page)
    return 1 if outcome.failed else 0


@dataclasses.dataclass(frozen=True)
class ReportOptions:
    """Write DIR/report.html, one page of tables, figures and runs, from a study's finished runs.

    Tables and figures also go to files of their own: DIR/tables (Markdown, CSV) and DIR/figures (SVG, PDF, PNG).

    Example: transnet report reproduced
    """

    study: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="DIR")]
    """Folder of a study, as `transnet reproduce --out` made it."""
    data: str | None = None
    """Where the data lies, if networks are still to be measured and its name does not find it."""
    device: str = "auto"
    """Where networks are measured, where that was not done before."""


def _report(arguments: Sequence[str]) -> int:
    options = tyro.cli(ReportOptions, prog="transnet report", args=list(arguments))
    from transnet.study.report import write_report

    print(write_report(options.study, data=options.data, device=options.device))
    return 0
