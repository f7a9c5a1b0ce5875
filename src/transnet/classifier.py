"""Find a model's classifiers, the modules that turn features into class scores. The heads take their place."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from transnet.errors import ModelError


def find_classifiers(
    model: nn.Module, head: str | Sequence[str] | None = None, *, fresh: bool = False
) -> tuple[tuple[str, ...], ...]:
    """Return the paths of each classifier: several if the model has several names for it.

    timm's models name them, and those of Hugging Face have one output per label. In other models it is the linear layer
    that was defined last. The first batch shows whether the scores come from it alone. ``fresh`` heads must allow their
    weights to be re-initialised.
    """
    kind = type(model).__name__
    if not isinstance(model, nn.Module):
        raise TypeError(f"model: an nn.Module is needed, {kind} was given")
    given = _default(model) if head is None else (head,) if isinstance(head, str) else tuple(head)
    found: list[tuple[str, ...]] = []
    for path in given:
        names = _names(model, path, fresh)
        if names not in found:
            found.append(names)
    if not found:
        raise ModelError("no path was given; give one, such as 'fc'", field="head")
    return tuple(found)


def _default(model: nn.Module) -> tuple[str, ...]:
    kind = type(model).__name__
    linears = [path for path, module in model.named_modules() if isinstance(module, nn.Linear)]
    labels = getattr(getattr(model, "config", None), "num_labels", None)  # Hugging Face
    pretrained = getattr(model, "pretrained_cfg", None)  # timm
    named = pretrained.get("classifier") if isinstance(pretrained, Mapping) else None
    if getattr(model, "num_classes", labels) == 0:
        raise ModelError(f"{kind} has no classifier; create it with num_classes > 0 (or num_labels)", field="head")
    if named:
        known = dict(model.named_modules(remove_duplicate=False))
        paths = (named,) if isinstance(named, str) else tuple(path for path in named if known.get(path) is not None)
        inside = {path: [linear for linear in linears if linear.startswith(f"{path}.")] for path in paths}
        return tuple(inside[path][-1] if inside[path] else path for path in paths)  # timm's layer was replaced
    if labels is not None:
        base = getattr(model, "base_model_prefix", "")
        sized = [path for path in linears if model.get_submodule(path).out_features == labels]
        outside = [path for path in sized if not path.startswith(f"{base}.")]
        if not sized:
            advice = "use its class that ends in ForImageClassification"
            raise ModelError(f"{kind} has no classifier for its {labels} labels; {advice}", field="head")
        return tuple(outside or sized[-1:])
    last = [path for path, module in model.named_modules() if _weights(module)][-1:]
    if linears or not last or not _pointwise(model.get_submodule(last[0])):
        last = linears[-1:]
    if not last:
        advice = "append one, or name the layers that give the class scores as head='path'"
        problem = "has no classifier: no nn.Linear, and no 1×1 convolution as last layer"
        raise ModelError(f"{kind} {problem}; {advice}", field="head")
    return tuple(last)


def _names(model: nn.Module, head: str, fresh: bool) -> tuple[str, ...]:
    """Return all paths of the module at ``head``, or raise if heads cannot take its place."""
    kind = type(model).__name__
    linears = [path for path, module in model.named_modules() if isinstance(module, nn.Linear)]
    known = f"its last linear layers are {', '.join(repr(path) for path in linears[-3:]) or 'none'}"
    try:
        module = model.get_submodule(head)
    except AttributeError:
        raise ModelError(f"{kind} has no layer {head!r}; {known}", field="head") from None
    paths = tuple(path for path, other in model.named_modules(remove_duplicate=False) if other is module)
    parameters = list(module.parameters())
    problem = None
    if head == "" or not parameters or (isinstance(module, nn.Conv2d) and not _pointwise(module)):
        needed = "an nn.Linear, a 1×1 convolution or a small head of such layers inside the model is needed"
        hint = "; create it with num_classes > 0" if isinstance(module, nn.Identity) else ""
        problem = f"is {type(module).__name__}, and {needed}; {known}{hint}"
    elif any(isinstance(parameter, nn.parameter.UninitializedParameter) for parameter in parameters):
        problem = "is lazy; run one batch through the model first"
    elif fresh and not all(_can_be_reset(part) for part in module.modules()):
        problem = "is parametrized or has weights without reset_parameters(), and cannot be re-initialised"
        problem += "; use init='copy'"
    else:
        own = {id(parameter) for parameter in parameters}
        for name, parameter in model.named_parameters(remove_duplicate=False):
            if id(parameter) in own and not name.startswith(tuple(f"{path}." for path in paths)):
                problem = f"shares its weights with {name!r}; separate heads cannot"
    if problem is not None:
        raise ModelError(f"{head!r} of {kind} {problem}", field="head")
    return paths


def _pointwise(module: nn.Module) -> bool:
    return isinstance(module, nn.Conv2d) and module.kernel_size == (1, 1)


def _weights(module: nn.Module) -> list[nn.Parameter]:
    return list(module.parameters(recurse=False))


def _can_be_reset(module: nn.Module) -> bool:
    if parametrize.is_parametrized(module):
        return False
    if isinstance(module, (nn.Linear, nn.Conv2d)):
        return "weight" in module._parameters  # not so under the older `nn.utils.weight_norm`
    return not _weights(module) or hasattr(module, "reset_parameters")


def reset(classifier: nn.Module) -> None:
    """Initialise every layer of a head randomly, and let all of them train."""
    for module in classifier.requires_grad_(True).modules():
        if _weights(module):
            cast(nn.Linear, module).reset_parameters()


def class_scores(output: Any, *, several: bool = False) -> Any:
    """Return the scores in a model's output: the output, its ``.logits``, or the mean of ``several`` classifiers'."""
    if isinstance(output, tuple):
        tensors = all(isinstance(part, (Tensor, torch.fx.Proxy)) for part in output)
        return torch.stack(output).mean(0) if several and tensors else output
    return output if isinstance(output, (Tensor, torch.fx.Proxy)) else getattr(output, "logits", output)
