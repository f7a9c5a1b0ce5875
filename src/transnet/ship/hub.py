"""Share a trained model on the Hugging Face Hub, with the usual ``save_pretrained``, ``from_pretrained`` and so on.

>>> shared = SharedModel.from_run("runs/t2")                 # pruned; head="all" for the full model
>>> shared.push_to_hub("owner/better-resnet")                # after: hf auth login
>>> model = SharedModel.from_pretrained("owner/better-resnet").network

The folder has the format of ``transnet prune`` and also a model card, filled from the run's result. It opens with
``transnet predict hf:owner/name``, and a pruned timm model also with ``timm.create_model("hf-hub:owner/name")``.
"""

from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard, ModelCardData, ModelHubMixin
from torch import nn

from transnet.errors import ConfigError, FileError
from transnet.runs.description import Description
from transnet.runs.folder import Run
from transnet.runs.provenance import command_elsewhere
from transnet.runs.records import Result, Score
from transnet.ship.export import network_of_run, write_model
from transnet.ship.models import download, open_model
from transnet.ship.predict import head_names


class SharedModel(ModelHubMixin):  # type: ignore[misc]
    """A TransNet or pruned classifier, with its description; use it to put a run on the Hub, or to get a model."""

    def __init__(self, network: nn.Module, about: Description, result: Result | None = None) -> None:
        self.network, self.about, self.result = network.eval(), about, result

    @classmethod
    def from_run(cls, path: str | Path, head: str = "r0") -> "SharedModel":
        """Take the model of a finished run; ``head`` is as for ``transnet prune``, or ``all`` for the full model."""
        network, about = network_of_run(path, head, None)
        if about.transform:
            problem = f"a shared model holds no functions of your own, and this run has {', '.join(about.transform)}"
            raise ConfigError(f"{problem}; share a single head, such as r0", field="head")
        return cls(network, about, Run(path).result())

    def _save_pretrained(self, save_directory: Path) -> None:
        write_model(self.network, self.about, save_directory)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | Path, **options: Any) -> "SharedModel":
        """Load a model from a folder or from the Hub (``owner/name``), checking it like any file from a stranger.

        ``options`` are those of `huggingface_hub.snapshot_download`, such as ``revision`` and ``token``.
        """
        # The mixin's own method would pass the config's entries to __init__ unchecked.
        folder = Path(pretrained_model_name_or_path)
        if not folder.is_dir():
            folder = download(f"hf:{pretrained_model_name_or_path}", **options)
        model = open_model(folder)
        if model.network is None:
            raise FileError(f"{folder} has no model.safetensors; from_pretrained reads no other format")
        return cls(model.network, model.about)

    def generate_model_card(self, *args: Any, **kwargs: Any) -> ModelCard:
        """The model's ``README.md``: what it is, its scores, and how to use it."""
        return model_card(self.about, self.result, kwargs.get("repo_id") or "owner/name")


def model_card(about: Description, result: Result | None, repository: str) -> ModelCard:
    """Fill the model card, with scores only if there is a result; ``repository`` is its name on the Hub."""
    timm = about.model.startswith("timm:") and about.kind == "pruned" and not about.fold
    data = ModelCardData(
        library_name="timm" if timm else "transnet", pipeline_tag="image-classification",
        tags=["image-classification", "transnet", *(["timm"] if timm else [])],
    )  # fmt: skip
    train = result.config.train if result else None
    return ModelCard.from_template(
        data, template_path=str(Path(__file__).with_name("model_card.md")), about=about, result=result,
        rows=_rows(about, result) if result else [], timm=timm, repository=repository,
        command=command_elsewhere(train, Path(train.out).name) if train else "",
    )  # fmt: skip


def _rows(about: Description, result: Result) -> list[dict[str, object]]:
    heads = result.test.heads
    scores: dict[str, Score] = {"full": result.test.full} if len(heads) > 1 else {}
    scores |= {f"head {name}": score for name, score in zip(head_names([h.name for h in heads]), heads, strict=True)}
    own = "full" if about.kind == "full" and len(heads) > 1 else f"head {about.transforms[0]}"
    return [{"name": name, "score": score, "own": name == own} for name, score in scores.items()]
