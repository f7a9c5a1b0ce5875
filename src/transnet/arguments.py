"""How a dataclass declares its fields as command-line arguments.

Only this file and `transnet.cli.options` know the library that parses the command line, which is tyro.

    runs: Annotated[Positional[tuple[str, ...]], argument(metavar="RUN…")]
    out: Annotated[str, argument(metavar="DIR")] = "reproduced"
"""

import tyro
from tyro.conf import Positional
from tyro.conf import arg as argument

REQUIRED = tyro.MISSING  # the default of a field that has to be given on the command line

__all__ = ["REQUIRED", "Positional", "argument"]
