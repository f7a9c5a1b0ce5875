"""Prepared trainers, for the measurements of training speed."""

import tempfile
from argparse import Namespace
from pathlib import Path

from transnet import d4
from transnet.data.augment import plan_epoch
from transnet.runs.config import TrainConfig
from transnet.train.setup import Launch, prepare
from transnet.train.trainer import Trainer


def trainer(args: Namespace, m: int, batch: int, *, data: str | None = None, **settings: object) -> Trainer:
    """A trainer of m heads that is ready for its first step; ``--quick`` takes a small network."""
    small = {"model": "resnet8-small"} if args.quick else {}
    config = TrainConfig.for_data(
        data or args.data, str(Path(tempfile.mkdtemp()) / "run"), evaluate_every=0, tensorboard=False,
        device=args.device, transforms=",".join(d4.NAMES[:m]), batch_size=batch, **{**small, **settings},
    )  # fmt: skip
    made = Trainer(prepare(Launch.of(config, quiet=True)))
    if problem := made.step.prepare():
        raise RuntimeError(f"the step could not be compiled: {problem}")
    return made


def start_epoch(trainer: Trainer) -> None:
    """Draw an epoch's order and augmentation, so that single steps can be run."""
    feed = trainer.setup.feed
    trainer.step.start(plan_epoch(len(feed.order), seed=0, epoch=0, batches=feed.steps, flip=True), 0, 0)
