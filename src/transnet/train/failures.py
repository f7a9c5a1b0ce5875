"""Errors of training, and the checks that raise them."""

import math
from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from transnet.console import counted, say
from transnet.errors import OperationError
from transnet.runs import checkpoint
from transnet.train.device import device_name, is_out_of_memory
from transnet.train.progress import loss_text
from transnet.train.setup import Launch, Setup


class TrainingError(OperationError):
    """Raised when training cannot continue. The message gives the step and what to try."""


def check_losses(setup: Setup, losses: Tensor, epoch: int) -> None:
    """Raise if one of an epoch's losses so far, (steps, m) of this process, is not finite; ``epoch`` counts from 0."""
    means = setup.world.mean(losses).mean(1)  # all processes find the same step, and raise
    if math.isfinite(means.sum().item()):
        return
    bad = int((~means.isfinite()).nonzero()[0].item())
    at = epoch * setup.feed.steps + bad
    place = f"step {at} (epoch {epoch + 1}, step {bad + 1} of {setup.feed.steps})"
    _fail(setup, f"the loss is {means[bad].item()} at {place}, learning rate {setup.rates[at].item():.4g}")


def check_weights(setup: Setup, done: int) -> None:
    """Raise if the weights are not finite after ``done`` steps: the last loss was computed before its update."""
    if not nn.utils.get_total_norm(p.detach() for p in setup.net.parameters()).isfinite():
        rate = setup.rates[done - 1].item()
        _fail(setup, f"the weights are not finite after step {done - 1}, learning rate {rate:.4g}")


def check_test_loss(setup: Setup, loss: float | None) -> None:
    """Raise if the loss on the test set is not finite."""
    if loss is not None and not math.isfinite(loss):
        _fail(setup, f"the loss on the test set is {loss}, though it was finite in training")


def _fail(setup: Setup, problem: str) -> None:
    good = f"last good checkpoint: {checkpoint.last_good(setup.run.state)}"
    raise TrainingError(f"{problem}; {good}. Try a smaller `lr`, or `precision` fp32, in another `out`")


def warn_if_diverged(setup: Setup, losses: Tensor) -> None:
    """Print a warning if the losses of the last epoch, (steps, m), are finite but far above that of guessing."""
    loss = setup.feed.mean(setup.world.mean(losses)).mean().item()
    chance = math.log(len(setup.data.classes))
    if loss > 2 * chance:
        found = f"{loss_text(loss)}, far above that of guessing, {chance:.2f}"
        say(
            f"warning: the last epoch's training loss is {found}: try a smaller `lr`, in another `out`",
            shown=setup.shown,
        )


@contextmanager
def out_of_memory_advice(launch: Launch) -> Iterator[None]:
    """Turn an out-of-memory error within the block into a message that states what needs less."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        batch, heads, world = launch.config.batch_size, len(launch.config.names), launch.world
        each = f" in {world.size} processes" if world.size > 1 else ""
        what = "A smaller `batch_size`, `image_size` or `model`, or fewer `transforms`, would need less"
        if launch.at_once > 1:
            what = f"Up to {launch.at_once} runs share the device: `jobs` 1 gives all of it to each"
        raise TrainingError(
            f"out of memory on {device_name(launch.device)}. A step puts {batch * heads:,} images through the network "
            f"at once{each}: a batch of {batch} times {counted(heads, 'head')}. {what}"
        ) from error
