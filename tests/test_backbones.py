"""Backbones by name, and TransNet around the architectures that people use."""

import logging
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from small_runs import environment
from transnet import TransNet, backbones

ARCHITECTURES = [
    "resnet18-cifar",
    "wrn16-4-cifar",
    "resnet8-small",
    "timm:resnet18",
    "timm:resnext50_32x4d",
    "timm:seresnet18",
    "timm:res2net50_26w_4s",
    "timm:regnetx_002",
    "timm:convnext_atto",
    "timm:efficientnet_b0",
    "timm:mobilenetv2_050",
    "timm:mobilenetv3_small_050",
    "timm:densenet121",
    "timm:vgg11",
    "timm:repvgg_a0",
    "timm:ghostnet_050",
    "timm:lcnet_050",
    "timm:hrnet_w18_small",
    "timm:edgenext_xx_small",
    "timm:tinynet_e",
    "timm:vit_tiny_patch16_224",
    "timm:deit_tiny_patch16_224",
    "timm:swin_tiny_patch4_window7_224",
    "timm:mixer_s32_224",
    "timm:poolformer_s12",
    "timm:mobilevit_xxs",
    "timm:xcit_nano_12_p16_224",
    "torchvision:resnet18",
    "torchvision:alexnet",
    "torchvision:vgg11",
    "torchvision:mnasnet0_5",
    "torchvision:shufflenet_v2_x0_5",
    "torchvision:efficientnet_b0",
    "torchvision:convnext_tiny",
    "torchvision:regnet_y_400mf",
    "torchvision:swin_t",
    "torchvision:squeezenet1_1",  # its head is a convolution
    "timm:dla46_c",
    "timm:repvit_m0_9",  # two classifiers
    "timm:deit_tiny_distilled_patch16_224",
]
SIDE = {"resnet18-cifar": 16, "wrn16-4-cifar": 16, "resnet8-small": 8, "timm:swin_tiny_patch4_window7_224": 224}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_wraps_trains_and_prunes(name):
    side = SIDE.get(name, 64)
    model = backbones.create(name, num_classes=3, image_size=side).eval()
    x, y = torch.randn(4, 3, side, side), torch.tensor([0, 1, 2, 0])

    with torch.no_grad():
        assert torch.equal(TransNet(model, "r0", init="copy")(x), model(x))

    net = TransNet(model, "r0,r1").train()
    before = _loss(net, x, y)
    before.backward()
    # A step sized for a 2 % fall of the linearised loss, whatever the architecture's scale.
    squared = sum(float((p.grad.double() ** 2).sum()) for p in net.parameters() if p.grad is not None)
    torch.optim.SGD(net.parameters(), lr=0.02 * before.item() / squared).step()
    assert _loss(net, x, y) < before

    pruned = net.eval().prune()
    assert type(pruned) is type(model)
    assert list(pruned.state_dict()) == list(model.state_dict())
    fresh = backbones.create(name, num_classes=3, image_size=side).eval()
    fresh.load_state_dict(pruned.state_dict(), strict=True)
    with torch.no_grad():
        assert torch.equal(fresh(x), pruned(x))
        assert torch.equal(pruned(x), net.keep("r0")(x))


def _loss(net, x, y):
    torch.manual_seed(0)  # dropout and drop-path see the same noise before and after the step
    return net.loss(x, y)


def test_the_docs_list_every_architecture_tested():
    root = Path(__file__).parents[1]
    listed = set(re.findall(r"`([\w.:-]+)`", (root / "docs/howto/model.md").read_text()))
    assert set(ARCHITECTURES) <= listed


@pytest.mark.parametrize("name", backbones.NAMES)
@pytest.mark.parametrize("channels", [1, 3])
def test_named_backbones_take_small_images(name, channels):
    model = backbones.create(name, num_classes=4, in_channels=channels)
    for side in (8, 28):
        assert model(torch.randn(2, channels, side, side)).shape == (2, 4)


def test_cifar_resnet18_has_seventeen_3x3_convolutions_at_full_resolution():
    model = backbones.create("resnet18-cifar", num_classes=10)
    kernels = [m.kernel_size for m in model.modules() if isinstance(m, nn.Conv2d)]
    assert kernels.count((3, 3)) == 17
    shapes = []
    model.layer1.register_forward_hook(lambda m, a, o: shapes.append(o.shape[-2:]))
    model(torch.randn(1, 3, 32, 32))
    assert shapes == [(32, 32)]


@pytest.mark.parametrize(("name", "millions"), [("wrn16-8-cifar", 11.0), ("wrn28-10-cifar", 36.5)])
def test_wide_resnets_have_the_parameters_of_their_paper(name, millions):
    model = backbones.create(name, num_classes=10)
    assert round(sum(p.numel() for p in model.parameters()) / 1e6, 1) == millions


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("resnet18_cifar", "unknown 'resnet18_cifar'; known are .*did you mean resnet18-cifar"),
        ("timm:resnet81", "timm has no 'resnet81'.*did you mean"),
        ("torchvision:resnet19", "torchvision has no classifier 'resnet19'"),
        ("torchvision:fasterrcnn_resnet50_fpn", "no classifier"),
    ],
)
def test_unknown_names_list_similar_ones(name, message):
    with pytest.raises(ValueError, match=message):
        backbones.create(name, num_classes=2)


def test_requests_that_a_library_cannot_fulfil_are_refused():
    with pytest.raises(ValueError, match="takes 3 channels, the images have 1"):
        backbones.create("torchvision:resnet18", num_classes=2, in_channels=1)
    with pytest.raises(ValueError, match="no pretrained weights"):
        backbones.create("resnet18-cifar", num_classes=2, pretrained=True)


@pytest.fixture
def unreachable(tmp_path, monkeypatch):
    """There are no weights on this machine, and no server can be reached."""
    from huggingface_hub import constants
    from huggingface_hub.utils import close_session

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    close_session()  # it keeps the proxies that it began with
    yield constants
    close_session()


def test_weights_that_cannot_be_fetched_are_one_clear_error(unreachable, monkeypatch):
    with pytest.raises(ValueError, match=r"weights of torchvision:resnet18 .* could not be fetched .*try again"):
        backbones.create("torchvision:resnet18", num_classes=2, pretrained=True)
    monkeypatch.setattr(unreachable, "HF_HUB_OFFLINE", True)
    with pytest.raises(ValueError, match=r"weights of timm:resnet18 .*\(.*offline mode is enabled.*leave `pretrained`"):
        backbones.create("timm:resnet18", num_classes=2, pretrained=True)
    with pytest.raises(ValueError, match="timm has no pretrained weights for 'test_vit4'"):
        backbones.create("timm:test_vit4", num_classes=2, pretrained=True)


def test_retries_are_not_reported_while_weights_are_fetched():
    import huggingface_hub  # noqa: F401

    logger = logging.getLogger("huggingface_hub.utils._http")
    with backbones._fetching("timm:resnet18"):
        assert not logger.isEnabledFor(logging.WARNING)
    assert logger.isEnabledFor(logging.WARNING)


@pytest.mark.slow
def test_an_unreachable_hub_is_one_error_without_lines_for_retries(tmp_path):
    code = "from transnet import backbones; backbones.create('timm:resnet18', num_classes=2, pretrained=True)"
    environ = {**environment(), "HF_HOME": str(tmp_path), "HF_ENDPOINT": "http://127.0.0.1:9"}
    shown = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=False
    ).stderr
    assert "ModelError: model: the pretrained weights of timm:resnet18 are not on this machine" in shown
    assert "Retry" not in shown
