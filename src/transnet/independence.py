"""Warn about models whose output for one image depends on the other images of its batch.

Such a model scores an image differently in every batch, even in evaluation mode, and its heads see copies of each
other's images. It is a defect of the model: timm's gcvit_xxtiny has it.
"""

import warnings

import torch
from torch import Tensor, nn

from transnet.batchnorm import copies_in_batch

_TOLERANCE = 1e-3  # of the largest feature; both forwards have the same shape, so rounding hardly differs


@torch.no_grad()
def warn_if_images_mix(backbone: nn.Module, x: Tensor) -> bool:
    """Compare the features of one image next to two different images, and warn if they differ.

    Args:
        backbone: in evaluation mode.
        x: a batch of images.

    Returns:
        Whether the batch allowed the comparison: it takes two images that differ, with values that can be read.
    """
    if len(x) < 2 or not _differ(x[0], x[-1]):
        return False
    pairs = (torch.stack([x[0], x[-1]]), torch.stack([x[0], x[0]]))
    with copies_in_batch(backbone, 1):
        first, second = (_features_of_first(backbone, pair) for pair in pairs)
    if not (first - second).abs().max() <= _TOLERANCE * first.abs().max():
        warnings.warn(
            f"{type(backbone).__name__}: its output for an image depends on the other images of the batch, also in "
            "evaluation mode. Accuracy then depends on how images are batched; use another model, or batches of one",
            stacklevel=3,
        )
    return True


def _differ(a: Tensor, b: Tensor) -> bool:
    if a.is_cuda and torch.cuda.is_current_stream_capturing():
        return False
    try:
        return not torch.equal(a, b)
    except RuntimeError:  # no values: under vmap, or on the meta device
        return False


def _features_of_first(backbone: nn.Module, pair: Tensor) -> Tensor:
    with torch.random.fork_rng([pair.device] if pair.is_cuda else []):
        torch.manual_seed(0)  # a model may draw random numbers, and the caller's generator stays as it is
        features: Tensor = backbone(pair)
    return features[0].float()
