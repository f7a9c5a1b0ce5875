"""The paper's equations, lemmas and examples, by their numbers, as statements that can fail."""

import copy
import itertools

import pytest
import torch
import torch.nn.functional as F
import torchvision
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from transnet import TransNet, backbones, d4, heads_loss
from transnet.folding.fold import fold
from transnet.invariance import group_mean, invariance_score


class ConvGapLinear(nn.Module):
    """The architecture that section 4 analyses: g ∘ GAP ∘ convolution, no batch norm."""

    def __init__(self, channels=4, classes=3, side=3, padding=1):
        super().__init__()
        self.conv = nn.Conv2d(1, channels, side, padding=padding)
        self.fc = nn.Linear(channels, classes)

    def forward(self, x):
        return self.fc(self.conv(x).relu().mean((2, 3)))


def network(transforms, **kw):
    return TransNet(ConvGapLinear(**kw).double(), transforms)


# ------------------------------------------------------------------------------------------------ section 3: the method


def test_equation_3_and_4_the_transformation_loss_is_the_mean_over_t_of_the_loss_on_t_of_x():
    net = network("r0,r1,m2")
    x, y = torch.randn(5, 1, 6, 6, dtype=torch.float64), torch.randint(3, (5,))
    losses = []
    for t, g in zip(net.transforms, net.heads, strict=True):
        transformed = [(d4.apply(t, image), label) for image, label in zip(x, y, strict=True)]  # Eq. 3
        each = [F.cross_entropy(g(net.backbone(image[None])), label[None]) for image, label in transformed]
        losses.append(sum(each) / len(each))
    assert torch.allclose(net.loss(x, y), sum(losses) / 3, rtol=1e-12)  # Eq. 4


def test_h_t_of_x_is_the_mean_over_heads_of_h_t_on_t_of_x():
    net = network("r0,r1,m2")
    x = torch.randn(5, 1, 6, 6, dtype=torch.float64)
    mean = sum(g(net.backbone(d4.apply(t, x))) for t, g in zip(net.transforms, net.heads, strict=True)) / 3
    assert torch.allclose(net.predict(x), mean, rtol=1e-12)


def test_any_cnn_is_transnet_with_the_identity_alone():
    model = ConvGapLinear()
    x, y = torch.randn(5, 1, 6, 6), torch.randint(3, (5,))
    base = TransNet(model, "r0", init="copy")
    assert torch.equal(base.predict(x), model(x))
    assert torch.allclose(base.loss(x, y), F.cross_entropy(model(x), y))


def test_lemma_1_the_batch_loss_is_an_unbiased_estimator_of_the_transformation_loss():
    """Over all n^b batches drawn independently from n images, exactly."""
    n, b = 4, 3
    net = network("r0,r1,r2")
    x, y = torch.randn(n, 1, 5, 5, dtype=torch.float64), torch.tensor([0, 1, 2, 0])
    with torch.no_grad():
        batches = [list(indices) for indices in itertools.product(range(n), repeat=b)]
        losses = torch.stack([net.loss(x[i], y[i]) for i in batches])
        assert len(losses) == n**b
        assert losses.std() > 1e-3
        assert torch.allclose(losses.mean(), net.loss(x, y), rtol=1e-12)


def test_footnote_1_parameters_per_head():
    """The percentages are right for ResNet-18, the counts are not; ImageNet-200 used ResNet-50."""

    def head_and_share(name, classes):
        model = backbones.create(name, num_classes=classes)
        one, two = (sum(p.numel() for p in TransNet(model, t).parameters()) for t in ("r0", "r0,r1"))
        return two - one, 100 * (two - one) / one

    cifar, tiny = head_and_share("resnet18-cifar", 100), head_and_share("torchvision:resnet18", 200)
    assert cifar[0] == 51_300
    assert tiny[0] == 102_600
    assert abs(cifar[1] - 0.45) < 0.01
    assert abs(tiny[1] - 0.90) < 0.011
    assert head_and_share("torchvision:resnet50", 200)[0] == 409_800


# ------------------------------------------------------------------------------------------- section 4.2: the example

TOP = torch.tensor([[1.0, 1, 1], [0, 0, 0], [0, 0, 0]], dtype=torch.float64)
EXAMPLE_X = torch.stack([TOP, TOP.flip(0)]).unsqueeze(1)
EXAMPLE_Y = torch.tensor([0, 1])


def example_network():
    net = network(("r0", "m2"), channels=2, classes=2, padding=0)
    net.requires_grad_(False)
    return net


def test_example_the_second_image_is_the_first_upside_down():
    assert torch.equal(d4.apply("m2", EXAMPLE_X[0]), EXAMPLE_X[1])
    assert d4.generate("r0,m2") == ("r0", "m2")


@settings(max_examples=25)
@given(st.integers(0, 2**32))
def test_example_invariant_kernels_cannot_have_zero_error(seed):
    torch.manual_seed(seed)
    net = example_network()
    kernel = torch.randn_like(net.backbone.conv.weight)
    net.backbone.conv.weight.copy_((kernel + d4.apply("m2", kernel)) / 2)
    for head in net.heads:
        torch.nn.init.normal_(head.weight, std=10)
    logits = net(EXAMPLE_X)
    assert torch.allclose(logits[0], logits[1])  # both heads give both images the same scores
    for i in range(2):
        assert (logits[:, i].argmax(-1) != EXAMPLE_Y).any()
    assert heads_loss(logits, EXAMPLE_Y, reduction="none").min() >= torch.log(torch.tensor(2.0)) - 1e-6


def test_example_the_given_weights_have_zero_error_but_not_zero_cross_entropy():
    """Erratum: the paper writes L = 0, which holds for the 0–1 loss; the cross-entropy is log(1 + e⁻³)."""
    net = example_network()
    net.backbone.conv.weight.copy_(EXAMPLE_X)
    net.backbone.conv.bias.zero_()
    net.heads[0].weight.copy_(torch.eye(2))
    net.heads[1].weight.copy_(torch.eye(2).flip(0))
    for head in net.heads:
        head.bias.zero_()
    logits = net(EXAMPLE_X)
    assert all(torch.equal(logits[:, i].argmax(-1), EXAMPLE_Y) for i in range(2))
    loss = heads_loss(logits, EXAMPLE_Y)
    assert torch.allclose(loss, torch.log1p(torch.exp(torch.tensor(-3.0, dtype=torch.float64))))
    assert round(loss.item(), 4) == 0.0486


# ------------------------------------------------------------------- section 4: compiling transforms, invariant optima


def resnet18_for_32():
    """A ResNet-18 as the paper has it for CIFAR: a 3×3 stem, no pooling behind it; nothing in it is trivial."""
    model = torchvision.models.resnet18(num_classes=10)
    model.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
    model.maxpool = nn.Identity()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean, std=0.1)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.1)
    return model.double().eval()


@pytest.fixture(scope="module")
def resnet():
    torch.manual_seed(0)
    return resnet18_for_32()


@torch.no_grad()
def error_of_the_plain_rule(model, t, side):
    """Prop. 1 to the letter: t⁻¹ on every kernel, and nothing else."""
    compiled = copy.deepcopy(model)
    for module in compiled.modules():
        if isinstance(module, nn.Conv2d):
            module.weight.copy_(d4.apply(d4.inverse(t), module.weight))
    x = torch.randn(2, 3, side, side, dtype=torch.float64)
    want = model(d4.apply(t, x))
    return ((compiled(x) - want).norm() / want.norm()).item()


@pytest.mark.parametrize(("t", "side"), [("r1", 33), ("r2", 33), ("m0", 33), ("m3", 33), ("m3", 32)])
def test_proposition_1_holds_as_stated_where_the_strides_fit(resnet, t, side):
    assert error_of_the_plain_rule(resnet, t, side) < 1e-12


@pytest.mark.parametrize("t", ["r1", "r2"])
def test_proposition_1_fails_as_stated_at_32_and_holds_with_moved_windows(resnet, t):
    """Erratum: the proof's induction needs c(t(x)) = t(t⁻¹(c)(x)), which a stride that does not fit breaks."""
    assert error_of_the_plain_rule(resnet, t, 32) > 0.05
    x = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    with torch.no_grad():
        want = resnet(d4.apply(t, x))
        assert ((fold(resnet, t, 32)(x) - want).norm() / want.norm()) < 1e-12


def convex_problem():
    """One head, fixed g, linear up to it: cross-entropy is convex in the kernels, and its optima are not unique."""
    x, y = torch.randn(120, 2, 5, 5, dtype=torch.float64), torch.randint(2, (120,))
    g = torch.randn(2, 3, dtype=torch.float64)  # three kernels for two logits: some changes leave the loss alone

    def loss(kernels, t):
        return F.cross_entropy(F.conv2d(d4.apply(t, x), kernels, padding=1).mean((2, 3)) @ g.T, y)

    return lambda kernels: sum(loss(kernels, t) for t in ("r0", "r1", "r2", "r3")) / 4


def minimise(loss, start):
    parameters = start.clone().requires_grad_()
    optimizer = torch.optim.LBFGS(
        [parameters], max_iter=2000, tolerance_grad=1e-12, tolerance_change=0, line_search_fn="strong_wolfe"
    )

    def closure():
        optimizer.zero_grad()
        value = loss(parameters)
        value.backward()
        return value

    optimizer.step(closure)
    return parameters.detach(), loss(parameters).item()


def test_proposition_2_the_group_mean_of_an_optimum_is_an_optimum():
    loss = convex_problem()
    kernels, optimum = minimise(loss, torch.randn(3, 2, 3, 3, dtype=torch.float64))
    mean = group_mean(kernels)
    assert invariance_score(kernels, measure="relative").max() > 0.1  # the optimum found is not invariant itself
    assert invariance_score(mean).max() < 1e-12
    assert abs(loss(mean).item() - optimum) < 1e-9
    _, constrained = minimise(lambda w: loss(group_mean(w)), torch.randn(3, 2, 3, 3, dtype=torch.float64))
    assert abs(constrained - optimum) < 1e-9


def test_lemma_2_some_head_folded_into_a_base_network_has_at_most_the_transformation_loss(resnet):
    """Erratum: the proof's h_{t⁻¹(θ)} takes X itself, not t(X)."""
    net = TransNet(resnet, ("r0", "r1", "r2")).double().eval()
    x, y = torch.randn(6, 3, 32, 32, dtype=torch.float64), torch.randint(10, (6,))
    with torch.no_grad():
        losses = heads_loss(net.logits(x), y, reduction="none")
        for i, t in enumerate(net.transforms):
            base = fold(nn.Sequential(net.backbone, net.heads[i]), t, 32)
            torch.testing.assert_close(F.cross_entropy(base(x), y), losses[i])
    assert losses.min() <= heads_loss(net.logits(x), y)


# ----------------------------------------------------------------------------------- section 5.3: the invariance score


@pytest.mark.parametrize("group", ["r0,r1,r2,r3", "m0", "r2,m1"])
def test_lemma_3_the_group_mean_is_the_nearest_invariant_kernel(group):
    """Against a minimisation over all u with u = t(u) for every t, which knows nothing of means."""
    kernel = torch.randn(1, 3, 3, dtype=torch.float64)
    basis = torch.eye(9, dtype=torch.float64).reshape(9, 3, 3)
    constraints = torch.cat([(basis - d4.apply(t, basis)).flatten(1).T for t in d4.generate(group)])
    _, singular, rows = torch.linalg.svd(constraints)
    invariant = rows[int((singular > 1e-9).sum()) :]
    solution, distance = minimise(
        lambda c: (kernel.flatten() - c @ invariant).square().sum(), torch.zeros(len(invariant), dtype=torch.float64)
    )
    nearest = (solution @ invariant).reshape(1, 1, 3, 3)
    torch.testing.assert_close(group_mean(kernel[None], group), nearest, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(invariance_score(kernel[None], group).item(), distance**0.5)
