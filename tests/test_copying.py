"""Models that cache tensors can be wrapped, copied, kept and pruned after a forward with gradients."""

import copy

import pytest
import timm
import torch
from torch import nn

from small_models import Bare, K, batch
from transnet import TransNet, fold

X = torch.randn(2, 3, 224, 224)


@pytest.mark.parametrize("name", ["efficientvit_m0", "tiny_vit_5m_224"])
def test_timms_caching_models(name):
    model = timm.create_model(name, num_classes=K).eval()
    assert model(X).requires_grad
    net = TransNet(model, "r0,r1", init="copy")
    logits = net.logits(X)
    for one in (net.prune(), net.keep("r0"), copy.deepcopy(net).keep("r0")):
        assert torch.allclose(one(X), logits[:, 0], atol=1e-4)
    copy.deepcopy({"net": net})


def test_tensors_in_nested_containers():
    class Caching(Bare):
        def forward(self, x):
            self.cache = {"a": [self.conv.weight * 2], "b": (self.conv.bias * 2,)}
            self.last = self.conv.weight.sum()
            return super().forward(x)

    net = TransNet(Caching())
    net(batch()[0])
    x, _ = batch()
    assert torch.allclose(fold(net.prune(), "m0", 8)(x), net.prune()(x.flip(-1)), atol=1e-6)
    model = Caching()
    model(x)
    assert torch.allclose(fold(model, "m0", 8)(x), model(x.flip(-1)), atol=1e-6)
    pruned = net.prune()
    assert torch.equal(pruned.cache["a"][0], net.backbone.cache["a"][0])
    assert not pruned.cache["a"][0].requires_grad
    assert net.backbone.cache["a"][0].requires_grad


def test_tensors_that_were_shared_are_shared_in_the_copy():
    net = TransNet(Bare())
    first, second = copy.deepcopy((net, nn.ModuleList([net])))
    assert second[0] is first
    assert first.heads[0].weight is not net.heads[0].weight
