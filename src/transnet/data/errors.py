"""The one error of this folder."""


class DataError(ValueError):
    """A data set that cannot be used as it was asked for; catch it to tell a user, its text is meant for one.

    The message names the path or option, what is wrong with it and what would work.
    """
