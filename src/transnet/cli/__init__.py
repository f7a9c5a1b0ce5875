"""The command line: one verb, one file of that name, with its options and what it does.

Nothing heavy is imported before a verb needs it: ``transnet --help`` answers at once.
"""

import difflib
import select
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TextIO

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

# What other programs call what these verbs do.
ELSEWHERE = {
    "export": "prune --format onnx",
    "convert": "prune --format onnx",
    "fit": "train",
    "test": "evaluate",
    "eval": "evaluate",
    "validate": "evaluate",
    "infer": "predict",
    "classify": "predict",
}

HELP = """usage: transnet VERB …

Image classifiers that generalise better at no cost at prediction time.

{verbs}

transnet VERB --help explains a verb. First steps:

  transnet demo
  transnet train photos --transforms r0,r1 --out runs/t2   (a folder of class folders)
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
        if verb in ELSEWHERE:
            hint = f"; here that is transnet {ELSEWHERE[verb]}"
        print(f"transnet: unknown verb {verb!r}{hint} (known: {' '.join(VERBS)})", file=sys.stderr)
        return 2
    return _guarded(verb, rest)


def _guarded(verb: str, arguments: Sequence[str]) -> int:
    """A user's mistake never ends in a traceback."""
    try:
        status: int = import_module(f"transnet.cli.{verb}").run(arguments)
        return status
    except (ValueError, FileNotFoundError) as error:
        return _fail(error, 2)
    except KeyboardInterrupt:
        return _fail("interrupted", 1)
    except OSError as error:
        if isinstance(error, BrokenPipeError) and _unread(sys.stdout):
            raise
        return _fail(error, 1)
    except Exception as error:
        from transnet.runs.checkpoint import CheckpointError
        from transnet.ship.export import ExportError
        from transnet.train.device import is_for_want_of_memory
        from transnet.train.interrupt import Stopped
        from transnet.train.state import TrainingError

        if isinstance(error, (CheckpointError, TrainingError, ExportError, Stopped)):
            return _fail(error, 1)
        if is_for_want_of_memory(error):
            return _fail("out of memory; where there is a --batch-size, a smaller one needs less", 1)
        raise


def _unread(out: TextIO) -> bool:
    """Whether it is a pipe that nobody reads any more."""
    try:
        poll = select.poll()
        poll.register(out.fileno(), select.POLLOUT)
    except (AttributeError, OSError):  # a system without it, or no file
        return False
    return any(event & select.POLLERR for _, event in poll.poll(0))


def _fail(error: Exception | str, status: int) -> int:
    print(f"transnet: {error}", file=sys.stderr)
    return status
