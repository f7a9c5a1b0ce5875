"""Share a trained model: ``save_pretrained``, ``from_pretrained`` and ``push_to_hub``, as users of the Hub know them.

>>> shared = SharedModel.from_run("runs/t2")                 # pruned; head="all" for the full model
>>> shared.push_to_hub("owner/better-resnet")                # needs: hf auth login
>>> model = SharedModel.from_pretrained("owner/better-resnet").network

The folder written is the one that ``transnet prune`` writes, with a model card filled from the run's result. It opens
with ``transnet predict hf:owner/name``; a pruned timm model also with ``timm.create_model("hf-hub:owner/name")``.
"""

from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard, ModelCardData, ModelHubMixin
from torch import Tensor, nn

from transnet.errors import FileError
from transnet.runs.description import Description
from transnet.runs.folder import Run
from transnet.runs.provenance import command_elsewhere
from transnet.runs.records import Result, Score
from transnet.ship.export import write_safetensors
from transnet.ship.models import download, open_model
from transnet.ship.predict import head_names
from transnet.ship.prune import network_of_run


class SharedModel(ModelHubMixin):  # type: ignore[misc]
    """A trained network with all that using it takes; take it to put a run on the Hub, or to get one from there.

    Args:
        network: a `TransNet`, or a pruned classifier.
        about: its classes and preprocessing.
        result: the run's ``result.json``, for the model card.
    """

    def __init__(self, network: nn.Module, about: Description, result: Result | None = None) -> None:
        self.network, self.about, self.result = network.eval(), about, result

    @classmethod
    def from_run(cls, path: str | Path, head: str = "r0") -> "SharedModel":
        """A finished run, ready to be saved or pushed.

        Args:
            path: the run's folder.
            head: as for ``transnet prune``: a head's name, ``best``, or ``all`` for the full model.
        """
        network, about = network_of_run(path, head)
        return cls(network, about, Run(path).result())

    def __call__(self, x: Tensor) -> Tensor:
        """What the network gives for normalised images."""
        output: Tensor = self.network(x)
        return output

    def _save_pretrained(self, save_directory: Path) -> None:
        write_safetensors(self.network, self.about, save_directory)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | Path, **options: Any) -> "SharedModel":
        """A model from a folder or from the Hub (``owner/name``), checked as every file from a stranger.

        Args:
            pretrained_model_name_or_path: the folder, or the repository.
            options: those of `huggingface_hub.snapshot_download`, such as ``revision`` and ``token``.
        """
        # The mixin's own would read the config and hand its entries to __init__; here they are checked first.
        folder = Path(pretrained_model_name_or_path)
        if not folder.is_dir():
            folder = download(f"hf:{pretrained_model_name_or_path}", **options)
        model = open_model(folder)
        if model.network is None:
            raise FileError(f"{folder}: has no model.safetensors; from_pretrained reads no other format")
        return cls(model.network, model.about)

    def generate_model_card(self, *args: Any, **kwargs: Any) -> ModelCard:
        """The model's ``README.md``: what it is, how it scored, how to use it."""
        return ModelCard(card_text(self.about, self.result, kwargs.get("repo_id") or "owner/name"))


def card_text(about: Description, result: Result | None, repository: str) -> str:
    """The text of a model card; scores only where there is a result.

    Args:
        about: the model.
        result: the run's ``result.json``.
        repository: where it will lie, for the commands to copy.
    """
    data = ModelCardData(
        library_name="timm" if _for_timm(about) else "transnet", pipeline_tag="image-classification",
        tags=["image-classification", "transnet", *(["timm"] if _for_timm(about) else [])],
    )  # fmt: skip
    size = f"{about.image_size}×{about.image_size}"
    heads = " ".join(about.transforms)
    if about.kind == "full" and len(about.transforms) > 1:
        what = f"all heads ({heads}) on one backbone: {len(about.transforms)} passes per image"
    elif about.fold:
        what = f"pruned to the head {heads}, its transform folded into the weights for {size} images: one pass an image"
    else:
        what = "pruned to the identity head, the plain classifier: one pass an image"
    parts = [
        f"---\n{data.to_yaml()}\n---\n\n# {about.model}{_how_trained(result)}\n",
        f"An image classifier of {len(about.classes)} classes for {size} images, {what}.\n",
        *(_scores(about, result) if result else []),
        _usage(about, repository),
        f"\n## Preprocessing\n\nShorter side to {about.stored_size} (Pillow's bilinear filter), centre crop of "
        f"{about.image_size}, pixels in 0…1, mean {_list(about.mean)}, standard deviation {_list(about.std)}. "
        "`config.json` has the exact settings.\n",
    ]
    return "\n".join(parts)


def _how_trained(result: Result | None) -> str:
    if result is None:
        return ""
    return ", trained with TransNet" if len(result.test.heads) > 1 else ", trained plainly"


def _scores(about: Description, result: Result) -> list[str]:
    test, config = result.test, result.config
    names = [f"head {name}" for name in head_names([head.name for head in test.heads])]
    rows: dict[str, Score] = dict(zip(names, test.heads, strict=True))
    if len(rows) > 1:
        rows = {"full": test.full, **rows}
    own = "full" if about.kind == "full" and len(rows) > 1 else f"head {about.transforms[0]}"
    lines = ["## Results\n", "| on the test set | accuracy % | loss | passes | n |", "|---|---|---|---|---|"]
    for name, entry in rows.items():
        shown = f"**{name}** (this model)" if name == own else name
        loss = "–" if entry.loss is None else f"{entry.loss:.4f}"
        lines.append(f"| {shown} | {100 * entry.accuracy:.2f} | {loss} | {entry.passes} | {entry.n:,} |")
    cost = result.cost
    lines.append(
        f"\nOne run on {config.data.name}, seed {config.train.seed}: {cost.train_passes:,} training "
        f"passes in {result.train_seconds:.0f} s on {result.device}, {cost.parameters:,} parameters"
        f"{' with all heads' if len(rows) > 1 else ''}. Tested on the image alone.\n"
    )
    name = Path(config.train.out).name
    return [*lines, f"```\n{command_elsewhere(config.train, name)}\n```\n"]


def _usage(about: Description, repository: str) -> str:
    lines = ["## Use\n\n```", f"transnet predict hf:{repository} photo.jpg", "```\n\n```python"]
    if _for_timm(about):
        lines += ["import timm", f'model = timm.create_model("hf-hub:{repository}", pretrained=True)']
    else:
        lines += ["from transnet.ship.hub import SharedModel", f'model = SharedModel.from_pretrained("{repository}")']
    return "\n".join([*lines, "```"])


def _for_timm(about: Description) -> bool:
    return about.model.startswith("timm:") and about.kind == "pruned" and not about.fold


def _list(values: tuple[float, ...]) -> str:
    return ", ".join(f"{value:.4f}" for value in values)
