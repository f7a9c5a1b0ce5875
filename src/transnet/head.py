"""Find the model's last layer, take it out, and check that nothing follows it.

f(x) is the input of that layer. If something followed it, such as a softmax, the heads would silently be trained
without that. So the first forward checks it, even if that forward is compiled, exported or traced.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from transnet.errors import ModelError


def find_head(model: nn.Module, head: str | None = None, *, fresh: bool = False) -> tuple[str, ...]:
    """Return the paths of the model's last fully connected layer: several if the model has several names for it.

    timm's models name it. In other models it is the linear layer that was defined last. The first batch shows whether
    it is also the last to run.

    Args:
        model: any module.
        head: the path, if the user gave one.
        fresh: whether the layer's weights will be re-initialised.
    """
    kind = type(model).__name__
    if not isinstance(model, nn.Module):
        raise TypeError(f"model: an nn.Module is needed, {kind} was given")
    linears = [path for path, module in model.named_modules() if isinstance(module, nn.Linear)]
    if head is None:
        config = getattr(model, "pretrained_cfg", None)
        named = config.get("classifier") if isinstance(config, Mapping) else None
        if isinstance(named, (tuple, list)):
            raise ModelError(f"{kind} has several heads, {' and '.join(named)}; TransNet needs one that ends the model")
        inside = [path for path in linears if named and path.startswith(f"{named}.")]  # timm's layer was replaced
        head = inside[-1] if inside else named or (linears[-1] if linears else None)
    if head is None:
        raise ModelError(f"{kind} has no nn.Linear, so no fully connected head to replace; give it one as last layer")
    known = ", ".join(repr(path) for path in linears[-3:]) or "none"
    try:
        layer = model.get_submodule(head)
    except AttributeError:
        raise ModelError(f"{kind} has no layer {head!r}; its last linear layers are {known}", field="head") from None
    if head == "" or not isinstance(layer, nn.Linear):
        hint = "; create it with num_classes > 0" if isinstance(layer, nn.Identity) else ""
        raise ModelError(
            f"{head!r} of {kind} is {type(layer).__name__}, and an nn.Linear inside the model is needed; "
            f"its last linear layers are {known}{hint}",
            field="head",
        )
    paths = tuple(path for path, module in model.named_modules(remove_duplicate=False) if module is layer)
    _check_head(model, head, layer, paths, fresh=fresh)
    return paths


def _check_head(model: nn.Module, head: str, layer: nn.Linear, paths: tuple[str, ...], *, fresh: bool) -> None:
    kind = type(model).__name__
    if isinstance(layer.weight, nn.parameter.UninitializedParameter):
        raise ModelError(f"{head!r} of {kind} is lazy; run one batch through the model first", field="head")
    if fresh and (nn.utils.parametrize.is_parametrized(layer) or "weight" not in layer._parameters):
        raise ModelError(
            f"{head!r} of {kind} is parametrized and cannot be re-initialised; use init='copy'", field="head"
        )
    own = {id(parameter) for parameter in layer.parameters()}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if id(parameter) in own and name.rpartition(".")[0] not in paths and not name.startswith(f"{head}."):
            raise ModelError(
                f"{head!r} of {kind} shares its weights with {name!r}; separate heads cannot", field="head"
            )


# Tensors without values cannot show that what follows the head changes nothing.
_NO_VALUES = (
    ". If only a cast or a reshape follows it, run one batch through the network before you compile or trace it"
)


class HeadMustBeLast(NamedTuple):
    """The features in a box, passed from the head's place to the model's output.

    A model that ends in that place returns the box. Any layer that follows fails on it, or changes its type. The check
    needs no values, so it works under `torch.compile`, `torch.export`, `torch.jit.trace`, fx and vmap, and on the
    meta device. Compilers show the name of this class in their errors.
    """

    features: Tensor


class HeadPlace(nn.Identity):
    """Takes the place of the head in a backbone and passes on its features."""

    boxed = False

    def forward(self, input: Tensor) -> Any:
        """Return the features, boxed during the check."""
        return HeadMustBeLast(input) if self.boxed else input


def boxed_features(backbone: nn.Module, path: str, x: Tensor) -> Tensor:
    """Return f(x), or raise if anything follows the head that was taken out at ``path``."""
    place = cast(HeadPlace, backbone.get_submodule(path))
    place.boxed = True
    try:
        output = backbone(x)
    except (AttributeError, TypeError) as error:
        if HeadMustBeLast.__name__ in str(error):
            raise ModelError(_misplaced(backbone, path) + _NO_VALUES) from error
        raise
    finally:
        place.boxed = False
    if not isinstance(output, HeadMustBeLast):
        raise ModelError(_misplaced(backbone, path) + _NO_VALUES)
    return _pooled(output.features, path)


def first_features(backbone: nn.Module, path: str, x: Tensor) -> tuple[Tensor, bool | None]:
    """Return f(x), and whether something follows the head that changes no values, such as a cast or a reshape.

    An empty batch cannot show this; the second value is then None.

    Raises:
        ModelError: something follows the head and changes values.
    """
    try:
        return boxed_features(backbone, path, x), False
    except torch.OutOfMemoryError:
        raise
    except Exception:  # whatever it is, a forward without the box shows whether it is due to the box
        if not len(x):
            return backbone(x), None
    return _features_by_value(backbone, path, x), True


def _features_by_value(backbone: nn.Module, path: str, x: Tensor) -> Tensor:
    """Return f(x), or raise if the model returns anything but −f(x) when the head's place passes on −f(x)."""
    seen: list[Tensor] = []

    def negate(_module: nn.Module, _args: Any, output: Tensor) -> Tensor:
        seen.append(output)
        return -output

    kind = type(backbone).__name__
    hook = backbone.get_submodule(path).register_forward_hook(negate)
    try:
        negated = backbone(x)
    except RuntimeError as error:
        if seen:  # a later layer got features instead of that layer's output
            raise ModelError(_misplaced(backbone, path)) from error
        if x.is_floating_point() or isinstance(error, torch.OutOfMemoryError):
            raise
        raise ModelError(  # only after it failed: a model may scale its images itself
            f"{x.dtype} was given, which {kind} does not take; scale them to floating point first, as the "
            "model was trained: x.float() / 255",
            field="images",
        ) from error
    finally:
        hook.remove()
    if not isinstance(negated, Tensor):
        raise TypeError(
            f"{kind} returns {type(negated).__name__}, not one tensor of class scores; switch auxiliary outputs off, "
            "or wrap it in a module that returns the scores"
        )
    try:
        last = len(seen) == 1 and _same(-seen[0], negated)
    except RuntimeError as error:  # under vmap, or on the meta device
        raise ModelError(_misplaced(backbone, path) + _NO_VALUES) from error
    if not last:
        raise ModelError(_misplaced(backbone, path))
    return _pooled(-negated, path)


def _pooled(features: Tensor, path: str) -> Tensor:
    if isinstance(features, Tensor) and features.ndim != 2:
        raise ModelError(
            f"{path!r} gets features of shape {tuple(features.shape)}; (batch, features) is needed: pool the image's "
            "positions before the last layer"
        )
    return features


def _misplaced(backbone: nn.Module, path: str) -> str:
    return (
        f"{type(backbone).__name__} does not end in {path!r}: its output is not that layer's. Give the last linear "
        "layer as head='path', and leave out what follows it, such as a softmax or a second head"
    )


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.allclose(a, b.to(a.dtype), rtol=0, atol=0, equal_nan=True)
