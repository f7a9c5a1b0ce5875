"""``python -m transnet``."""

import io
import os
import sys

from transnet import cli
from transnet.allocator import reuse_memory


def main() -> None:
    """The script ``transnet``."""
    # Set before torch is imported. Threads that spin for long while they wait take time from other programs on the same
    # cores, and threads that never spin wake up late.
    if os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE") == "PASSIVE":
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    if sys.argv[1:2] in (["train"], ["study"], ["reproduce"], ["demo"]):
        reuse_memory()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="replace")  # do not fail on a terminal that cannot show × or …
    try:
        try:
            status = cli.main(sys.argv[1:])
        finally:
            sys.stdout.flush()
    except BrokenPipeError:  # the reader closed the pipe, as in `transnet … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the interpreter's last flush
        status = 1
    sys.exit(status)


if __name__ == "__main__":
    main()
