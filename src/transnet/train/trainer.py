"""Train a run, from its settings to its folder.

settings ─ prepare ─▶ Setup ─▶ Trainer ─▶ Step, once per batch     ─▶ state/ (checkpoints)
                                       ├▶ evaluation, once per epoch ─▶ metrics.jsonl
                                       └▶ evaluation at the end      ─▶ model.safetensors, result.json
"""

import time
from contextlib import closing

import torch
from torch import Tensor, nn

from transnet.allocator import allocator_settings, release_memory
from transnet.console import say
from transnet.data.augment import Plan, plan_epoch, seed_for
from transnet.model import TransNet
from transnet.runs import checkpoint
from transnet.runs.config import TrainConfig
from transnet.runs.provenance import command, versions
from transnet.runs.records import Cost, EpochEntry, Result, Scores
from transnet.train.device import autocast_for, determinism, device_name, no_cudnn_benchmark
from transnet.train.evaluate import score_totals, scores, scores_with_classes
from transnet.train.failures import check_losses, check_test_loss, check_weights, out_of_memory_advice, warn_if_diverged
from transnet.train.feed import eval_batches
from transnet.train.interrupt import Interrupt, Stopped
from transnet.train.past_targets import PastTargets
from transnet.train.progress import Curves, RunProgress
from transnet.train.setup import Launch, Setup, prepare
from transnet.train.state import TrainState, finished_result, how_to_resume
from transnet.train.step import Step


def train(
    config: TrainConfig, *, model: nn.Module | None = None, data: str | None = None, quiet: bool = False,
    at_once: int = 1, set_threads: bool = False,
) -> Result:  # fmt: skip
    """Train a run, write its result to the run folder and return it.

    Args:
        config: the settings.
        model: a backbone of your own, any module that `TransNet` takes, instead of the one that ``config`` names.
        data: where the data is, if ``config.data`` should only be its name.
        quiet: print nothing.
        at_once: number of runs that share the device. It is recorded, because it makes each of them slower.
        set_threads: choose the number of threads, for a process that does nothing else.
    """
    launch = Launch.of(config, model=model, data=data, quiet=quiet, at_once=at_once, set_threads=set_threads)
    kind = launch.device.type
    with determinism(config.deterministic or kind == "cpu", cuda=kind == "cuda"), out_of_memory_advice(launch):
        try:
            if found := finished_result(launch):
                return found
            setup = prepare(launch)
            # Another process may have finished the run while this one waited for it.
            return finished_result(launch) or Trainer(setup).train()
        finally:
            launch.run.release()


class Trainer:
    """Carry out a run that `prepare` has set up."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        config, cuda, distributed = setup.config, setup.device.type == "cuda", setup.world.size > 1
        n, classes, weight = len(setup.data.train), len(setup.data.classes), config.past_targets
        self._past = PastTargets(n, classes, weight, len(setup.rates), setup.feed.labels.device) if weight else None
        self.step = Step(
            setup.net, setup.optimizer, setup.feed, setup.objective, setup.rates,
            classes=classes, autocast=autocast_for(setup.precision, setup.device),
            compile=config.compile and cuda, capture=config.cuda_graph and cuda and not distributed,
            distributed=distributed, past=self._past,
        )  # fmt: skip
        self.state = TrainState(setup, self.step)
        self._plans: dict[int, Plan] = {}  # by epoch; only the plan that was drawn last is kept
        self._splits = ("test",) if setup.data.val is None else ("test", "val")
        self._final: dict[str, Tensor] = {}  # the last epoch's counts of every split, if no autocast rounded them

    def train(self) -> Result:
        """Train the epochs that are left, evaluate, and write weights and result to the run's folder."""
        setup, stopwatch = self.setup, self.setup.stopwatch
        self.state.restore()
        stopwatch.parts["prepare"] += time.perf_counter() - stopwatch.started
        say("preparing the training step, which may take minutes", shown=setup.shown and self.step.capture)
        with stopwatch.measure("compile"):
            if problem := self.step.prepare():
                say(f"warning: training goes on without compiling, which is slower: {problem}", shown=setup.shown)
        self._train_epochs()
        result = self._evaluate_or_stop()
        if setup.world.is_primary:
            weights = {name: tensor.cpu() for name, tensor in setup.net.state_dict().items()}
            result = setup.run.finish(weights, result)
        setup.world.barrier()
        return result

    def _train_epochs(self) -> None:
        setup, state, steps = self.setup, self.state, self.setup.feed.steps
        epochs, world = setup.config.epochs, setup.world
        curves = Curves(setup.run.path, setup.config.tensorboard and world.is_primary, epochs=state.done // steps)
        progress = RunProgress(epochs, steps, done=state.done / steps, shown=setup.shown)
        with Interrupt() as interrupt, progress.bar:
            for epoch in range(state.done // steps, epochs):
                start, first_step = time.perf_counter(), state.done - epoch * steps
                done = self.train_epoch(epoch, first_step, progress, interrupt)
                state.done = epoch * steps + done
                if self._past:
                    self._past.gather(setup.feed, world)
                check_losses(setup, self.step.losses[:done], epoch)
                seconds = time.perf_counter() - start
                setup.stopwatch.parts["train"] += seconds
                if done < steps:
                    self._stop()
                world.broadcast(setup.net.buffers())  # batch norm differs between processes; the first one's is saved
                entry = self._entry(epoch, seconds, fraction=(steps - first_step) / steps)
                progress.epoch(entry)
                curves.add(entry)
                if world.is_primary:
                    setup.run.add_metrics(entry)
                stop = world.any(interrupt.requested, setup.device)
                last = epoch + 1 == epochs  # evaluation may take long, and writing the model may fail
                if not stop and (last or state.checkpoint_is_due(epoch)):
                    state.save(required=not last)
                if stop:
                    self._stop()
            check_weights(setup, state.done)
            curves.close()
            if world.any(interrupt.requested, setup.device):  # since the last epoch's check
                self._stop()

    def train_epoch(
        self, epoch: int, first_step: int = 0, progress: RunProgress | None = None, interrupt: Interrupt | None = None
    ) -> int:
        """Train one epoch from ``first_step`` on, and return how many of its steps are done: all unless stopped."""
        setup, feed, world = self.setup, self.setup.feed, self.setup.world
        epoch_plan = self.plan_of(epoch)
        self.step.start(epoch_plan, first_step, epoch * feed.steps + first_step)
        with closing(feed.steps_from(first_step, setup.data.train, epoch_plan, workers=setup.config.workers)) as steps:
            for k in steps:
                self.step(k, seed_for(setup.config.seed, "step", epoch * feed.steps + k, world.rank))
                if progress is not None:
                    progress.step(epoch, k + 1)
                if (k + 1) % 200 == 0:  # not more often, because it waits for the device
                    check_losses(setup, self.step.losses[: k + 1], epoch)
                # With several processes, `World.any` waits for the device, so they do not call it in every step.
                check = interrupt is not None and (world.size == 1 or (k + 1) % 50 == 0)
                if interrupt and check and world.any(interrupt.requested, setup.device):
                    return k + 1
        if self.step.capture and epoch + 1 < setup.config.epochs:
            self.plan_of(epoch + 1)  # draw it while the device is still busy
        return feed.steps

    def plan_of(self, epoch: int) -> Plan:
        """The order and the augmentation of an epoch's images."""
        if epoch not in self._plans:
            setup, config = self.setup, self.setup.config
            self._plans = {epoch: plan_epoch(
                len(setup.data.train), seed=config.seed, epoch=epoch, batches=setup.feed.steps,
                flip=setup.settings.data.flip, rotate=config.rotations, mixup=config.mixup, cutmix=config.cutmix,
                mix_share=config.mix_share,
            )}  # fmt: skip
        return self._plans[epoch]

    def _stop(self) -> None:
        self.state.save()
        raise Stopped(how_to_resume(self.setup, self.state.done))

    def _entry(self, epoch: int, seconds: float, *, fraction: float) -> EpochEntry:
        """The line of ``metrics.jsonl`` for an epoch, a ``fraction`` of which was trained since the run was resumed."""
        setup, step, world = self.setup, self.step, self.setup.world
        terms = setup.feed.mean(world.mean(step.terms)) if len(setup.objective.names) > 1 else torch.zeros(0)
        accuracy = world.sum(step.correct) / len(setup.data.train)
        every, found = setup.config.evaluate_every, dict[str, Scores]()
        last = epoch + 1 == setup.config.epochs
        if (every and (epoch + 1) % every == 0) or last:
            final = last and setup.precision == "fp32"
            with self.step.autocast():
                sums = self._score_splits(flip=final and setup.settings.data.flip)
            self._final = sums if final else {}
            found = {split: scores(rows[0], setup.net.transforms) for split, rows in sums.items()}
        return EpochEntry(
            epoch=epoch + 1, step=self.state.done, lr=setup.rates[self.state.done - 1].item(),
            loss=tuple(setup.feed.mean(world.mean(step.losses)).tolist()), accuracy=tuple(accuracy.tolist()),
            seconds=seconds, images_per_second=len(setup.data.train) * fraction / seconds,
            terms=dict(zip(setup.objective.names, terms.tolist(), strict=False)),
            val=found.get("val"), test=found.get("test"),
        )  # fmt: skip

    def _score_splits(self, *, flip: bool) -> dict[str, Tensor]:
        release_memory()
        with self.setup.stopwatch.measure("evaluate"):
            return {split: self._score_totals(split, flip=flip) for split in self._splits}

    def _score_totals(self, split: str, *, flip: bool = False, net: TransNet | None = None) -> Tensor:
        """The `score_totals` of a split, over all processes."""
        setup, data = self.setup, self.setup.data
        batches = eval_batches(
            getattr(data, split), setup.images.get(split), setup.feed.view, setup.world, setup.config.workers
        )
        with no_cudnn_benchmark():
            return setup.world.sum(score_totals(net or setup.net, batches, len(data.classes), flip=flip))

    def _evaluate_or_stop(self) -> Result:
        """Evaluate. If the user stops it, save the run as it was after its last epoch."""
        try:
            with Interrupt(immediate=True):
                return self._evaluate()
        except KeyboardInterrupt:
            with Interrupt():  # a second signal must not interrupt the saving
                if self.setup.world.size == 1 and not checkpoint.is_saved(self.setup.run.state, self.state.done):
                    self.state.save()
            raise Stopped(how_to_resume(self.setup, self.state.done)) from None

    def _evaluate(self) -> Result:
        """Evaluate the network without autocast. (torch still rounds a GPU's convolutions to TF32.)"""
        setup, net, data, names = self.setup, self.setup.net, self.setup.data, self.setup.net.transforms
        flip = setup.settings.data.flip
        warn_if_diverged(setup, self.step.losses)
        sums = self._final or self._score_splits(flip=flip)
        train = ratio = None
        if "r0" in names and (setup.config.generalization or setup.config.recipe in ("fast", "paper")):
            with setup.stopwatch.measure("evaluate"):
                train = scores(self._score_totals("train", net=net.keep("r0"))[0], ("r0",)).pruned
        n_train = torch.bincount(data.train.labels, minlength=len(data.classes)).tolist()
        plain = {split: scores_with_classes(views[0], names, data.classes, n_train) for split, views in sums.items()}
        flipped = {split: scores(views[1], names, passes=2) for split, views in sums.items() if flip}
        test = plain["test"]
        check_test_loss(setup, test.full.loss)
        if test.pruned and test.pruned.loss is not None and train and train.loss:
            ratio = test.pruned.loss / train.loss
        images, parts = len(data.train) * setup.config.epochs, setup.stopwatch.parts
        cost = Cost(
            train_passes=images * len(names), predict_passes=len(names),
            parameters=sum(p.numel() for p in net.parameters()), images_per_second=images / parts["train"],
            train_flops=setup.flops[0], predict_flops=setup.flops[1],
        )  # fmt: skip
        return Result(
            test=test, test_flip=flipped.get("test"), val=plain.get("val"), val_flip=flipped.get("val"),
            train=train, generalization=ratio, cost=cost,
            seconds=setup.stopwatch.total, prepare_seconds=parts["prepare"], compile_seconds=parts["compile"],
            train_seconds=parts["train"], evaluate_seconds=parts["evaluate"],
            config=setup.settings, command=command(setup.settings.train), commit=self.state.commit,
            versions=versions(), device=device_name(setup.device), precision=setup.precision,
            processes=setup.world.size, at_once=setup.at_once, threads=torch.get_num_threads(),
            allocator=allocator_settings(),
        )  # fmt: skip
