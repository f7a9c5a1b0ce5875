"""What a data set is to everything that trains or measures on it."""

from dataclasses import dataclass

from transnet.data.split import Split


@dataclass(frozen=True)
class Augmentation:
    """What training may do to an image without changing its class; it belongs to the data set's definition.

    Attributes:
        pad: pad by so many pixels on every side, then crop the image's own size at random; 0: none.
        flip: mirror left-right with probability one half.
    """

    pad: int = 0
    flip: bool = False


@dataclass(frozen=True)
class DataSet:
    """Images in their splits, and how a network is to see them; `transnet.data.open_data` makes one.

    Attributes:
        name: the name that was given, or that of the folder or file.
        classes: the labels' names.
        channels: 1 where all images are grey, 3 otherwise.
        image_size: side of the square the network sees.
        stored_size: side at which images are held. Where it is larger than ``image_size``, training cuts
            squares of ``image_size`` at random out of it and tests cut the centre.
        square: whether all images are as wide as they are high; of others the network sees a square cut out.
        augmentation: what training does beside that.
        mean: of each channel in 0..1, over the training images (without the validation split), before
            resizing.
        std: likewise.
        train: what may be trained on.
        val: what may be selected on, or None.
        test: what is only measured on.
        skipped: the images that were left out because they could not be read.
        fingerprint: changes with the contents, order, labels and splits of the images and with how they are
            seen. Two runs of equal fingerprints saw the same data, wherever it lay.
    """

    name: str
    classes: tuple[str, ...]
    channels: int
    image_size: int
    stored_size: int
    square: bool
    augmentation: Augmentation
    mean: tuple[float, ...]
    std: tuple[float, ...]
    train: Split
    val: Split | None
    test: Split
    skipped: tuple[str, ...]
    fingerprint: str
