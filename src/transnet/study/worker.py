"""Train one run of a study in this process, on this machine or on a node of a cluster."""

from dataclasses import dataclass

from transnet.errors import OperationError, TransnetError
from transnet.runs.folder import Run, RunInUse
from transnet.study.plan import PlannedRun


@dataclass(frozen=True)
class Ended:
    """A run that is not being trained any more. It is finished unless one of the following applies."""

    name: str
    error: str = ""  # why it failed
    stopped: bool = False  # it was asked to stop, and its state is saved
    busy: bool = False  # another process trains it


def train_run(run: PlannedRun, at_once: int, *, wait: float = 0.0) -> Ended:
    """Train a run, or continue it, and save its predictions if the study wants them.

    Up to ``at_once`` runs share its device. If another process trains it, wait that many seconds.
    """
    from transnet.train.evaluate_runs import save_predictions
    from transnet.train.interrupt import Stopped
    from transnet.train.trainer import train

    folder = Run(run.path)
    try:
        folder.acquire(timeout=wait)
        try:
            train(run.config, data=run.data, quiet=True, at_once=at_once)
            if not run.done:
                save_predictions(run.path, data=run.data, device=run.config.device)
        finally:
            folder.release()
            if folder.finished:
                folder.drop_state()  # it holds only the lock's file
    except Stopped:
        return Ended(run.name, stopped=True)
    except RunInUse:
        return Ended(run.name, busy=True)
    except (TransnetError, OperationError, OSError) as error:
        return Ended(run.name, error=str(error))
    return Ended(run.name)
