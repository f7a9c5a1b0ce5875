"""The errors of this folder."""

from collections.abc import Sequence


class DataError(ValueError):
    """A data set that cannot be used as it was asked for; catch it to tell a user, its text is meant for one.

    The message names the path or option, what is wrong with it and what would work.
    """


class ReadError(DataError):
    """An image whose bytes could not be had, by the disk's, the network's or the memory's fault.

    That may pass, so it says nothing about the image and must not be kept.
    """


def listed(names: Sequence[str], most: int = 10) -> str:
    """The names, or the first of many, for a message."""
    return ", ".join([*names[:most], *(["…"] if len(names) > most else [])])
