"""The examples of transforms that are not in D4."""

import torch

from transnet import TransNet
from transnet.backbones import create
from transnet.transforms import gray, invert


def test_gray_makes_the_channels_equal_and_keeps_their_mean() -> None:
    x = torch.randn(2, 3, 4, 5)
    y = gray(x)
    assert y.shape == x.shape
    torch.testing.assert_close(y[:, 0], y[:, 2])
    torch.testing.assert_close(y.mean(1), x.mean(1))
    torch.testing.assert_close(gray(y), y)


def test_inverting_twice_gives_the_image_back() -> None:
    x = torch.randn(2, 3, 4, 5)
    assert torch.equal(invert(invert(x)), x)
    assert not torch.equal(invert(x), x)


def test_both_train_and_are_pruned_away() -> None:
    net = TransNet(create("resnet8-small", num_classes=5), ("r0", ("gray", gray), ("invert", invert)))
    x, y = torch.randn(4, 3, 8, 8), torch.tensor([0, 1, 2, 3])
    net.loss(x, y).backward()
    assert all(head.weight.grad.abs().sum() > 0 for head in net.heads)
    net.eval()
    with torch.no_grad():
        logits = net.logits(x)
        torch.testing.assert_close(net.prune()(x), logits[:, 0])
        torch.testing.assert_close(net.logits(gray(x))[:, 1], logits[:, 1])
