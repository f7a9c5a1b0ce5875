"""What the members of Fig. 3's ensembles said of the test images, kept for ensembles with networks yet to come.

OUT/measured/answers/<run>.safetensors    the identity head's logits (N, K) by the run's protocol, the labels (N,)

A run's process writes them as soon as it has trained, and they are deleted when all ensembles were measured that the
run joins. So an ensemble's members may be trained in different stretches, on machines that keep no weights: the answers
to CIFAR-100 are a tenth of a ResNet-18's size.
"""

from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from transnet.data import DataSet
from transnet.runs.files import write_tensors
from transnet.runs.folder import Run
from transnet.runs.predictions import NAME, Predictions
from transnet.study.plan import BY_HEADS, parse_name
from transnet.train.evaluate_runs import collect


@dataclass(frozen=True)
class Answers:
    """What one network said.

    Attributes:
        logits: (N, K), the mean over an image and its mirror image where training mirrors.
        labels: (N,).
        passes: of the network for an image.
    """

    logits: Tensor
    labels: Tensor
    passes: int


def is_member(run: Path) -> bool:
    """Whether a run of a study belongs into its ensembles."""
    found = parse_name(run.name)
    return found is not None and found[1] in BY_HEADS


def can_answer(run: Path) -> bool:
    """Whether what a run's network says can be had: it is yet to be trained, has its weights, or said it before."""
    folder = Run(run)
    if not folder.finished or folder.model.exists():
        return True
    return kept_answers(run, folder.result().model_sha256) is not None


def keep_answers(run: Path, data: DataSet, *, device: str = "auto") -> Answers:
    """Ask a finished run's network, and write down what it says.

    Args:
        run: its folder, in a study's.
        data: the run's own.
        device: where to compute.
    """
    said = collect(run, data=data, device=device)
    answers = Answers(said.views[-1][:, said.transforms.index("r0")].contiguous(), said.labels, len(said.views))
    file = _file(run)
    file.parent.mkdir(parents=True, exist_ok=True)
    marks = {"mark": Run(run).result().model_sha256, "passes": str(answers.passes)}
    flip = said.views[1].numpy() if len(said.views) > 1 else None
    labels, fingerprint = said.labels.numpy(), Run(run).settings().data.fingerprint
    Predictions(said.transforms, said.views[0].numpy(), flip, labels, marks["mark"], fingerprint).save(run / NAME)
    write_tensors(file, {"logits": answers.logits, "labels": answers.labels}, metadata=marks)
    return answers


def kept_answers(run: Path, mark: str) -> Answers | None:
    """What was written down; None where there is nothing, or not of the network with that ``model_sha256``."""
    try:
        with safe_open(_file(run), framework="pt") as file:
            about = file.metadata() or {}
            if about.get("mark") != mark:
                return None
            return Answers(file.get_tensor("logits"), file.get_tensor("labels"), int(about["passes"]))
    except (OSError, SafetensorError, KeyError, ValueError):  # not there, or damaged
        return None


def drop_answers(run: Path) -> None:
    """Delete what was written down: all ensembles that it may join were measured."""
    _file(run).unlink(missing_ok=True)


def _file(run: Path) -> Path:
    return run.parent.parent / "measured" / "answers" / f"{run.name}.safetensors"
