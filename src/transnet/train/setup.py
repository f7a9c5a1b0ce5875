"""Build the parts of a run from its settings: data, network, feed and optimizer."""

import copy
import dataclasses
import os
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from transnet import backbones, d4
from transnet.console import counted, listed, say
from transnet.data import DataSet, open_data
from transnet.data.augment import View, seed_for
from transnet.data.catalog import DATASETS
from transnet.errors import ConfigError, DataError, FileError
from transnet.inputs import Transform
from transnet.invariance import kernels
from transnet.model import TransNet
from transnet.runs import own_transforms, provenance, recipes
from transnet.runs.config import TrainConfig
from transnet.runs.description import Description
from transnet.runs.folder import CUSTOM, Run
from transnet.runs.records import RunSettings
from transnet.train import device as devices
from transnet.train.distributed import World, join, restarts
from transnet.train.evaluate import evaluating
from transnet.train.feed import Feed
from transnet.train.objective import Objective, build_objective
from transnet.train.optim import build_optimizer, learning_rates, preserved
from transnet.train.past_targets import check_memory
from transnet.train.progress import Stopwatch
from transnet.train.step import Flops, count_flops
from transnet.train.user_warnings import setup_warnings


@dataclass(frozen=True)
class Launch:
    """The arguments of `transnet.train.trainer.train`, checked, with the device and the processes that it runs on."""

    config: TrainConfig  # with the transforms parsed
    run: Run
    world: World
    device: torch.device
    model: nn.Module | None  # a backbone of the user's own; None for the one that ``config`` names
    data_path: str  # where the data is; ``config.data`` may be its name only
    shown: bool  # whether this process prints messages
    at_once: int  # runs that share the device
    set_threads: bool  # whether to choose the number of threads of this process
    objective: Objective  # the terms of the loss
    transforms: tuple[Transform, ...]  # of the heads, with the functions of those of the user's own

    @classmethod
    def of(
        cls, config: TrainConfig, *, model: nn.Module | None = None, data: str | None = None, quiet: bool = False,
        at_once: int = 1, set_threads: bool = False,
    ) -> "Launch":  # fmt: skip
        """Find the device and the other processes, and check what can be checked before any data is read."""
        data_path, run = data or config.data, Run(config.out)
        check_out_not_in_data(config.out, data_path)
        if config.out != config.out.encode(errors="replace").decode():  # safetensors could not write there
            raise ConfigError(f"the name of {config.out!r} is not UTF-8; give another folder", field="out")
        world = join(config.device)
        device = devices.find_device(config.device, world)
        if config.precision == "bf16" and device.type == "cpu" and not devices.has_bf16(device):
            raise ConfigError("this processor only emulates bf16, which is slow; give fp32", field="precision")
        resume = world.any(config.resume or restarts() > 0, device)  # not every node counts a restart
        recorded = run.settings().train.transform if resume and run.config.exists() else ()
        transforms = own_transforms.with_functions(config.names, config.transform, recorded=recorded, source=config.out)
        config = dataclasses.replace(config, resume=resume, transforms=",".join(config.names))
        objective = build_objective(config)
        return cls(
            config, run, world, device, model, data_path, world.is_primary and not quiet, at_once, set_threads,
            objective, transforms,
        )  # fmt: skip


@dataclass(frozen=True)
class Setup(Launch):
    """Everything that a run needs to train. Its ``config`` always names the model, unlike that of `Launch`."""

    settings: RunSettings  # the content of config.json, with what ``auto`` chose
    data: DataSet
    images: dict[str, Tensor]  # the stored images of each split on the device; empty if they are streamed
    net: TransNet  # on the device
    precision: str  # fp32 or bf16
    feed: Feed
    optimizer: torch.optim.Optimizer
    rates: Tensor  # the learning rate of every step of the run
    stopwatch: Stopwatch  # started when the setup began
    commit: str | None  # of the source code, if known
    flops: Flops


def prepare(launch: Launch) -> Setup:
    """Open the data, build the network, begin the run's folder and load the images, in this order.

    So a mistake in the settings leaves no folder behind. The folder stays locked until `Run.release`.
    """
    stopwatch, commit = Stopwatch(), provenance.commit()  # now, because it may change while the run trains
    config, world, device, shown = launch.config, launch.world, launch.device, launch.shown
    if config.resume and launch.run.config.exists():  # auto keeps what was chosen when the run began
        begun, names = launch.run.settings().train, ("precision", "channels_last")
        kept = {name: getattr(begun, name) for name in names if getattr(config, name) == "auto"}
        config = dataclasses.replace(config, **kept)
    precision, auto = devices.precision_for(device, config.precision), config.precision == "auto"
    data = open_together(launch)
    height, width = data.geometry.size
    if height != width and (swaps := [name for name in config.rotations if d4.swaps_sides(name)]):
        raise ConfigError(f"{swaps[0]} needs square images; {height}×{width} allows r0 r2 m0 m2", field="rotate")
    if config.past_targets:
        check_memory(len(data.train), len(data.classes), device)
    name = config.model or recipes.default_model(data.name, image_size=data.image_size, channels=data.channels)
    config = dataclasses.replace(config, model=name if launch.model is None else CUSTOM)
    settings = provenance.run_settings(config, data)
    try:
        Description.of_run(settings, "these settings")
    except FileError as error:
        raise ConfigError(f"the finished run could not be loaded: {error.message}") from None
    net = _build_network(launch, name, data)
    channels_last = devices.use_channels_last(config.channels_last, device, net, data.channels)
    if channels_last:
        net = net.to(memory_format=torch.channels_last)
    recorded = dataclasses.replace(settings.train, channels_last="yes" if channels_last else "no")
    recorded = dataclasses.replace(recorded, precision=precision) if auto else recorded
    settings = dataclasses.replace(settings, train=recorded)
    pixels = config.batch_size * len(net.transforms) * data.image_size**2  # of a step
    if launch.set_threads:
        devices.set_threads(net, pixels)
    if world.is_primary:
        launch.run.begin(settings, resume=config.resume)
    world.barrier()
    for warning in setup_warnings(config, data, flip=settings.data.flip):
        say(warning, shown=shown)
    size = sum(parameter.numel() for parameter in net.parameters())
    if device.type == "cpu" and launch.model is None and size > 2e6:  # the small ResNets have up to 300,000
        say(f"note: {name} is slow on a CPU; `model` resnet8-small is fast, for a first try", shown=shown)
    if auto and not devices.is_tiny(net, pixels) and devices.gains_from_bf16(net, device):
        say("note: this processor can compute in bf16, which is faster here: `precision` bf16", shown=shown)
    geometry = dataclasses.replace(data.geometry, pad=settings.data.pad)
    view = View.create(geometry, mean=data.mean, std=data.std, device=device)
    view = dataclasses.replace(view, channels_last=channels_last)
    resident = devices.fits_on_device(data, config.storage, device)
    say(_introduction(config, settings, data, device, resident=resident), shown=shown)
    splits = {"train": data.train, "val": data.val, "test": data.test} if resident else {}
    images = {
        part: split.resident(geometry.stored, progress=shown).to(device) for part, split in splits.items() if split
    }
    feed = Feed(
        images.get("train"), data.train.labels, view, config.batch_size, world, device,
        mixes=bool(config.mixup or config.cutmix), rotates=config.rotate is not None,
    )  # fmt: skip
    return Setup(
        **{**vars(launch), "config": config}, settings=settings, data=data, images=images, feed=feed,
        net=net, optimizer=build_optimizer(net, config, device), rates=learning_rates(config, feed.steps),
        precision=precision, stopwatch=stopwatch, commit=commit,
        flops=count_flops(net, launch.objective, data, config),
    )  # fmt: skip


def open_together(launch: Launch) -> DataSet:
    """Open the data in every process: the first one fills the caches, the others read them."""
    config, world = launch.config, launch.world
    if not world.is_primary:
        world.barrier()
    data = open_data(
        launch.data_path, image_size=config.image_size, val_fraction=config.val_fraction,
        train_fraction=config.train_fraction, subset_seed=config.seed, on_bad_image=config.on_bad_image,
        label_column=config.label_column, progress=launch.shown,
    )  # fmt: skip
    if world.is_primary:
        world.barrier()
    own = torch.tensor(list(bytes.fromhex(data.fingerprint)), device=launch.device)
    first = own.clone()
    world.broadcast([first])
    if world.any(not torch.equal(own, first), launch.device):  # for example because a disk failed for a moment
        raise DataError(f"{launch.data_path}: the processes do not all see the same images; start again")
    return data


def check_out_not_in_data(out: str, data: str) -> None:
    """Raise if a run's folder is inside the data, because it would be read as a class the next time."""
    folder = os.path.expanduser(data)
    inside = os.path.isdir(folder) and Path(os.path.realpath(out)).is_relative_to(os.path.realpath(folder))
    if inside and data not in DATASETS:
        raise ConfigError(f"{out} is inside the data, {data}; give a folder outside of it", field="out")


def _build_network(launch: Launch, name: str, data: DataSet) -> TransNet:
    config, device, model = launch.config, launch.device, launch.model
    # The backbone comes first: the baseline and TransNet of one seed start from the same one.
    torch.manual_seed(seed_for(config.seed, "init"))
    if model is None:
        if config.pretrained:
            say(f"{name}: loading its pretrained weights", shown=launch.shown)
        model = backbones.create(
            name, num_classes=len(data.classes), in_channels=data.channels, image_size=data.image_size,
            pretrained=config.pretrained,
        )  # fmt: skip
    if config.sync_bn:
        if device.type != "cuda" or launch.world.size == 1:
            raise ConfigError("needs several GPU processes (torchrun); leave it out here", field="sync_bn")
        model = nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(model))  # the caller's model does not change
    net = TransNet(model, launch.transforms, heads=config.heads, init=config.init, bn=config.bn).to(device)
    if not model.training:  # otherwise single layers may be in evaluation mode on purpose, such as frozen batch norm
        net.train()
    with evaluating(net):
        _try_forward(net, 2, data, "model", f"{name} does not work on {data.image_size}×{data.image_size} images")
    if config.invariance_weight and not kernels(net.backbone):
        which = name if launch.model is None else type(model).__name__
        raise ConfigError(f"{which} has no square kernels larger than 1×1; leave it out", field="invariance_weight")
    # The last step of an epoch may leave a process a single image, which batch norm cannot always train on.
    batch, left = config.batch_size, len(data.train) % config.batch_size
    norms = any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in net.modules())
    if norms and (left or batch) < 2 * launch.world.size:
        problem = f"leaves {left} for the last step; change it" if left else "is too small; take more"
        with preserved(net.buffers()):
            _try_forward(net, 1, data, "batch_size", f"{batch} {problem}")
    return net


def _try_forward(net: TransNet, n: int, data: DataSet, field: str, problem: str) -> None:
    """Run ``n`` random images through the network, and raise an error about ``field`` if that fails."""
    generator = torch.Generator().manual_seed(0)  # a separate one, so that the run's random numbers do not change
    images = torch.rand(n, data.channels, data.image_size, data.image_size, generator=generator)
    try:
        with torch.no_grad():
            net(images.to(next(net.parameters()).device))
    except ConfigError:  # about a transform of the user's own
        raise
    except (TypeError, ValueError, RuntimeError, AssertionError) as error:
        if devices.is_out_of_memory(error):
            raise
        raise ConfigError(f"{problem}: {error}", field=field) from error


def _introduction(
    config: TrainConfig, settings: RunSettings, data: DataSet, device: torch.device, *, resident: bool
) -> str:
    about = settings.data
    val = f", {len(data.val):,} for validation" if data.val else ""
    crop = "" if data.square else "cropped to "
    where = "in memory" if device.type == "cpu" else "on the device"
    where = where if resident else f"streamed by {counted(config.workers, 'worker')}"
    pad = f"padded by {about.pad} and " if about.pad else ""
    flip = "flipped horizontally" if about.flip else "not flipped"
    bad = f", {counted(len(data.skipped), 'bad image')} left out ({listed(data.skipped, 10)})" if data.skipped else ""
    return (
        f"{data.name}: {counted(len(data.train), 'training image')}{val}, {len(data.test):,} for the test, "
        f"{len(data.classes)} classes, {crop}{data.image_size}×{data.image_size}, {where}, {pad}{flip}{bad}\n"
        f"{config.model}, heads {config.transforms}, {counted(config.epochs, 'epoch')} "
        f"of batch {config.batch_size}, seed {config.seed}, on {devices.device_name(device)}"
    )
