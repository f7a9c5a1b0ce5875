"""Errors for models, options and batches that a TransNet cannot take."""

from contextlib import contextmanager
from typing import Any

import pytest
import timm
import torch
import torchvision
from torch import nn

from small_models import Bare, K, batch, small
from transnet import TransNet, heads_loss
from transnet.errors import ModelError


@contextmanager
def refused(field=None, keyword=None):
    with pytest.raises(ModelError, match=keyword) as caught:
        yield
    assert caught.value.field == field


def test_a_model_without_a_classifier():
    model = torchvision.models.resnet18()
    model.fc = nn.Identity()
    with refused("head", r"no nn\.Linear"):
        TransNet(model)


def test_a_timm_model_whose_classifier_was_removed():
    with refused("head", "num_classes > 0"):
        TransNet(timm.create_model("resnet18", num_classes=0))


def test_a_wrong_head_path_lists_the_linear_layers():
    with refused("head", "'fc'"):
        TransNet(small(), head="fcc")
    with refused("head", "Conv2d"):
        TransNet(small(), head="conv1")


def test_a_head_that_is_not_last_shows_at_the_first_batch():
    class HeadFirst(nn.Module):
        def __init__(self):
            super().__init__()
            self.out = nn.Linear(16, K)
            self.hidden = nn.Linear(3, 16)

        def forward(self, x):
            return self.out(self.hidden(x.mean((2, 3))))

    x, _ = batch()
    with refused(None, "does not end in 'hidden'"):
        TransNet(HeadFirst())(x)
    assert TransNet(HeadFirst(), head="out")(x).shape == (4, 2, K)


@pytest.mark.parametrize("last", [nn.ReLU(), nn.ReLU6(), nn.Softplus(), nn.Hardtanh(-100, 100), nn.Dropout(0.0)])
def test_layers_after_the_head_are_found_even_if_they_do_not_change_the_features(last):
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, K), last)
    net = TransNet(model)
    if isinstance(last, nn.Dropout):  # it drops nothing
        assert net(batch()[0]).shape == (4, 2, K)
        return
    net(torch.zeros(0, 3, 8, 8))  # an empty batch shows nothing, and must not count as the first
    with refused(None, "does not end in '4'"):
        net(batch()[0])


def test_the_first_batch_gives_the_same_as_the_second():
    net = TransNet(small().double(), "r0,r1").eval()
    x = batch()[0].double()
    assert torch.equal(net(x), net(x))


def test_a_head_with_two_names_is_replaced_and_put_back_under_both():
    class Twice(Bare):
        def __init__(self):
            super().__init__()
            self.classifier = self.out

    net = TransNet(Twice(), "r0,r1")
    x, y = batch()
    net.loss(x, y).backward()
    torch.optim.SGD(net.parameters(), lr=0.1).step()
    pruned, fresh = net.prune(), Twice()
    fresh.load_state_dict(pruned.state_dict())
    assert pruned.classifier is pruned.out
    assert torch.equal(fresh(x), pruned(x))


def test_heads_with_tied_or_parametrized_weights_are_refused():
    tied = Bare()
    tied.hidden = nn.Linear(8, 16)
    tied.twin = nn.Linear(16, K)
    tied.twin.weight = tied.out.weight
    with refused("head", r"twin\.weight"):
        TransNet(tied, head="out")
    normed = Bare()
    torch.nn.utils.parametrizations.weight_norm(normed.out)
    spectral = Bare()
    torch.nn.utils.spectral_norm(spectral.out)  # the older way, by a hook
    with refused("head", "init='copy'"):
        TransNet(spectral)
    with refused("head", "init='copy'"):
        TransNet(normed)
    assert TransNet(normed, init="copy")(batch()[0]).shape == (4, 2, K)


def test_a_transnet_of_a_transnet():
    with pytest.raises(TypeError, match="plain model"):
        TransNet(TransNet(small()))


def test_images_that_are_not_scaled_yet():
    x = torch.randint(0, 256, batch()[0].shape, dtype=torch.uint8)
    net = TransNet(small(), "r0,r1")
    for _ in range(2):
        with refused("images", "uint8"):
            net(x)
    net(x / 255)
    with refused("images", "uint8"):
        net(x)

    class Scaling(nn.Module):
        def forward(self, x):
            return x.float() / 255

    inside = TransNet(nn.Sequential(Scaling(), small()), "r0,r1")  # such a model takes unscaled images
    assert inside(x).shape == (4, 2, K)


def test_a_timm_model_whose_head_was_replaced():
    model = timm.create_model("resnet18", num_classes=K)
    model.fc = nn.Sequential(nn.Dropout(0.2), nn.Linear(512, K))
    net = TransNet(model)
    assert "backbone.fc.1.weight" not in net.state_dict()
    assert net(batch(side=32)[0]).shape == (4, 2, K)


def test_a_custom_transform_that_works_in_place_reaches_no_other_copy():
    net = TransNet(Bare(), ("r0", ("negative", lambda x: x.neg_())))
    x, _ = batch()
    before = x.clone()
    assert torch.allclose(net(x)[:, 0], net.heads[0](net.backbone(before)), atol=1e-6)
    assert torch.equal(x, before)


def test_mode_and_frozen_layers_of_the_given_model():
    assert not TransNet(Bare().eval()).training
    net = TransNet(Bare().requires_grad_(False))
    assert {name for name, p in net.named_parameters() if p.requires_grad} == {
        "heads.0.weight", "heads.0.bias", "heads.1.weight", "heads.1.bias",
    }  # fmt: skip


def test_a_model_that_returns_more_than_scores():
    model = torchvision.models.googlenet(num_classes=K, init_weights=False, aux_logits=True)
    with pytest.raises(TypeError, match="GoogLeNetOutputs"):
        TransNet(model)(torch.randn(2, 3, 64, 64))


def test_features_that_still_have_positions():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(2), nn.Linear(36, K))
    with refused(None, r"\(8, 4, 36\)"):
        TransNet(model)(batch()[0])


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"transforms": "r0,r7"}, "transforms"),
        ({"transforms": ()}, "transforms"),
        ({"heads": "one"}, "heads"),
        ({"init": "zero"}, "init"),
        ({"bn": "none"}, "bn"),
        ({"eval_output": "mean"}, "eval_output"),
        ({"transforms": "r1,r2", "eval_output": "pruned"}, "eval_output"),
    ],
)
def test_unknown_options(options, field):
    with refused(field):
        TransNet(Bare(), **options)


def test_wrong_types():
    with pytest.raises(TypeError, match="model"):
        TransNet("resnet18")
    with pytest.raises(TypeError, match="transforms"):
        TransNet(Bare(), [1])
    with pytest.raises(TypeError, match="transforms"):
        TransNet(Bare(), None)
    with pytest.raises(TypeError, match="heads"):
        TransNet(Bare()).predict(batch()[0], heads=0)
    with refused("images"):
        TransNet(Bare()).predict("x", flip=True)


def test_pruning_without_the_identity():
    net = TransNet(Bare(), "r1,r2")
    with refused(None, r"prune\('r1', image_size=…\)"):
        net.prune()
    with refused("image_size"):
        net.prune("r1")
    with refused("heads", "r1 r2"):
        net.keep("r0")
    with refused("heads"):
        net.keep()
    with refused(None, "twice"):
        net.keep("r1", "r1")
    with refused(None, "D4"):
        TransNet(Bare(), (("negative", torch.neg),)).prune()


def test_rectangular_images_with_quarter_turns():
    x = torch.randn(2, 3, 8, 6)
    with refused(None, "8×6: r1 swaps"):
        TransNet(Bare(), "r0,r1")(x)
    with refused(None, "8×6: r1 m1 swap"):
        TransNet(Bare(), "r0,r1,m1")(x)
    assert TransNet(Bare(), "r0,r2,m0,m2")(x).shape == (2, 4, K)


def test_images_without_a_batch_dimension_or_with_nan():
    net = TransNet(Bare())
    with refused("images"):
        net(torch.randn(3, 8, 8))
    x, _ = batch()
    x[0, 0, 0, 0] = float("nan")
    with refused("images", "NaN"):
        net(x)


def test_targets_that_do_not_fit():
    logits = torch.randn(4, 2, K)
    with refused("targets", "0…4"):
        heads_loss(logits, torch.tensor([0, 1, 2, 5]))
    with refused("targets", "-1…3"):
        heads_loss(logits, torch.tensor([-1, 1, 2, 3]))
    with refused("targets", r"\(3,\)"):
        heads_loss(logits, torch.tensor([0, 1, 2]))
    with pytest.raises(TypeError, match="integers"):
        heads_loss(logits, torch.rand(4))
    with pytest.raises(TypeError, match="floating point"):
        heads_loss(logits, torch.ones(4, K, dtype=torch.long))
    with refused("logits", r"net\.logits\(x\)"):
        heads_loss(logits[:, 0], torch.tensor([0, 1, 2, 3]))
    with pytest.raises(TypeError, match="targets"):
        heads_loss(logits, [0, 1, 2, 3])
    with refused("label_smoothing"):
        heads_loss(logits, torch.tensor([0, 1, 2, 3]), label_smoothing=2)
    with refused("targets", "NaN"):
        heads_loss(logits, torch.full((4, K), float("nan")))
    with refused("sample_weight"):
        heads_loss(logits, torch.tensor([0, 1, 2, 3]), sample_weight=torch.zeros(4))
    assert heads_loss(logits, torch.tensor([0, 1, 2, 3], dtype=torch.uint16)).isfinite()
    with refused("sample_weight"):
        heads_loss(logits, torch.tensor([0, 1, 2, 3]), sample_weight=torch.ones(2))


def test_rows_that_are_not_distributions_are_refused_and_bce_is_named():
    logits = torch.randn(4, 2, K)
    multi_hot = torch.tensor([1.0, 1, 0, 0, 0]).expand(4, K)
    for rows in (multi_hot, torch.zeros(4, K), torch.full((4, K), 0.203)):
        with refused("targets", "BCEWithLogitsLoss"):
            heads_loss(logits, rows)
    assert heads_loss(logits, torch.full((4, K), 0.2009).half()).isfinite()


def test_compiled_code_refuses_them_too():
    torch._dynamo.reset()
    loss = torch.compile(heads_loss, backend="aot_eager", fullgraph=True)
    logits = torch.randn(4, 2, K, requires_grad=True)
    loss(logits, torch.full((4, K), 1 / K)).backward()
    for rows in (torch.tensor([1.0, 1, 0, 0, 0]).expand(4, K), torch.zeros(4, K), torch.full((4, K), float("nan"))):
        with pytest.raises(RuntimeError, match="sum to 1"):
            loss(logits, rows)


def test_a_single_class_is_refused():
    for y in (torch.zeros(4, dtype=torch.long), torch.ones(4, 1)):
        with refused("logits", "single class"):
            heads_loss(torch.randn(4, 2, 1), y)


@pytest.mark.parametrize(
    "settings", [{"label_smoothing": 0.1}, {"sample_weight": torch.zeros(4)}, {"reduction": "none"}]
)
def test_settings_that_belong_to_the_criterion(settings):
    with refused("criterion", next(iter(settings))):
        heads_loss(torch.randn(4, 2, K), torch.zeros(4).long(), criterion=nn.CrossEntropyLoss(), **settings)


@pytest.mark.parametrize(
    "returned", [torch.ones(4, K), torch.ones(3), torch.tensor(1), torch.ones(4).long(), 1.0, None]
)
def test_a_criterion_that_returns_neither_a_scalar_nor_one_value_per_image(returned):
    with refused("criterion"):
        heads_loss(torch.randn(4, 2, K), torch.zeros(4).long(), criterion=lambda z, y: returned)


def test_a_criterion_that_cannot_be_called_or_gets_one_heads_logits():
    y = torch.zeros(4).long()
    with pytest.raises(TypeError, match="criterion"):
        heads_loss(torch.randn(4, 2, K), y, criterion="bce")
    with pytest.raises(TypeError, match=r"CrossEntropyLoss\(\)"):
        heads_loss(torch.randn(4, 2, K), y, criterion=nn.CrossEntropyLoss)
    with refused("logits", r"net\.logits\(x\)"):
        heads_loss(torch.randn(4, K), y, criterion=nn.CrossEntropyLoss())


@pytest.mark.parametrize("wrap", [lambda f: f, lambda f: torch.compile(f, backend="eager"), torch.vmap])
def test_no_label_is_ignored(wrap: Any) -> None:
    logits, y = torch.randn(4, 2, 5), torch.tensor([0, 1, -100, 2])
    if wrap is torch.vmap:
        logits, y = logits[:, None], y[:, None]
    with pytest.raises((ValueError, IndexError, RuntimeError)):
        wrap(heads_loss)(logits, y)
