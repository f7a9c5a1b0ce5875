"""Errors for mistakes that the user can correct. Each states what was given, what is wrong and what would work.

All of them derive from `ValueError`. An error about one setting carries its name as ``field``; other settings are in
backticks. The command line shows both as options (``val_fraction`` as ``--val-fraction``), so no message mentions one.
"""


class TransnetError(ValueError):
    """A mistake that the user can correct; ``field`` is the setting that is wrong, if it is a single one."""

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(f"{field}: {message}" if field else message)
        self.message, self.field = message, field


class ConfigError(TransnetError):
    """A setting that cannot work, alone or together with others."""


class DataError(TransnetError):
    """A data set that is missing, damaged or unsuitable."""


class ModelError(TransnetError):
    """A network that cannot be wrapped, folded or called in this way."""


class FileError(TransnetError):
    """A file or folder that is missing, damaged or of another kind."""


class OperationError(RuntimeError):
    """Work that could not be completed although the settings are right; the message says what to do."""
