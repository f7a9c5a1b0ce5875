"""``transnet serve``."""

import dataclasses
from collections.abc import Sequence
from typing import Annotated

from transnet.arguments import Positional, argument
from transnet.cli.options import parse


@dataclasses.dataclass(frozen=True)
class Options:
    """Open a page to try a model on: drop an image to see each head's view and class.

    The page answers this machine only, loads nothing from elsewhere, and stores no image.

    Example: transnet serve runs/t2
    """

    model: Annotated[Positional[str], argument(metavar="RUN")]
    """A run, or any model that transnet predict takes."""
    confidence: float = 0.9
    """The early-exit threshold that the page starts with."""
    host: str = "127.0.0.1"
    """Address to listen on. Any but a loopback address lets other machines in, without a password."""
    port: int = 8000
    """Port to listen on; 0 takes any free one."""
    browser: bool = True
    """Open the page in a browser."""
    device: str = "auto"
    """cpu, cuda, cuda:1, or auto: a GPU if there is one."""


def main(arguments: Sequence[str]) -> int:
    """Serve until Ctrl-C."""
    options = parse(Options, "serve", arguments)
    from transnet.ship.serve import serve

    serve(
        options.model, host=options.host, port=options.port, confidence=options.confidence, device=options.device,
        browser=options.browser,
    )  # fmt: skip
    return 0
