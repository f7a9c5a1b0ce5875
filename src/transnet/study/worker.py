"""One run of a study in a process of its own: ``python -m transnet.study.worker CONFIG``, a run's settings as JSON.

The process ends with the one that started it, state saved: it watches its standard input, which closes when the
other goes away, however that came about.
"""

import json
import os
import signal
import sys
import threading
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from transnet.train.config import TrainConfig, from_dict

STOPPED = 3  # exit status of a run that was asked to stop and saved its state


def train_alone(config: TrainConfig) -> dict[str, Any]:
    """Train a run, or go on with it, while no other process does so.

    A process that was given up, because its machine seemed dead, may still be writing: two must never share a folder.
    """
    from transnet.train.loop import train

    with _lock(Path(config.out)):
        return train(config, quiet=True)


def _lock(folder: Path) -> AbstractContextManager[Any]:
    from filelock import FileLock

    locks = folder.parent.parent / "logs"
    locks.mkdir(parents=True, exist_ok=True)
    try:
        lock = FileLock(locks / f"{folder.name}.lock")
        with lock:
            pass
    except (NotImplementedError, OSError):  # a file system without locks
        return nullcontext()
    return lock


def _end_with_parent() -> None:
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> int:
    """Exit status: 0 finished, 3 stopped with its state saved, 1 failed, with the reason as the last line."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    from transnet.train.interrupt import Stopped

    try:
        train_alone(from_dict(json.loads(sys.argv[1])))
    except Stopped:
        return STOPPED
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
