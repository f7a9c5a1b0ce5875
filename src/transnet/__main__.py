"""``python -m transnet``."""

import sys


def main() -> None:
    """The script ``transnet``."""
    from transnet.cli import run

    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
