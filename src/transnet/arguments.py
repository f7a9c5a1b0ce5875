"""How a dataclass declares its fields as command-line arguments.

Only this file and `transnet.cli.options` know the library that parses the command line, which is tyro.
"""

from tyro import MISSING as REQUIRED  # the default of a field that has to be given
from tyro.conf import Positional  # Annotated[Positional[str], argument(metavar="DATA")]
from tyro.conf import UseAppendAction as Repeatable  # Annotated[Repeatable[tuple[str, ...]], …]: --name A --name B
from tyro.conf import arg as argument

__all__ = ["REQUIRED", "Positional", "Repeatable", "argument"]
