"""``python -m transnet``."""

import io
import os
import sys


def main() -> None:
    """The script ``transnet``."""
    from transnet.cli import main as run_command

    # Before torch is imported: its threads would turn in circles while they wait for each other, which on cores that
    # other programs use as well makes a small network many times slower than one thread.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="replace")  # a terminal without × or … is no reason to fail

    try:
        try:
            status = run_command(sys.argv[1:])
        finally:
            sys.stdout.flush()
    except BrokenPipeError:  # whoever read the output has seen enough, as in `transnet … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the interpreter's last flush would complain
        status = 1
    sys.exit(status)


if __name__ == "__main__":
    main()
