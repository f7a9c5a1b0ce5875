"""Build networks by name.

    resnet18-cifar resnet34-cifar resnet50-cifar     ResNets for 32×32: 3×3 stem, no max-pool
    wrn16-4-cifar wrn16-8-cifar wrn28-10-cifar       wide ResNets for 32×32: more accurate, and several times as slow
    resnet8-small resnet14-small resnet20-small      for 8×8 to 28×28: seconds on a CPU
    timm:NAME  torchvision:NAME                      any model of these libraries

>>> create("resnet8-small", num_classes=10, in_channels=1)  # doctest: +ELLIPSIS
Sequential(...
"""

import difflib
import logging
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, cast

from torch import Tensor, nn

from transnet.classifier import find_classifiers
from transnet.errors import ModelError

_CIFAR = {f"resnet{depth}-cifar": f"resnet{depth}" for depth in (18, 34, 50)}
# The 6n+4 layers of Zagoruyko and Komodakis (2016), without dropout, and the 6n+2 layers of He et al. (2016), with 1×1
# convolutions as shortcuts.
_WIDE = {f"wrn{depth}-{width}-cifar": ((depth - 4) // 6, width) for depth, width in ((16, 4), (16, 8), (28, 10))}
_SMALL = {"resnet8-small": 1, "resnet14-small": 2, "resnet20-small": 3}
NAMES = (*_CIFAR, *_WIDE, *_SMALL)


def create(
    name: str, *, num_classes: int, in_channels: int = 3, image_size: int | None = None, pretrained: bool = False
) -> nn.Module:
    """Build a backbone: one of `NAMES`, ``timm:NAME`` or ``torchvision:NAME``.

    torchvision's models take 3 channels. timm's models of a fixed input size (ViT, Mixer, Swin) need ``image_size``.
    ``pretrained`` loads the library's weights.
    """
    if not isinstance(name, str) or num_classes < 1:
        given = f"{name!r} for {num_classes} classes was given"
        raise ModelError(f"{given}; a name and 1 or more are needed", field="model")
    library, _, inner = name.partition(":")
    if inner and library == "timm":
        return _from_timm(inner, num_classes, in_channels, image_size, pretrained)
    if inner and library == "torchvision":
        return _from_torchvision(inner, num_classes, in_channels, image_size, pretrained)
    if name not in NAMES:
        known = f"{' '.join(NAMES)} timm:NAME torchvision:NAME"
        raise ModelError(f"unknown {name!r}; known are {known}{_nearest(name, NAMES)}", field="model")
    if pretrained:
        raise ModelError(f"{name} has no pretrained weights; models of timm: and torchvision: may", field="model")
    if name in _CIFAR:
        return _cifar_resnet(_CIFAR[name], num_classes, in_channels)
    wide = name in _WIDE
    blocks, factor = _WIDE[name] if wide else (_SMALL[name], 1)
    conv1 = nn.Conv2d(in_channels, 16, 3, padding=1, bias=False)
    stages: dict[str, nn.Module] = {}
    width = 16
    for stage in (1, 2, 3):
        for block in range(blocks):
            planes, stride = 2 ** (stage + 3) * factor, 2 if stage > 1 and block == 0 else 1
            make = WideBlock if wide else _small_block
            stages[f"layer{stage}_{block}"] = make(width, planes, stride)
            width = planes
    norm = {"bn1": nn.BatchNorm2d(width if wide else 16), "relu": nn.ReLU()}
    body = stages | norm if wide else norm | stages
    end = {"avgpool": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten(), "fc": nn.Linear(width, num_classes)}
    model = nn.Sequential(OrderedDict({"conv1": conv1, **body, **end}))
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return model


def _cifar_resnet(architecture: str, num_classes: int, in_channels: int) -> nn.Module:
    import torchvision

    model: nn.Module = torchvision.models.get_model(architecture, weights=None, num_classes=num_classes)
    stem = nn.Conv2d(in_channels, 64, 3, padding=1, bias=False)
    nn.init.kaiming_normal_(stem.weight, mode="fan_out", nonlinearity="relu")
    model.set_submodule("conv1", stem)
    model.set_submodule("maxpool", nn.Identity())
    return model


def _small_block(width: int, planes: int, stride: int) -> nn.Module:
    from torchvision.models.resnet import BasicBlock

    shortcut = None
    if stride > 1 or width != planes:
        shortcut = nn.Sequential(nn.Conv2d(width, planes, 1, stride, bias=False), nn.BatchNorm2d(planes))
    return BasicBlock(width, planes, stride, shortcut)


class WideBlock(nn.Module):
    """Two 3×3 convolutions, each after batch norm and ReLU, beside a shortcut."""

    def __init__(self, width: int, planes: int, stride: int) -> None:
        super().__init__()
        self.bn1, self.relu1 = nn.BatchNorm2d(width), nn.ReLU()
        self.conv1 = nn.Conv2d(width, planes, 3, stride, padding=1, bias=False)
        self.bn2, self.relu2 = nn.BatchNorm2d(planes), nn.ReLU()
        self.conv2 = nn.Conv2d(planes, planes, 3, padding=1, bias=False)
        self.shortcut = nn.Conv2d(width, planes, 1, stride, bias=False) if width != planes else None

    def forward(self, x: Tensor) -> Tensor:
        """Add the shortcut, which starts after batch norm and ReLU if the width changes."""
        y = self.relu1(self.bn1(x))
        if self.shortcut is not None:
            x = self.shortcut(y)
        return x + self.conv2(self.relu2(self.bn2(self.conv1(y))))


def _from_timm(name: str, num_classes: int, in_channels: int, image_size: int | None, pretrained: bool) -> nn.Module:
    import timm

    if not timm.is_model(name):
        raise ModelError(f"timm has no {name!r}{_nearest(name, timm.list_models())}", field="model")
    config = timm.get_pretrained_cfg(name)
    sized: dict[str, Any] = (
        {"img_size": image_size} if image_size and getattr(config, "fixed_input_size", False) else {}
    )
    if pretrained and (config is None or not config.has_weights):
        raise ModelError(f"timm has no pretrained weights for {name!r}; leave `pretrained` out", field="model")
    with _fetching(f"timm:{name}") if pretrained else nullcontext():
        return timm.create_model(name, pretrained=pretrained, num_classes=num_classes, in_chans=in_channels, **sized)


def _from_torchvision(name: str, num_classes: int, in_channels: int, side: int | None, pretrained: bool) -> nn.Module:
    import torchvision

    known = torchvision.models.list_models(module=torchvision.models)
    if name not in known:
        raise ModelError(f"torchvision has no classifier {name!r}{_nearest(name, known)}", field="model")
    if in_channels != 3:
        given = f"takes 3 channels, the images have {in_channels}"
        raise ModelError(f"torchvision:{name} {given}; timm:NAME adapts", field="model")
    if not pretrained:
        options: dict[str, Any] = {"num_classes": num_classes}
        if name in ("googlenet", "inception_v3"):
            options |= {"aux_logits": False, "init_weights": True}  # their auxiliary outputs are not heads
        if name.startswith("vit_") and side:
            options["image_size"] = side
        return torchvision.models.get_model(name, weights=None, **options)
    with _fetching(f"torchvision:{name}"):
        model: nn.Module = torchvision.models.get_model(name, weights="DEFAULT")
    path = find_classifiers(model)[0][0]
    last = model.get_submodule(path)
    if isinstance(last, nn.Conv2d):  # SqueezeNet
        model.set_submodule(path, nn.Conv2d(last.in_channels, num_classes, 1))
    else:
        model.set_submodule(path, nn.Linear(cast(nn.Linear, last).in_features, num_classes))
    return model


@contextmanager
def _fetching(name: str) -> Iterator[None]:
    """Turn the library's errors and log lines into one error."""
    logger = logging.getLogger("huggingface_hub")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    except OSError as error:
        reason = str(error.__cause__ or error).splitlines()[0]  # the Hub's own error does not name what failed
        problem = f"the pretrained weights of {name} are not on this machine and could not be fetched ({reason})"
        advice = "try again with a network connection, or leave `pretrained` out"
        raise ModelError(f"{problem}; {advice}", field="model") from error
    finally:
        logger.setLevel(level)


def _nearest(name: str, known: tuple[str, ...] | list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=3)
    return f" (did you mean {', '.join(near)}?)" if near else ""
