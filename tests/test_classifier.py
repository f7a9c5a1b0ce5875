"""Classifiers of all kinds become heads: 1×1 convolutions, several, small ones, and those of Hugging Face."""

import copy

import pytest
import timm
import torch
import torchvision
from torch import nn

from small_models import Bare, K, batch
from transnet import TransNet, d4
from transnet.classifier import class_scores
from transnet.errors import ModelError

TRANSFORMS = ("r0", "r1", "m0")


def check(net, model, x):
    """Compare the outputs with those of the plain model that has the weights of one head."""
    with torch.no_grad():
        logits, across, plain = net.logits(x), net.logits(x, across=True), copy.deepcopy(model)
        for i, head in enumerate(net.heads):
            parts = list(head) if len(net._classifiers) > 1 else [head]
            for paths, part in zip(net._classifiers, parts, strict=True):
                plain.get_submodule(paths[0]).load_state_dict(part.state_dict())
            for j, t in enumerate(net.transforms):
                expected = class_scores(plain(d4.apply(t, x)))
                assert torch.allclose(across[:, j, i], expected, rtol=1e-4, atol=1e-5)
                if i == j:
                    assert torch.allclose(logits[:, i], expected, rtol=1e-4, atol=1e-5)
        pruned = net.prune()
        assert type(pruned) is type(model)
        assert list(pruned.state_dict()) == list(model.state_dict())
        assert torch.allclose(class_scores(pruned(x)), logits[:, 0], rtol=1e-4, atol=1e-5)
        assert torch.allclose(net(x), logits.mean(1), atol=1e-6)


def train(net, x):
    loss = net.train().loss(x, torch.arange(len(x)) % K)
    loss.backward()
    assert all(p.grad is not None and p.grad.any() for p in net.heads.parameters())


MODELS = {
    "torchvision:squeezenet1_1": ({}, 64, ["classifier.1"]),
    "dla46_c": ({}, 64, ["fc"]),
    "deit_tiny_distilled_patch16_224": ({"img_size": 32}, 32, ["head", "head_dist"]),
    "repvit_m0_9": ({}, 64, ["head.head.l", "head.head_dist.l"]),
    "efficientvim_m1": ({}, 64, ["heads.0", "heads.1", "heads.2", "heads.3"]),
    "volo_d1_224": ({"img_size": 64}, 64, ["head", "aux_head"]),
}


@pytest.mark.parametrize("name", MODELS)
def test_convolutions_and_several_classifiers_give_the_plain_models_scores(name):
    options, side, paths = MODELS[name]
    create = torchvision.models.get_model if ":" in name else timm.create_model
    model = create(name.removeprefix("torchvision:"), num_classes=K, **options).eval()
    x, _ = batch(3, side)
    net = TransNet(model, TRANSFORMS)
    assert [names[0] for names in net._classifiers] == paths
    assert net.num_classes == K
    check(net, model, x)
    train(net, x)


def test_the_keys_of_several_classifiers_have_a_number_each():
    model = timm.create_model("deit_tiny_distilled_patch16_224", num_classes=K, img_size=32)
    keys = [key for key in TransNet(model, "r0,r1").state_dict() if key.startswith("heads.")]
    assert keys == [f"heads.{i}.{k}.{name}" for i in (0, 1) for k in (0, 1) for name in ("weight", "bias")]


def test_a_distilled_model_that_returns_a_tuple_in_training_mode_is_averaged_as_in_evaluation_mode():
    model = timm.create_model("deit_tiny_distilled_patch16_224", num_classes=K, img_size=32)
    model.set_distilled_training()
    net = TransNet(model, "r0,r1")
    x, _ = batch(3, 32)
    assert torch.allclose(net.train()(x), net.eval().logits(x), atol=1e-5)


@pytest.mark.parametrize("options", [{"init": "copy"}, {"heads": "shared"}, {"bn": "separate"}])
def test_the_options_work_with_heads_in_place(options):
    model = torchvision.models.squeezenet1_1(num_classes=K).eval()
    net = TransNet(model, "r0,r1,r2", **options).eval()
    x, _ = batch(3, 64)
    logits = net.logits(x)
    assert torch.allclose(net.keep("r2", "r0").logits(x), logits[:, [2, 0]], atol=1e-6)
    assert torch.allclose(net.predict(x, heads="r1"), logits[:, 1], atol=1e-6)
    net.eval_output = "pruned"
    assert torch.allclose(net(x), logits[:, 0], atol=1e-6)
    if options == {"init": "copy"}:
        assert torch.equal(TransNet(model, "r0", init="copy")(x), model(x))


class SmallHead(Bare):
    """Its head normalises, and pools the features itself."""

    def __init__(self):
        super().__init__()
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, K))

    def forward(self, x):
        return self.head(self.conv(x).relu())


def test_a_small_head_of_several_layers_is_one_head():
    model = SmallHead().eval()
    net = TransNet(model, TRANSFORMS, head="head").eval()
    x, _ = batch()
    assert "heads.1.4.weight" in net.state_dict()
    assert not torch.equal(net.heads[0][4].weight, net.heads[1][4].weight)
    check(net, model, x)
    train(net, x)


def test_several_heads_of_a_model_of_ones_own_are_named():
    class Two(Bare):
        def __init__(self):
            super().__init__()
            self.other = nn.Linear(8, K)

        def forward(self, x):
            return (super().forward(x) + self.other(x[:, :1].mean((2, 3)).expand(-1, 8))) / 2

    model, (x, _) = Two().eval(), batch()
    with pytest.raises(ModelError, match="does not end in 'other'"):
        TransNet(model)(x)
    check(TransNet(model, TRANSFORMS, head=("out", "other")), model, x)


# ------------------------------------------------------------------------------------------------------- Hugging Face


def hugging_face(kind):
    transformers = pytest.importorskip("transformers")
    vit = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    vit |= {"image_size": 16, "patch_size": 8}
    resnet = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"}
    settings = {"ViT": vit, "DeiT": vit, "ResNet": resnet}[kind.removesuffix("WithTeacher")]
    name, _, teacher = kind.partition("With")
    config = getattr(transformers, f"{name}Config")(num_labels=K, **settings)
    return getattr(transformers, f"{name}ForImageClassification{'With' * bool(teacher)}{teacher}")(config).eval()


@pytest.mark.parametrize("kind", ["ViT", "ResNet", "DeiTWithTeacher"])
def test_hugging_face_models_are_wrapped_and_come_back(kind):
    model = hugging_face(kind)
    x, _ = batch(3, 16)
    net = TransNet(model, TRANSFORMS)
    assert len(net._classifiers) == (2 if kind == "DeiTWithTeacher" else 1)
    assert net.num_classes == K
    check(net, model, x)
    train(net, x)
    assert net.prune().config is not model.config
    torch.testing.assert_close(torch.export.export(net.eval(), (x,)).module()(x), net(x))


def test_a_pruned_hugging_face_model_is_saved_and_loaded(tmp_path):
    model = hugging_face("ViT")
    net = TransNet(model).eval()
    net.prune().save_pretrained(tmp_path)
    x, _ = batch(3, 16)
    assert torch.equal(type(model).from_pretrained(tmp_path).eval()(x).logits, net.prune()(x).logits)


# ----------------------------------------------------------------------------------------------------------- refusals


def test_encoders_without_a_classifier_are_refused():
    vit = hugging_face("ViT")
    vit.config.num_labels = 0
    timms = [timm.create_model(name, num_classes=0) for name in ("test_resnet", "test_vit")]
    for model in (hugging_face("ViT").vit, type(vit)(vit.config), *timms):
        with pytest.raises(ModelError, match="no classifier") as caught:
            TransNet(model)
        assert caught.value.field == "head"


@pytest.mark.parametrize("head", ["fcc", "out.weight", "", ("out", "nothing"), (), "conv"])
def test_a_path_that_names_no_classifier_is_refused(head):
    with pytest.raises(ModelError) as caught:
        TransNet(Bare(), head=head)
    assert caught.value.field == "head"


def test_a_head_that_cannot_be_reset_needs_copies():
    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(16))

        def forward(self, x):
            return x * self.scale

    model = Bare().eval()
    model.out = nn.Sequential(Scale(), nn.Linear(16, K))
    with pytest.raises(ModelError, match="init='copy'"):
        TransNet(model, head="out")
    net = TransNet(model, TRANSFORMS, head="out", init="copy")
    check(net, model, batch()[0])
