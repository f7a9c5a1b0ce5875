"""A run's parts, built from its settings: data, network, feed and step."""

import copy
import dataclasses
import os
from pathlib import Path

import torch
from torch import nn

from transnet import backbones, d4
from transnet.console import counted, listed, say
from transnet.data import DataSet, open_data
from transnet.data.augment import View, seed_for
from transnet.data.catalog import NAMES
from transnet.errors import ConfigError, DataError, FileError
from transnet.invariance import kernels
from transnet.model import TransNet
from transnet.runs import recipes
from transnet.runs.config import TrainConfig
from transnet.runs.description import Description
from transnet.runs.folder import CUSTOM, Run
from transnet.runs.provenance import command, commit, describe
from transnet.train.device import autocast_for, device_name, fits_on_device, is_for_want_of_memory, precision_on, sgd
from transnet.train.distributed import World, restarts
from transnet.train.eval_loader import Looker
from transnet.train.evaluate import evaluating
from transnet.train.objective import objective_of
from transnet.train.schedule import learning_rates
from transnet.train.step import Feed, Step, training_module
from transnet.train.stopwatch import Took
from transnet.train.user_warnings import of_heads, of_settings

LARGE_ON_CPU = 2e6  # parameters; the small ResNets have up to 300,000


class Prepared:
    """The parts of a run, by name: ``data``, ``net``, ``feed``, ``step``, ``look``, ``optimizer``, ``rates``."""

    def __init__(
        self, config: TrainConfig, processes: World, device: torch.device, model: nn.Module | None, *,
        data: str | None, quiet: bool, at_once: int = 1,
    ) -> None:  # fmt: skip
        names = d4.parse(config.transforms)  # a mistake there is said before anything is read
        check_apart(config.out, data or config.data)
        if config.out != config.out.encode(errors="replace").decode():  # the weights' format could not be written there
            raise ConfigError(f"the name of {config.out!r} is not UTF-8; give another folder", field="out")
        self.world, self.device, self.quiet = processes, device, quiet
        self.speaks = processes.first and not quiet
        # Not every node counts a restart.
        resume = processes.any(config.resume or restarts() > 0, device)
        self.config = dataclasses.replace(config, resume=resume, transforms=",".join(names))
        self.objective = objective_of(self.config)
        self.run = Run(config.out)
        self.given, self.at_once = model, at_once
        self.place = data or config.data
        self.took = Took()
        self.commit = commit()  # now: while the run trains, others may come

    def prepare(self) -> None:
        """Open the data, build the network and the step, and only then begin the run's folder."""
        config = self.config
        cuda = self.device.type == "cuda"
        self.data = data = self._open()
        name = config.model or recipes.default_model(data.name, image_size=data.image_size, channels=data.channels)
        self.config = config = dataclasses.replace(config, model=name if self.given is None else CUSTOM)
        self.content = describe(config, data)
        try:
            Description.of_run(self.content, "the run")
        except FileError as error:
            raise ConfigError(f"nothing could open this run once it is trained: {error.message}") from None
        self.flip = self.content.data.flip
        self.net = self._network(name)
        if self.world.first:  # a mistake in the settings must not leave a folder behind
            self.run.begin(self.content, resume=config.resume)
        self.world.barrier()
        for remark in (*of_heads(self.net.transforms, flip=self.flip), *of_settings(config, data)):
            say(remark, shown=self.speaks)
        size = sum(parameter.numel() for parameter in self.net.parameters())
        if not cuda and self.given is None and size > LARGE_ON_CPU:
            say(f"note: {name} is slow on a CPU; `model` resnet8-small is quick, to begin with", shown=self.speaks)
        self.precision = precision_on(self.device, config.precision)
        self.autocast = autocast_for(self.precision, self.device)
        geometry = dataclasses.replace(data.geometry, pad=self.content.data.pad)
        view = View.create(geometry, mean=data.mean, std=data.std, device=self.device)
        self.resident = fits_on_device(data, config.storage, self.device)
        say(self._introduction(), shown=self.speaks)
        images = data.train.resident(geometry.stored, progress=self.speaks).to(self.device) if self.resident else None
        mixes = bool(config.mixup or config.cutmix)
        self.feed = Feed(images, data.train.labels, view, config.batch_size, self.world, self.device, mixes=mixes)
        self.look = Looker(
            view, self.world, self.device, resident=self.resident, workers=config.workers, progress=self.speaks
        )
        self.rates = learning_rates(config, self.feed.steps)
        self.optimizer = sgd(self.net, config, self.device)
        together = self.world.size > 1
        self.step = Step(
            self.net,
            self.optimizer,
            self.feed,
            self.objective,
            self.rates,
            classes=len(data.classes),
            autocast=self.autocast,
            compile=config.compile and cuda,
            capture=config.cuda_graph and cuda and not together,
            module=nn.parallel.DistributedDataParallel(training_module(self.net, self.objective)) if together else None,
        )

    def _open(self) -> DataSet:
        config = self.config

        def opened() -> DataSet:
            return open_data(
                self.place, image_size=config.image_size,
                val_fraction=config.val_fraction, train_fraction=config.train_fraction,
                on_bad_image=config.on_bad_image, label_column=config.label_column, progress=self.speaks,
            )  # fmt: skip

        # The first process fills the caches, the others read them.
        if self.world.size == 1:
            return opened()
        if self.world.first:
            data = opened()
        self.world.barrier()
        if not self.world.first:
            data = opened()
        own = torch.tensor(list(bytes.fromhex(data.fingerprint)), device=self.device)
        firsts = own.clone()
        self.world.copy_from_first([firsts])
        if self.world.any(not torch.equal(own, firsts), self.device):  # such as by a disk that failed for a moment
            raise DataError(f"{self.place}: the processes do not all see the same images; start again")
        return data

    def _network(self, name: str) -> TransNet:
        config, data = self.config, self.data
        # Backbone first: base and TransNet of one seed start from the same one.
        torch.manual_seed(seed_for(config.seed, "init"))
        model = self.given
        if model is None:
            if config.pretrained:
                say(f"{name}: getting its pretrained weights", shown=self.speaks)
            model = backbones.create(
                name, num_classes=len(data.classes), in_channels=data.channels, image_size=data.image_size,
                pretrained=config.pretrained,
            )  # fmt: skip
        if config.sync_bn:
            if self.device.type != "cuda" or self.world.size == 1:
                raise ConfigError("needs several GPU processes (torchrun); leave it out here", field="sync_bn")
            model = nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(model))  # the caller's stays as it is
        net = TransNet(model, config.transforms, heads=config.heads, init=config.init, bn=config.bn).to(self.device)
        if config.channels_last and self.device.type == "cuda":
            net = net.to(memory_format=torch.channels_last)
        if not model.training:  # otherwise single layers may be in evaluation mode for good, such as frozen batch norm
            net.train()
        with evaluating(net):
            self._try(net, 2, "model", f"{name} does not work on {data.image_size}×{data.image_size} images")
        if config.invariance_weight and not kernels(net.backbone):
            what = name if self.given is None else type(self.given).__name__
            raise ConfigError(f"{what} has no square kernels larger than 1×1; leave it out", field="invariance_weight")
        left = len(data.train) % config.batch_size
        norms = any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in net.modules())
        if norms and 0 < (left or config.batch_size) < 2 * self.world.size:  # some process would have a single image
            before = copy.deepcopy(dict(net.named_buffers()))
            few = f"leaves {left} to the last step; change it" if left else "is too few a step; take more"
            self._try(net, 1, "batch_size", f"{config.batch_size} {few}")
            for key, buffer in net.named_buffers():
                if key in before:
                    buffer.copy_(before[key])
        return net

    def _try(self, net: TransNet, n: int, field: str, complaint: str) -> None:
        """A made-up batch, so that a model that does not fit the images is a message and not a traceback."""
        data = self.data
        own = torch.Generator().manual_seed(0)  # so that the run's random numbers stay as they are
        images = torch.rand(n, data.channels, data.image_size, data.image_size, generator=own).to(self.device)
        try:
            with torch.no_grad():
                net(images)
        except (TypeError, ValueError, RuntimeError, AssertionError) as error:
            if is_for_want_of_memory(error):
                raise
            raise ConfigError(f"{complaint}: {error}", field=field) from error

    def _introduction(self) -> str:
        config, data = self.config, self.data
        kept = "in memory" if self.device.type == "cpu" else "on the device"
        where = kept if self.resident else f"streamed by {counted(config.workers, 'worker')}"
        skipped = (
            f", {counted(len(data.skipped), 'bad image')} left out ({listed(data.skipped, 10)})" if data.skipped else ""
        )
        val = f", {len(data.val):,} for validation" if data.val else ""
        seen = f"{'' if data.square else 'cut to '}{data.image_size}×{data.image_size}"
        pad = self.content.data.pad
        varied = [*([f"padded by {pad}"] if pad else []), "flipped left-right" if self.flip else "not flipped"]
        return (
            f"{data.name}: {counted(len(data.train), 'training image')}{val}, {len(data.test):,} for the test, "
            f"{len(data.classes)} classes, {seen}, {where}, {' and '.join(varied)}{skipped}\n"
            f"{config.model}, heads {config.transforms}, {counted(config.epochs, 'epoch')} "
            f"of batch {config.batch_size}, seed {config.seed}, on {device_name(self.device)}"
        )

    def _command(self, config: TrainConfig) -> str:
        return command(config, recipes.settings(config.recipe, config.data))


def check_apart(out: str, data: str) -> None:
    """A run inside a folder of class folders would be one of them, without images, for whoever opens it next."""
    folder = os.path.expanduser(data)
    inside = os.path.isdir(folder) and Path(os.path.realpath(out)).is_relative_to(os.path.realpath(folder))
    if inside and data not in NAMES:
        raise ConfigError(f"{out} lies in the data, {data}; give a folder outside of it", field="out")
