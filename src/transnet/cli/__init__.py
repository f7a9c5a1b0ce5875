"""The command line: each command has a file of its name, with its options and a function `main`.

Heavy modules are imported only when a command needs them, so that ``transnet --help`` answers at once.
"""

import difflib
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module

from transnet import console
from transnet.errors import OperationError, TransnetError

COMMANDS = {
    "train": "train a classifier with one head per transform of the images",
    "evaluate": "score finished runs: pruned, full, every head, ensembles",
    "prune": "export a run as a plain classifier, as weights or ONNX, and check the result",
    "predict": "predict the classes of image files with any trained model",
    "serve": "open a page to try a model: drop an image and see each head's prediction",
    "invariance": "measure how invariant the kernels of runs are, with figures",
    "reproduce": "train what a table or figure of the paper needs, and report it",
    "study": "train the variants of a study file with several seeds, and report them",
    "report": "write the page of a study's finished runs",
    "demo": "compare TransNet with the baseline on scikit-learn's digits, in under two minutes",
}

# What other programs call these commands.
SYNONYMS = {
    "export": "prune --format onnx", "convert": "prune --format onnx", "fit": "train", "test": "evaluate",
    "eval": "evaluate", "validate": "evaluate", "infer": "predict", "classify": "predict",
}  # fmt: skip

HELP = """usage: transnet COMMAND …

Train image classifiers with one head per transform of the images, and prune them back to the plain network.

{commands}

transnet COMMAND --help explains a command. With --traceback, an error also shows where in the code it happened.
transnet --version prints what a bug report needs. First steps:

  transnet demo
  transnet train photos --transforms r0,r1 --out runs/t2   (a folder of class folders)
  transnet evaluate runs/t2
  transnet prune runs/t2 --out models/better
  transnet reproduce pruned --data digits --out reproduced
"""


def main(arguments: Sequence[str]) -> int:
    """Run a command and return the exit status: 0 for success, 2 for a user's mistake, 1 for anything else."""
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(HELP.format(commands="\n".join(f"  {name:<10} {what}" for name, what in COMMANDS.items())), end="")
        return 0 if arguments else 2
    if arguments[0] == "--version":
        from transnet.cli.version import report

        print(report())
        return 0
    command, *rest = arguments
    if command not in COMMANDS:
        hint = f"; use transnet {SYNONYMS[command]}" if command in SYNONYMS else ""
        for near in difflib.get_close_matches(command, COMMANDS, n=1):
            hint = hint or f"; did you mean {near}?"
        print(f"transnet: unknown command {command!r}{hint} (known: {' '.join(COMMANDS)})", file=sys.stderr)
        return 2
    before = console.rewrite
    try:
        status: int = import_module(f"transnet.cli.{command}").main([word for word in rest if word != "--traceback"])
        return status
    except (Exception, KeyboardInterrupt) as error:
        if isinstance(error, BrokenPipeError):
            print(flush=True)  # raises again if it is the reader of the output that has ended
        if "--traceback" in rest:
            traceback.print_exc()
        message, status = explain(error)
        print(f"transnet: {message}", file=sys.stderr)
        return status
    finally:
        console.rewrite = before


def explain(error: BaseException) -> tuple[str, int]:
    """Return the line to print for an error, with settings named as options, and the exit status."""
    if isinstance(error, TransnetError):
        field = console.rewrite(f"`{error.field}`").strip("`") + ": " if error.field else ""
        return field + console.rewrite(error.message), 2
    if isinstance(error, OperationError):
        return console.rewrite(str(error)), 1
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", 1
    if "torch" in sys.modules:
        from transnet.train.device import is_out_of_memory

        if is_out_of_memory(error):
            return console.rewrite("out of memory; a smaller `batch_size` or smaller images need less"), 1
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}" if error.filename else str(error), 1
    message = " ".join(str(error).split())
    return f"{type(error).__name__}: {message:.500} (add --traceback to see where it happened)", 1
