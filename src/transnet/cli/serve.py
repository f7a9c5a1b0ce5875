"""``transnet serve``."""

import dataclasses
import webbrowser
from collections.abc import Sequence
from typing import Annotated

from transnet.arguments import Positional, argument
from transnet.cli.options import Device, OwnTransforms, parse
from transnet.console import say


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
    transform: OwnTransforms = ()
    device: Device = "auto"


def main(arguments: Sequence[str]) -> int:
    """Serve until Ctrl-C."""
    options = parse(Options, "serve", arguments)
    from transnet.early_exit import check_confidence
    from transnet.ship.models import open_model
    from transnet.ship.serve import PageServer, is_loopback

    check_confidence(options.confidence)
    model = open_model(options.model, device=options.device, transform=options.transform)
    with PageServer(model, options.host, options.port, options.confidence) as server:
        say(f"{server.url}  (stop with Ctrl-C)")
        if not is_loopback(options.host):
            say(f"warning: on {options.host} anybody who can reach this machine can use the model, without a password")
        if options.browser:
            webbrowser.open(server.url)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            say("stopped")
    return 0
