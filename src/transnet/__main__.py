"""``python -m transnet``."""

import io
import os
import sys


def main() -> None:
    """The script ``transnet``."""
    from transnet.cli import main as run_command

    # Set before torch is imported. Otherwise its threads spin while they wait for each other. On cores that other
    # programs use too, this makes a small network many times slower than one thread.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="replace")  # do not fail on a terminal that cannot show × or …

    try:
        try:
            status = run_command(sys.argv[1:])
        finally:
            sys.stdout.flush()
    except BrokenPipeError:  # the reader closed the pipe, as in `transnet … | head`
        # Avoids an error in the interpreter's last flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 1
    sys.exit(status)


if __name__ == "__main__":
    main()
