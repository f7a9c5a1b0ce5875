"""Transforms that are not elements of D4, as examples of functions of your own.

    transnet train photos --transforms r0,gray --transform gray=transnet.transforms:gray --out runs/gray

In Python, pass the function itself: ``TransNet(model, ("r0", ("gray", gray)))``. A transform gets a batch of normalised
images (B, C, H, W). It has to return a batch of the same shape, and always the same one for the same images.
"""

from torch import Tensor


def gray(x: Tensor) -> Tensor:
    """Replace every channel by the mean over the channels.

    Normalised channels are in units of their own mean and standard deviation, so this is not the luminance of the
    original colours, but no channel outweighs the others.
    """
    return x.mean(1, keepdim=True).expand_as(x)


def invert(x: Tensor) -> Tensor:
    """Invert the colours: −x.

    In normalised images this mirrors each channel at its mean over the training set. A photographic negative, 1 − x
    before normalising, differs from it by a constant for each channel.
    """
    return -x
