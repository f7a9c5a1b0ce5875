"""timm's training code treats a TransNet like the model inside it."""

import pytest
import timm
import torch
from timm.optim import create_optimizer_v2

from small_models import Bare, K, batch, small
from transnet import TransNet
from transnet.errors import ModelError

ARCHITECTURES = {
    "vit_tiny_patch16_224": {"img_size": 32},
    "swin_tiny_patch4_window7_224": {"img_size": 56, "window_size": 7},
    "convnext_atto": {},
    "deit_tiny_distilled_patch16_224": {"img_size": 32},  # two classifiers
    "dla46_c": {},  # a convolution as classifier
    "resnet18": {},
    "efficientnet_b0": {},
    "cait_xxs24_224": {"img_size": 32},  # its matcher is a function
    "poolformer_s12": {},  # it has no matcher, so timm numbers its layers itself
}


def _settings(model, **kw):
    """(learning-rate scale, weight decay) by parameter name."""
    optimizer = create_optimizer_v2(model, opt="adamw", lr=1.0, weight_decay=0.05, **kw)
    names = {id(p): name for name, p in model.named_parameters()}
    return {
        names[id(p)]: (group.get("lr_scale", 1.0), group["weight_decay"])
        for group in optimizer.param_groups
        for p in group["params"]
    }


def _model(name):
    return timm.create_model(name, num_classes=K, **ARCHITECTURES[name])


@pytest.mark.parametrize("options", [{"layer_decay": 0.7}, {}])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_layer_decay_and_weight_decay_are_those_of_the_plain_model(name, options):
    model = _model(name)
    net = TransNet(model, "r0,r1")
    plain, wrapped = _settings(model, **options), _settings(net, **options)
    heads = {paths[0]: f".{k}" if len(net._classifiers) > 1 else "" for k, paths in enumerate(net._classifiers)}
    assert len({scale for scale, _ in wrapped.values()}) == len({scale for scale, _ in plain.values()})
    for key, setting in plain.items():
        head, _, name = key.rpartition(".")
        if head in heads:
            suffix = f"{heads[head]}.{name}"
            assert wrapped[f"heads.0{suffix}"] == wrapped[f"heads.1{suffix}"] == setting
            assert setting[0] == 1.0
        else:
            assert wrapped[f"backbone.{key}"] == setting


def test_position_embeddings_are_not_decayed():
    net = TransNet(_model("vit_tiny_patch16_224"))
    assert {"backbone.pos_embed", "backbone.cls_token"} <= net.no_weight_decay()
    settings = _settings(net, layer_decay=0.7)
    assert settings["backbone.pos_embed"][1] == 0
    assert settings["heads.1.weight"] == (1.0, 0.05)


def test_coarse_groups_are_the_plain_models():
    model = _model("vit_tiny_patch16_224")
    count = {}
    for one in (model, TransNet(model)):
        count[one] = len(timm.models.group_parameters(one, one.group_matcher(coarse=True)))
    assert len(set(count.values())) == 1


def test_conventions_that_the_backbone_lacks_are_absent():
    net = TransNet(Bare())
    for name in ("group_matcher", "set_grad_checkpointing", "pretrained_cfg", "num_features", "forward_features"):
        assert not hasattr(net, name)
    assert net.no_weight_decay() == set()
    assert net.num_classes == K


def test_features_and_sizes_are_the_backbones():
    model = timm.create_model("resnet18", num_classes=K).eval()
    net = TransNet(model)
    x, _ = batch(side=32)
    assert net.num_features == 512
    assert net.num_classes == K
    assert torch.equal(net.forward_features(x), model.forward_features(x))


def test_gradient_checkpointing_gives_the_same_gradients():
    net = TransNet(_model("vit_tiny_patch16_224"))
    x, y = batch(side=32)
    net.loss(x, y).backward()
    plain = [p.grad.clone() for p in net.parameters()]
    net.zero_grad()
    net.set_grad_checkpointing(True)
    assert net.backbone.grad_checkpointing
    net.loss(x, y).backward()
    assert all(torch.allclose(a, p.grad, atol=1e-5) for a, p in zip(plain, net.parameters(), strict=True))


# ----------------------------------------------------------------------------------------------------- load_backbone


@pytest.mark.parametrize("with_head", [True, False])
def test_a_plain_checkpoint_fills_the_backbone_and_leaves_the_heads(with_head):
    other = small()
    checkpoint = {k: v for k, v in other.state_dict().items() if with_head or not k.startswith("fc.")}
    net = TransNet(small())
    before = [g.weight.clone() for g in net.heads]
    net.load_backbone(checkpoint)
    pruned = net.prune().state_dict()
    assert all(torch.equal(pruned[k], v) for k, v in checkpoint.items() if not k.startswith("fc."))
    assert all(torch.equal(g.weight, w) for g, w in zip(net.heads, before, strict=True))


@pytest.mark.parametrize("name", ["deit_tiny_distilled_patch16_224", "dla46_c"])
def test_a_checkpoint_of_a_model_with_other_classifiers_fills_the_backbone(name):
    other, net = _model(name), TransNet(_model(name))
    net.load_backbone(other.state_dict())
    pruned, paths = net.prune().state_dict(), tuple(f"{path}." for paths in net._classifiers for path in paths)
    assert all(torch.equal(pruned[k], v) for k, v in other.state_dict().items() if not k.startswith(paths))
    assert net.num_classes == K
    assert net.num_features == other.num_features
    assert net.forward_features(batch(2, 32)[0])[0].shape


def test_a_checkpoint_that_does_not_fit_changes_nothing():
    net = TransNet(Bare())
    before = {k: v.clone() for k, v in net.state_dict().items()}
    good = Bare().state_dict()
    for bad, named in [
        ({k: v for k, v in good.items() if k != "conv.bias"}, "conv.bias"),
        (good | {"extra": torch.ones(1)}, "extra"),
        (good | {"conv.bias": torch.ones(3), "conv.weight": good["conv.weight"] + 1}, "conv.bias"),
        (net.state_dict(), "load_state_dict"),
        ({"state_dict": good}, "state_dict"),
    ]:
        with pytest.raises(ModelError, match=named) as caught:
            net.load_backbone(bad)
        assert caught.value.field == "state_dict"
        assert all(torch.equal(net.state_dict()[k], v) for k, v in before.items())


def test_a_path_is_no_state_dict():
    with pytest.raises(TypeError, match=r"state_dict: str .*torch\.load"):
        TransNet(Bare()).load_backbone("model.pt")


def test_a_checkpoint_loads_with_separate_batch_norm():
    other = small().state_dict()
    net = TransNet(small(), bn="separate")
    net.load_backbone(other)
    pruned = net.prune().state_dict()
    assert all(torch.equal(pruned[k], v) for k, v in other.items() if not k.startswith("fc."))
