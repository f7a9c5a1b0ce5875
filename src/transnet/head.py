"""Run f, all of a model but its classifiers, and check with the first batches that the scores come from those alone.

A single classifier without convolutions has to end the model, so f(x) is its input (`HeadPlaceholder`). If something
followed it, such as a softmax, the heads would silently be trained without it. So the first forward in each mode checks
it, even if that forward is compiled, exported or traced.

Other models end in layers without weights: they pool the scores of a 1×1 convolution, or average those of several
classifiers. There the heads run in the classifier's place (`HeadSlot`), and the model's own last layers follow.
"""

import copy
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode

from transnet import inputs
from transnet.batchnorm import copies_in_batch
from transnet.classifier import class_scores
from transnet.errors import ModelError

M = TypeVar("M", bound=nn.Module)


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

    def __init__(self, path: str, classifier: nn.Module) -> None:
        super().__init__()
        self.path = path
        self.linear = isinstance(classifier, nn.Linear)  # then it needs pooled features; other heads may pool them
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
            return class_scores(backbone(x)) if checked else self._first_features(backbone, x)
        except RuntimeError as error:
            inputs.check_scaled(x, error)
            raise

    def _traced_features(self, backbone: nn.Module, x: Tensor) -> Tensor:
        """Return f(x) without reading values, or raise if anything follows."""
        self.boxed = True
        try:
            output = class_scores(backbone(x))
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
        calls = _Calls()

        def disturb(_module: nn.Module, _args: Any, features: Tensor) -> Tensor:
            passed.append(features)
            disturbed = features * _DISTURBANCE
            calls.names.clear()
            return disturbed

        try:
            with self.register_forward_hook(disturb), calls:
                output = class_scores(backbone(x))
            no_op_follows = bool(calls.names)
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
        if self.linear and isinstance(features, Tensor) and features.ndim != 2:
            given = tuple(features.shape)
            raise ModelError(f"{self.path!r} gets features of shape {given}; pool them to (batch, features) before it")
        return features

    def _misplaced(self, backbone: nn.Module, hint: str = "") -> ModelError:
        return ModelError(
            f"{type(backbone).__name__} does not end in {self.path!r}; give the classifier as head='path', or several "
            f"as a tuple of paths, and leave out what follows, such as a softmax{hint}"
        )


class _Calls(TorchFunctionMode):
    """Record the names of the functions that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.last: Any = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(getattr(func, "__name__", ""))
        return func(*args, **(kwargs or {}))


# ---------------------------------------------------------------------------------- only pooling and averaging follow

# A mean, a pooling, a ReLU or a maximum of scores that are multiplied by this is exactly the multiple of the result.
_MULTIPLE = 2.0**6  # so that scores of half precision stay finite

# Functions and methods of which this is known. They may follow without values that could be compared.
_KEEP_MULTIPLES = {
    "AdaptiveAvgPool2d", "AvgPool2d", "Dropout", "Flatten", "Identity", "ReLU", "__add__", "__get__", "__getitem__",
    "__mul__", "__radd__", "__rmul__", "__truediv__", "adaptive_avg_pool2d", "add", "amax", "avg_pool2d", "cat",
    "contiguous", "dim", "div", "dropout", "flatten", "float", "getattr", "getitem", "max", "mean", "mul", "permute",
    "relu", "relu_", "reshape", "size", "squeeze", "stack", "sum", "to", "transpose", "truediv", "type_as", "view",
}  # fmt: skip


class HeadSlot(nn.Module):
    """Takes the place of a classifier that other layers follow, and runs each head on its part of the batch."""

    def __init__(self, path: str, _classifier: nn.Module) -> None:
        super().__init__()
        self.path = path
        self.heads: Sequence[nn.Module] = ()  # of the current forward; the network owns them
        self.across = False  # every head runs on every part
        self.repeated = False  # the scores are followed by their multiples
        self.calls: _Calls | None = None  # of the functions that follow
        self.checked: set[bool] = set()  # in which modes
        self.others_follow = False  # functions that only values show to be harmless

    def forward(self, input: Tensor) -> Tensor:
        """Return the scores of one head after the other."""
        m = len(self.heads)
        parts = [input] * m if self.across else input.chunk(m)
        scores = torch.cat([head(parts[i]) for i, head in enumerate(self.heads)])
        if self.repeated:
            scores = torch.cat([scores, scores * _MULTIPLE])
        if self.calls is not None:
            self.calls.names.clear()
            self.calls.last = scores
        return scores


def run_heads(
    backbone: nn.Module, slots: Sequence[HeadSlot], heads: Sequence[Any], x: Tensor, *, across: bool = False
) -> Tensor:
    """Return the scores that ``heads`` give to their parts of ``x``, one head after the other.

    The first batch of each mode is refused unless the scores are multiplied when all heads' outputs are. They are not
    if a softmax follows, or if another classifier adds its own scores. Without values, only functions that are known to
    keep multiples may follow.
    """
    first, calls = slots[0], _Calls()
    values = not (inputs.traced(x) or x.is_meta or isinstance(x, FakeTensor))
    values = values and not (x.is_cuda and torch.cuda.is_current_stream_capturing())
    check = values and len(x) > 0 and backbone.training not in first.checked
    for k, slot in enumerate(slots):
        slot.heads = [head[k] for head in heads] if len(slots) > 1 else heads
        slot.across, slot.repeated, slot.calls = across, check, calls
    try:
        with nullcontext() if values and not check else calls:
            output = class_scores(backbone(x), several=len(slots) > 1)
    except RuntimeError as error:
        inputs.check_scaled(x, error)
        if check and calls.last is not None and not isinstance(error, torch.OutOfMemoryError):  # after the heads
            raise _followed(backbone, slots) from error
        raise
    finally:
        for slot in slots:
            slot.heads, slot.calls = (), None
    names = _names_in_graph(calls.last) if isinstance(calls.last, torch.fx.Proxy) else calls.names
    others_follow = not _KEEP_MULTIPLES.issuperset(names)
    if not (values or first.others_follow) and others_follow:
        raise _followed(backbone, slots, _NO_VALUES)
    if isinstance(x, torch.fx.Proxy):
        return cast(Tensor, output)
    if not isinstance(output, Tensor):
        raise TypeError(f"{type(backbone).__name__} returns {type(output).__name__}; it must return the class scores")
    rows = x.shape[0] * (len(heads) if across else 1)
    if output.ndim != 2 or output.shape[0] != rows * (1 + check):
        raise _followed(backbone, slots)
    if not check:
        return output
    output, multiples = output.chunk(2)
    try:
        rounding = 1e-5 * float(multiples.detach().abs().nan_to_num().max())
        if not torch.allclose(multiples, output * _MULTIPLE, 1e-3, rounding, equal_nan=True):
            raise _followed(backbone, slots)
    except RuntimeError:  # no values, under vmap
        if others_follow:
            raise _followed(backbone, slots, _NO_VALUES) from None
        return output
    first.checked.add(backbone.training)
    first.others_follow |= others_follow
    return output


def _names_in_graph(value: torch.fx.Proxy) -> list[str]:
    """Return the names of the functions and modules that an fx graph has after ``value``."""
    names, node, root = [], value.node.next, cast(torch.fx.Tracer, value.tracer).root
    while node.op != "root":
        target = type(root.get_submodule(str(node.target))) if node.op == "call_module" else node.target
        names.append(getattr(target, "__name__", str(target)))
        node = node.next
    return names


def _followed(backbone: nn.Module, slots: Sequence[HeadSlot], hint: str = "") -> ModelError:
    paths = " and ".join(repr(slot.path) for slot in slots)
    return ModelError(
        f"{type(backbone).__name__} does not end in {paths}; only functions that pool or average the class scores may "
        f"follow, and give (batch, classes): name all layers that give scores as head='path', or as a tuple of paths, "
        f"and leave out what follows them, such as a softmax{hint}"
    )


# ----------------------------------------------------------------------------------------------- images do not interact

_TOLERANCE = 1e-3  # of the largest feature; both forwards have the same shape, so rounding hardly differs


@torch.no_grad()
def warn_if_images_interact(backbone: nn.Module, run: Callable[[Tensor], Any], x: Tensor) -> bool:
    """Warn if ``run`` gives an image features that depend on the next image, a defect that timm's gcvit_xxtiny has.

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
            features.append(class_scores(run(torch.stack([x[0], other])))[0].float())
    first, second = features
    if not (first - second).abs().max() <= _TOLERANCE * first.abs().max():
        warnings.warn(
            f"{type(backbone).__name__}: its output for an image depends on the other images of the batch, also in "
            "evaluation mode; use another model, or batches of one",
            stacklevel=3,
        )
    return True
