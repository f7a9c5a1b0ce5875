"""The error of this folder that is not the data's own fault."""

from transnet.errors import DataError


class ReadError(DataError):
    """An image could not be read because of the disk, the network or a lack of memory.

    The cause may pass, so this error proves nothing about the image and must not be cached.
    """
