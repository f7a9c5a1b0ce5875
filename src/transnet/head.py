"""Find the model's last layer, and check with the first batches that the rest of the model can be f.

f(x) is the input of that layer. If something followed it, such as a softmax, the heads would silently be trained
without it. So the first forward in each mode checks it, even if that forward is compiled, exported or traced.
"""

import copy
import warnings
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode

from transnet import inputs
from transnet.batchnorm import copies_in_batch
from transnet.errors import ModelError

M = TypeVar("M", bound=nn.Module)


def find_head(model: nn.Module, head: str | None = None, *, fresh: bool = False) -> tuple[str, ...]:
    """Return the paths of the model's last fully connected layer: several if the model has several names for it.

    timm's models name it. In other models it is the linear layer that was defined last. The first batch shows whether
    it is also the last to run. ``fresh`` heads must allow their weights to be re-initialised.
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
    known = f"its last linear layers are {', '.join(repr(path) for path in linears[-3:]) or 'none'}"
    try:
        layer = model.get_submodule(head)
    except AttributeError:
        raise ModelError(f"{kind} has no layer {head!r}; {known}", field="head") from None
    modules = model.named_modules(remove_duplicate=False)
    paths = tuple(path for path, module in modules if module is layer)
    problem = None
    if head == "" or not isinstance(layer, nn.Linear):
        hint = "; create it with num_classes > 0" if isinstance(layer, nn.Identity) else ""
        problem = f"is {type(layer).__name__}, and an nn.Linear inside the model is needed; {known}{hint}"
    elif isinstance(layer.weight, nn.parameter.UninitializedParameter):
        problem = "is lazy; run one batch through the model first"
    elif fresh and (nn.utils.parametrize.is_parametrized(layer) or "weight" not in layer._parameters):
        problem = "is parametrized and cannot be re-initialised; use init='copy'"
    else:
        own = {id(parameter) for parameter in layer.parameters()}
        for name, parameter in model.named_parameters(remove_duplicate=False):
            if id(parameter) in own and not name.startswith(tuple(f"{path}." for path in paths)):
                problem = f"shares its weights with {name!r}; separate heads cannot"
    if problem is not None:
        raise ModelError(f"{head!r} of {kind} {problem}", field="head")
    return paths


def copy_module(module: M) -> M:
    """Return a deep copy, also of a model that keeps tensors of its last forward, such as timm's LeViT."""
    return copy.deepcopy(module, detached_copies(module))


def detached_copies(module: nn.Module) -> dict[int, Any]:
    """Return a memo for `copy.deepcopy` with copies of the tensors that it refuses: those of an autograd graph."""
    cached = [tensor for part in module.modules() for tensor in tensors_in(vars(part).values()) if not tensor.is_leaf]
    return {id(tensor): tensor.detach().clone() for tensor in cached}


def tensors_in(values: Iterable[Any]) -> Iterable[Tensor]:
    """Yield the tensors among ``values``, also from nested containers."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (Mapping, list, tuple)):
            yield from tensors_in(value.values() if isinstance(value, Mapping) else value)


# ------------------------------------------------------------------------------------------- nothing follows the head

# The check multiplies the features by this power of two: the products are exact, and a clamp or a ReLU shows.
_DISTURBANCE = -(2.0**20)

# Tensors without values cannot show that what follows the head changes nothing.
_NO_VALUES = "; if only a cast or a reshape follows it, run one batch before you compile or trace the network"


class HeadMustBeLast(NamedTuple):
    """A box around the features, which any layer that follows the placeholder fails on or changes the type of.

    The check needs no values, so it works under `torch.compile`, `torch.export`, `torch.jit.trace` and fx. Compilers
    show the name of this class in their errors.
    """

    features: Tensor


class HeadPlaceholder(nn.Identity):
    """Stands in for the head in a backbone: returns the features, and checks that no other layer follows."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path
        self.boxed = False
        self.checked: set[bool] = set()  # in which modes: a model may end in a softmax in evaluation mode only
        self.no_op_follows = False  # such as a cast or a reshape

    def forward(self, input: Tensor) -> Any:
        """Return the features, boxed during the check."""
        return HeadMustBeLast(input) if self.boxed else input

    def features(self, backbone: nn.Module, x: Tensor) -> Tensor:
        """Return f(x), or raise if anything that changes values follows this placeholder in ``backbone``."""
        if traced := inputs.traced(x):
            checked = self.no_op_follows  # not in `checked`, which a compiler would guard on
        elif x.is_meta or isinstance(x, FakeTensor):  # no values to compare, and no result to protect
            checked = bool(self.checked)
        else:
            checked = backbone.training in self.checked
        if traced and not checked:
            return self._traced_features(backbone, x)
        try:
            return backbone(x) if checked else self._first_features(backbone, x)
        except RuntimeError as error:
            inputs.check_scaled(x, error)
            raise

    def _traced_features(self, backbone: nn.Module, x: Tensor) -> Tensor:
        """Return f(x) without reading values, or raise if anything follows."""
        self.boxed = True
        try:
            output = backbone(x)
        except (AttributeError, TypeError) as error:
            if HeadMustBeLast.__name__ in str(error):
                raise self._misplaced(backbone, _NO_VALUES) from error
            raise
        finally:
            self.boxed = False
        if not isinstance(output, HeadMustBeLast):
            raise self._misplaced(backbone, _NO_VALUES)
        return self._pooled(output.features)

    def _first_features(self, backbone: nn.Module, x: Tensor) -> Tensor:
        """Return f(x), after a check that the model returns exactly the features that this placeholder gave it."""
        if x.is_cuda and torch.cuda.is_current_stream_capturing():  # reading values would end the capture
            return self._traced_features(backbone, x)
        passed: list[Tensor] = []
        calls = _CountCalls()

        def disturb(_module: nn.Module, _args: Any, features: Tensor) -> Tensor:
            passed.append(features)
            disturbed = features * _DISTURBANCE
            calls.count = 0
            return disturbed

        try:
            with self.register_forward_hook(disturb), calls:
                output = backbone(x)
            no_op_follows = calls.count > 0
        except RuntimeError as error:
            if passed and not isinstance(error, torch.OutOfMemoryError):  # a later layer got features, not scores
                raise self._misplaced(backbone) from error
            raise
        if not isinstance(output, Tensor):
            kind = type(output).__name__
            raise TypeError(f"{type(backbone).__name__} returns {kind}; it must return the class scores alone")
        try:
            last = len(passed) == 1 and output.shape == passed[0].shape
            last = last and torch.allclose(passed[0] * _DISTURBANCE, output.to(passed[0]), 0, 0, equal_nan=True)
        except RuntimeError:  # no values: under vmap, or on the meta device
            return self._traced_features(backbone, x)
        if not last:
            raise self._misplaced(backbone)
        if len(x):  # an empty batch shows nothing
            self.checked.add(backbone.training)
            self.no_op_follows |= no_op_follows
        return self._pooled(passed[0].to(output.dtype))

    def _pooled(self, features: Tensor) -> Tensor:
        if isinstance(features, Tensor) and features.ndim != 2:
            given = tuple(features.shape)
            raise ModelError(f"{self.path!r} gets features of shape {given}; pool them to (batch, features) before it")
        return features

    def _misplaced(self, backbone: nn.Module, hint: str = "") -> ModelError:
        return ModelError(
            f"{type(backbone).__name__} does not end in {self.path!r}; give the last linear layer as head='path', and "
            f"leave out what follows it, such as a softmax or a second head{hint}"
        )


class _CountCalls(TorchFunctionMode):
    count = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


# ----------------------------------------------------------------------------------------------- images do not interact

_TOLERANCE = 1e-3  # of the largest feature; both forwards have the same shape, so rounding hardly differs


@torch.no_grad()
def warn_if_images_interact(backbone: nn.Module, x: Tensor) -> bool:
    """Warn if the features of an image depend on the image next to it, a defect that timm's gcvit_xxtiny has.

    Return whether the batch allowed the comparison: it takes two images that differ, with values that can be read.
    """
    if len(x) < 2 or (x.is_cuda and torch.cuda.is_current_stream_capturing()):
        return False
    try:
        if torch.equal(x[0], x[-1]):
            return False
    except RuntimeError:  # no values: under vmap, or on the meta device
        return False
    features = []
    with copies_in_batch(backbone, 1), torch.random.fork_rng([x.device] if x.is_cuda else []):
        for other in (x[-1], x[0]):
            torch.manual_seed(0)  # a model may draw random numbers
            features.append(backbone(torch.stack([x[0], other]))[0].float())
    first, second = features
    if not (first - second).abs().max() <= _TOLERANCE * first.abs().max():
        warnings.warn(
            f"{type(backbone).__name__}: its output for an image depends on the other images of the batch, also in "
            "evaluation mode; use another model, or batches of one",
            stacklevel=3,
        )
    return True
