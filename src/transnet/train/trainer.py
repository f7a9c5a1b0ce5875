"""Train a run, from its settings to its folder.

    data ─ open_data ─▶ uint8 images on the device ─▶ Step (one epoch = one Plan) ─▶ metrics.jsonl, state/
                                                     └▶ count on val and test        ─▶ model.safetensors, result.json

Everything random is a function of (seed, epoch or step). So a run's state is its weights, momentum and the number of
steps done, and a resumed run ends as the uninterrupted one would have.
"""

import dataclasses
import math
import time
from collections.abc import Iterator
from contextlib import closing, nullcontext

import torch
from torch import Tensor, nn

from transnet.console import say
from transnet.data.augment import Plan, plan, seed_for
from transnet.data.stream import stream
from transnet.errors import ConfigError
from transnet.model import TransNet
from transnet.runs import checkpoint
from transnet.runs.config import TrainConfig, differences
from transnet.runs.folder import CUSTOM
from transnet.runs.provenance import versions
from transnet.runs.records import Cost, EpochEntry, Result, Scores
from transnet.train.device import Autocast, determinism, device_name, find_device, untried_convolutions
from transnet.train.distributed import join
from transnet.train.evaluate import Measured, count, result_of, scores
from transnet.train.interrupt import Interrupt, Stopped
from transnet.train.progress import RunProgress
from transnet.train.state import Resumable, TrainingError
from transnet.train.tensorboard import Curves

CHECK_EVERY = 200  # steps between looks at the losses on a GPU: each waits for the device


def train(
    config: TrainConfig,
    *,
    model: nn.Module | None = None,
    data: str | None = None,
    quiet: bool = False,
    at_once: int = 1,
) -> Result:
    """Train a run, write its result to the run folder and return it.

    Args:
        config: the settings.
        model: a backbone of your own, any module that ends in `nn.Linear`; by default ``config.model`` by name.
        data: where the data lies, for a run that is to keep its name alone; by default ``config.data`` is the place.
        quiet: say nothing and show no progress.
        at_once: runs that share the device, this one among them: its times are not those of a run alone.

    Raises:
        ConfigError: for settings that cannot work, or a folder that cannot be used.
        TrainingError: where the loss is not finite, or memory does not suffice.
        Stopped: after Ctrl-C, when the run's state is saved.
    """
    processes = join(config.device)
    device = find_device(config.device, processes)
    with determinism(config.deterministic or device.type == "cpu", cuda=device.type == "cuda"):
        return Trainer(config, processes, device, model, data=data, quiet=quiet, at_once=at_once).train()


class Trainer(Resumable):
    """A run from its settings to its folder; `train` is the way to use it."""

    _ahead: tuple[int, Plan] | None = None  # the next epoch and its plan

    def train(self) -> Result:
        """Carry the run out; its result."""
        if self.config.resume and self.run.finished:
            return self._already_finished()
        try:
            with self.enough_memory():
                return self._train()
        finally:
            self.run.release()

    def _train(self) -> Result:
        self.prepare()
        if self.config.resume and self.run.finished:  # by the process that was waited for
            return self._already_finished()
        done = self.restore()
        self.took.lap("prepare")
        shown = self.speaks and self.device.type == "cuda"
        say("preparing the step: seconds, or minutes for a network of many layers", shown=shown)
        self.step.prepare()
        self.took.lap("compile")
        self._epochs(done)
        result = self._result()
        if self.world.first:
            result = self.run.finish({k: v.cpu() for k, v in self.net.state_dict().items()}, result)
        self.world.barrier()
        return result

    # ------------------------------------------------------------------------------------------------ before

    def _already_finished(self) -> Result:
        before = self.run.settings()
        model = CUSTOM if self.given is not None else self.config.model or before.train.model
        found = differences(before.train, dataclasses.replace(self.config, model=model))
        # What lies elsewhere may be called the same and be something else.
        place = before.train.data
        if not found and self.place != place and self._open().fingerprint != before.data.fingerprint:
            found = [f"`data`: {place!r} before, {self.place!r} now, with other content or splits"]
        if found:
            raise ConfigError(f"{self.run.path} is finished, with other settings: {'; '.join(found)}", field="resume")
        if self.world.first:
            self.run.drop_state()  # the process may have been killed just before it did so
        say(f"{self.run.path} is finished; nothing to do", shown=self.speaks)
        return self.run.result()

    # ---------------------------------------------------------------------------------------------- training

    def _epochs(self, done: int) -> None:
        """The epochs that are left after ``done`` steps.

        Raises:
            Stopped: where the user asked for it, when the run is saved.
        """
        config, steps = self.config, self.feed.steps
        curves = Curves(self.run.path, config.tensorboard and self.world.first, epochs=done // steps)
        progress = RunProgress(self.net.transforms, config.epochs, steps, done=done / steps, shown=self.speaks)
        with Interrupt() as interrupt, progress as bar:
            for epoch in range(done // steps, config.epochs):
                start = time.perf_counter()
                first = done - epoch * steps
                stopped = self.run_epoch(epoch, first, bar, interrupt)
                done = epoch * steps + (stopped or steps)
                self.check_losses(epoch, stopped or steps)
                elapsed = time.perf_counter() - start
                self.took.add("train", elapsed)
                if stopped and stopped < steps:
                    self.save(done)
                    raise Stopped(self.how_to_go_on(epoch, stopped))
                self.world.copy_from_first(self.net.buffers())  # each has its own batch norm: the first one's is saved
                entry = self._entry(epoch, done, elapsed, (steps - first) / steps)
                bar.epoch(entry)
                curves.add(entry)
                if self.world.first:
                    self.run.add_metrics(entry)
                asked = self.world.any(interrupt.asked, self.device)
                last = epoch + 1 == config.epochs  # to measure may take long, and to write the model may fail
                if asked or last or self.is_due(epoch):
                    try:
                        self.save(done)
                    except checkpoint.CheckpointError as error:
                        if asked or not last:
                            raise
                        say(f"warning: {error}", shown=self.speaks)
                if asked:
                    raise Stopped(self.how_to_go_on(epoch + 1, 0))
            self.check_weights(done)
            curves.close()
            if self.world.any(interrupt.asked, self.device):  # since the last look
                self.save(done)
                raise Stopped(self.how_to_go_on(config.epochs, 0))

    def run_epoch(
        self, epoch: int, first: int = 0, bar: RunProgress | None = None, interrupt: Interrupt | None = None
    ) -> int | None:
        """One epoch from its step ``first``; the number of steps done in it where the user stopped it."""
        config, feed = self.config, self.feed
        drawn = self._plan(epoch)
        self.step.start(drawn, first, epoch * feed.steps + first)
        batches = None
        if not self.resident:
            parts = [feed.positions(k) for k in range(first, feed.steps)]
            batches = stream(
                self.data.train, [drawn.order[part] for part in parts], feed.view.geometry.streamed,
                crops=torch.cat([drawn.crop[part] for part in parts]), workers=config.workers,
                pin=self.device.type == "cuda",
            )  # fmt: skip
        with closing(batches) if batches else nullcontext():
            stopped = self._steps(epoch, first, batches, bar, interrupt)
        if not stopped and self.step.capture and epoch + 1 < config.epochs:  # while the device is still busy
            self._ahead = epoch + 1, self._plan(epoch + 1)
        return stopped

    def _steps(
        self, epoch: int, first: int, batches: Iterator[Tensor] | None, bar: RunProgress | None,
        interrupt: Interrupt | None,
    ) -> int | None:  # fmt: skip
        config, feed = self.config, self.feed
        for k in range(first, feed.steps):
            if batches is not None:
                assert feed.pixels is not None
                pixels = next(batches)
                feed.pixels[: len(pixels)].copy_(pixels, non_blocking=True)
            self.step(k, seed_for(config.seed, "step", epoch * feed.steps + k, self.world.rank))
            if bar is not None:
                bar.step(epoch, k + 1)
            if (k + 1) % CHECK_EVERY == 0:
                self.check_losses(epoch, k + 1)
            # Asking the others waits for the device: not at every step.
            if (self.world.size == 1 or (k + 1) % 50 == 0) and self.world.any(
                bool(interrupt and interrupt.asked), self.device
            ):
                return k + 1
        return None

    def _plan(self, epoch: int) -> Plan:
        if self._ahead is not None and self._ahead[0] == epoch:
            return self._ahead[1]
        return plan(
            len(self.data.train), seed=self.config.seed, epoch=epoch, batches=self.feed.steps, flip=self.flip,
            mixup=self.config.mixup, cutmix=self.config.cutmix,
        )  # fmt: skip

    def _entry(self, epoch: int, done: int, elapsed: float, share: float) -> EpochEntry:
        """The epoch's line of ``metrics.jsonl``."""
        losses, correct = self.step.losses.clone(), self.step.correct.clone()
        loss = (self.world.sum(losses) * self.feed.shares).sum(0) / self.world.size
        accuracy = self.world.sum(correct) / len(self.data.train)
        every, begun = self.config.evaluate_every, time.perf_counter()
        tested: dict[str, Scores] = {}
        if (every and (epoch + 1) % every == 0) or epoch + 1 == self.config.epochs:
            for name, split in (("val", self.data.val), ("test", self.data.test)):
                if split is not None:
                    sums = self._count(self.net, name, flip=False, autocast=self.autocast)
                    tested[name] = scores(sums[0], self.net.transforms)
        self.took.add("evaluate", time.perf_counter() - begun)
        return EpochEntry(
            epoch=epoch + 1,
            step=done,
            lr=self.rates[done - 1].item(),
            loss=tuple(loss.tolist()),
            accuracy=tuple(accuracy.tolist()),
            seconds=elapsed,
            images_per_second=len(self.data.train) * share / elapsed,
            val=tested.get("val"),
            test=tested.get("test"),
        )

    # ----------------------------------------------------------------------------------------------- after

    def _result(self) -> Result:
        """What ``result.json`` holds; stopped meanwhile, the run is saved as it is after its last epoch."""
        try:
            with Interrupt(at_once=True):
                return self._described()
        except KeyboardInterrupt:
            done = self.config.epochs * self.feed.steps
            with Interrupt():  # or a second signal would cut the saving off
                if self.world.size == 1 and not checkpoint.is_saved(self.run.state, done):
                    self.save(done)
            raise Stopped(self.how_to_go_on(self.config.epochs, 0)) from None

    def _described(self) -> Result:
        self.warn_of_loss()
        say("measuring on the test and training set", shown=self.speaks)
        begun = time.perf_counter()
        measured = self._measure()
        self.took.add("evaluate", time.perf_counter() - begun)
        if not math.isfinite(loss := measured.test.full.loss or 0.0):
            raise TrainingError(
                f"the loss on the test set is {loss}, though it was finite in training; {self.what_to_try()}"
            )
        seconds = self.took.parts
        images, m = len(self.data.train) * self.config.epochs, len(self.net.transforms)
        return Result(
            **vars(measured),
            cost=Cost(
                train_passes=images * m,
                predict_passes=m,
                parameters=sum(p.numel() for p in self.net.parameters()),
                images_per_second=images / seconds["train"],
            ),
            config=self.content,
            seconds=self.took.all,
            train_seconds=seconds["train"],
            compile_seconds=seconds["compile"],
            evaluate_seconds=seconds["evaluate"],
            prepare_seconds=seconds["prepare"],
            versions=versions(),
            device=device_name(self.device),
            command=self._command(self.content.train),
            commit=self.commit,
            processes=self.world.size,
            at_once=self.at_once,
            precision=self.precision,
        )

    def _count(self, network: TransNet, name: str, *, flip: bool, autocast: Autocast = nullcontext) -> Tensor:
        """What `count` says of the split of that name, over all processes."""
        split = {"test": self.data.test, "val": self.data.val, "train": self.data.train}[name]
        assert split is not None
        images = self.feed.images if name == "train" else None
        with untried_convolutions():
            batches = self.look(name, split, images)
            return self.world.sum(count(network, batches, len(self.data.classes), flip=flip, autocast=autocast))

    def _measure(self) -> Measured:
        """Without autocast, whatever the run trained in; torch lets a GPU's convolutions round to TF32 all the same."""
        net = self.net
        test = self._count(net, "test", flip=self.flip)
        val = self._count(net, "val", flip=self.flip) if self.data.val is not None else None
        identity = net.keep("r0") if "r0" in net.transforms else None
        train = self._count(identity, "train", flip=False)[0] if identity else None
        classes = self.data.classes
        n_train = torch.bincount(self.data.train.labels, minlength=len(classes)).tolist()
        return result_of(net.transforms, test, val, train, classes=classes, n_train=n_train)
