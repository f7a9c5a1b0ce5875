"""What a run needs to be resumed, besides its state: the command, and the result if it is finished."""

import dataclasses
import os

from transnet.console import counted, say
from transnet.errors import ConfigError
from transnet.runs import recipes
from transnet.runs.config import TrainConfig, differences
from transnet.runs.folder import CUSTOM
from transnet.runs.provenance import command
from transnet.runs.records import Result
from transnet.train.setup import Launch, Setup, open_together


def finished_result(launch: Launch) -> Result | None:
    """The result of a run that is to be resumed, but is finished already.

    Raises:
        ConfigError: if it was trained with other settings or on other data.
    """
    run, config = launch.run, launch.config
    if not config.resume or not run.finished:
        return None
    before = run.settings()
    model = config.model or before.train.model if launch.model is None else CUSTOM
    found = differences(before.train, dataclasses.replace(config, model=model))
    # Data in another place may have the same name but different content.
    place = before.train.data
    if not found and launch.place != place and open_together(launch).fingerprint != before.data.fingerprint:
        found = [f"`data`: {place!r} before, {launch.place!r} now, with other content or splits"]
    if found:
        raise ConfigError(f"{run.path} is finished, with other settings: {'; '.join(found)}", field="resume")
    if launch.world.first:
        run.drop_state()  # a process that was killed may have left it
    say(f"{run.path} is finished; nothing to do", shown=launch.shown)
    return run.result()


def how_to_resume(setup: Setup, done: int) -> str:
    """How far a stopped run got, and the command that resumes it."""
    epochs, steps = divmod(done, setup.feed.steps)
    more = f" and {steps} of {counted(setup.feed.steps, 'step')}" if steps else ""
    how = "the same call, with resume=True"
    if setup.launch.model is None:
        how = f"{command_of(setup.config)} --resume"
        if setup.world.size > 1:
            one_machine = os.environ.get("LOCAL_WORLD_SIZE") == str(setup.world.size)
            how = f"torchrun {f'--nproc-per-node {setup.world.size}' if one_machine else '…'} -m {how}"
    stopped = f"{epochs} of {counted(setup.config.epochs, 'epoch')}{more}"
    return f"stopped after {stopped}; everything is saved. Continue with:\n  {how}"


def command_of(config: TrainConfig) -> str:
    """The command that trains with these settings."""
    return command(config, recipes.settings(config.recipe, config.data))
