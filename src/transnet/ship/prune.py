"""A run pruned to the plain classifier, as a folder: weights under the model's own names, and what using them needs."""

import json
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from transnet.train.checkpoint import write_atomically
from transnet.train.config import ConfigError
from transnet.train.run import Run, load


def prune_run(path: str, out: str, *, head: str = "r0") -> dict[str, Any]:
    """Write ``model.safetensors`` and ``config.json`` to a new folder and return the latter's content.

    Args:
        path: a finished run.
        out: the folder to make.
        head: the head to keep; any but r0 has its transform folded into the weights, which ties the model to the
            run's image size. ``best`` takes the head of the lowest validation loss.

    Raises:
        ConfigError: where the folder exists, the head is not there, or ``best`` is asked of a run without a
            validation split: choosing by the test set would make its figures worthless.
    """
    run = Run(path)
    content = run.read_config()
    target = Path(out)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConfigError(f"--out: {target} exists; give another folder")
    net = load(path)
    chosen = _best(run) if head == "best" else head
    size = content["data"]["image_size"]
    model = net.prune(chosen, image_size=size)
    result = {
        "schema": 1,
        "kind": "pruned",
        "model": content["train"]["model"],
        "head": chosen,
        "fold": getattr(model, "fold_config", None),
        **{key: content["data"][key] for key in ("classes", "channels", "image_size", "stored_size", "mean", "std")},
    }
    target.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    save_file(tensors, target / "model.safetensors")
    write_atomically(target / "config.json", json.dumps(result, indent=1).encode())
    return result


def _best(run: Run) -> str:
    val = run.read_result().get("val")
    if not val:
        raise ConfigError(
            f"--head best: {run.path} has no validation split to choose by; train with --val-fraction 0.1, "
            "or name a head"
        )
    return str(min(val["heads"], key=lambda entry: entry["loss"])["name"])
