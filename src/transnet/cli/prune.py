"""``transnet prune``."""

import dataclasses
from collections.abc import Sequence
from typing import Annotated, Literal

from transnet.arguments import Positional, argument
from transnet.cli.options import OwnTransforms, parse


@dataclasses.dataclass(frozen=True)
class Options:
    """Prune a finished run to the plain classifier, as a folder with the model and its config.json.

    The command loads what it wrote and compares it with the run on test images before it reports success.

    Example: transnet prune runs/t2 --out models/better
    """

    run: Annotated[Positional[str], argument(metavar="RUN")]
    """Folder of a finished run."""
    out: Annotated[str, argument(metavar="DIR")]
    """Folder to create."""
    head: str = "r0"
    """The head to keep. Any but r0 has its transform folded into the weights. best: the one with the lowest
    validation loss, for a run with --val-fraction. all: the full model with its transforms."""
    format: Literal["safetensors", "onnx", "pt2"] = "safetensors"
    """safetensors: weights under the model's own names. onnx: for ONNX Runtime. pt2: for torch.export."""
    transform: OwnTransforms = ()


def main(arguments: Sequence[str]) -> int:
    """Export, and print how closely the result agrees with the run."""
    options = parse(Options, "prune", arguments)
    from transnet.ship.export import export_run

    written = export_run(
        options.run, options.out, head=options.head, format=options.format, transform=options.transform
    )
    about, side = written.about, written.about.image_size
    folded = f", with its transform folded in for {side}×{side}" if about.fold else ""
    print(f"{written.file}: {about.model}, head{'s' * (about.kind == 'full')} {' '.join(about.transforms)}{folded}")
    images = f"{written.images} {'test images' if written.real else 'random images (the data is not there)'}"
    print(f"compared on {images}: logits within {written.difference:.1e}, {written.same:.1%} of the classes the same")
    return 0
