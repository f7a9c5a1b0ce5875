"""The paper's equations, lemmas and examples, by their numbers, as statements that can fail."""

import copy
import itertools
import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import torchvision
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from transnet import TransNet, backbones, d4, distillation_loss, heads_loss
from transnet.folding.fold import fold
from transnet.invariance import group_mean, invariance_score, layer_invariance, random_kernel_score


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


def test_lemma_1_fails_with_batch_norm_in_training_mode():
    """Erratum: each image's loss then depends on the rest of its batch, so the mean over batches differs."""
    n, b = 4, 2
    layers = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)
    net = TransNet(nn.Sequential(*layers).double(), "r0,r1,r2", bn="separate")
    for head in net.heads:
        nn.init.normal_(head.weight)
    x, y = torch.randn(n, 1, 5, 5, dtype=torch.float64), torch.tensor([0, 1, 2, 0])
    with torch.no_grad():
        losses = torch.stack([net.loss(x[list(i)], y[list(i)]) for i in itertools.product(range(n), repeat=b)])
        whole = net.loss(x, y)
    assert abs(losses.mean() - whole) > 0.01 * whole


def test_footnote_1_parameters_per_head():
    """Erratum: 102K and 513K are a head's parameters with 200 and 1000 classes, not with 100 and 200."""

    def head_and_share(name, classes):
        model = backbones.create(name, num_classes=classes)
        one, two = (sum(p.numel() for p in TransNet(model, t).parameters()) for t in ("r0", "r0,r1"))
        return two - one, 100 * (two - one) / one

    cifar, tiny = head_and_share("resnet18-cifar", 100), head_and_share("torchvision:resnet18", 200)
    assert (cifar[0], round(cifar[1], 2)) == (51_300, 0.46)
    assert (tiny[0], round(tiny[1], 2)) == (102_600, 0.91)
    assert head_and_share("torchvision:resnet18", 1000)[0] == 513_000
    used = head_and_share("torchvision:resnet50", 200)
    assert (used[0], round(used[1], 2)) == (409_800, 1.71)


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
    """A ResNet-18 as in the paper for CIFAR: a 3×3 stem without pooling, random batch norm statistics."""
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
def test_proposition_1_holds_as_stated_if_the_strides_fit(resnet, t, side):
    assert error_of_the_plain_rule(resnet, t, side) < 1e-12


@pytest.mark.parametrize("t", ["r1", "m1"])
def test_proposition_1_holds_as_stated_with_the_stem_for_imagenet_at_225(t):
    assert error_of_the_plain_rule(torchvision.models.resnet18(num_classes=10).double().eval(), t, 225) < 1e-12


@pytest.mark.parametrize("t", ["r1", "r2"])
def test_proposition_1_fails_as_stated_at_32_and_holds_with_moved_windows(resnet, t):
    """Erratum: the proof's induction needs c(t(x)) = t(t⁻¹(c)(x)), which a stride that does not fit breaks."""
    assert error_of_the_plain_rule(resnet, t, 32) > 0.05
    x = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    with torch.no_grad():
        want = resnet(d4.apply(t, x))
        assert ((fold(resnet, t, 32)(x) - want).norm() / want.norm()) < 1e-12


def convex_problem(group="r0,r1,r2,r3", *, side=5, stride=1, padding=1):
    """One head, fixed g, linear up to it: cross-entropy is convex in the kernels, and its optima are not unique."""
    x, y = torch.randn(120, 2, side, side, dtype=torch.float64), torch.randint(2, (120,))
    g = torch.randn(2, 3, dtype=torch.float64)  # three kernels for two logits: some changes do not affect the loss
    transforms = d4.generate(group)

    def loss(kernels, t):
        features = F.conv2d(d4.apply(t, x), kernels, stride=stride, padding=padding).mean((2, 3))
        return F.cross_entropy(features @ g.T, y)

    return lambda kernels: sum(loss(kernels, t) for t in transforms) / len(transforms)


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


GROUPS = ["r0,r1,r2,r3", "r2", "m0", "m1", "m2", "m3", "r2,m0", "r2,m1", "r1,m0"]  # all of D4's but the trivial one


def gap_to_invariant_kernels(group, **layer):
    """The least loss with kernels invariant under the group, less the least with any kernels."""
    loss = convex_problem(group, **layer)
    start = torch.randn(3, 2, 3, 3, dtype=torch.float64)
    _, optimum = minimise(loss, start)
    _, constrained = minimise(lambda kernels: loss(group_mean(kernels, group)), start)
    return constrained - optimum


@pytest.mark.parametrize(("side", "padding"), [(7, 0), (7, 1)])
@pytest.mark.parametrize("group", GROUPS)
def test_proposition_2_holds_for_every_group_if_the_strides_fit(group, side, padding):
    assert abs(gap_to_invariant_kernels(group, side=side, stride=2, padding=padding)) < 1e-9


@pytest.mark.parametrize(("side", "padding"), [(6, 0), (6, 1)])
@pytest.mark.parametrize("group", GROUPS)
def test_proposition_2_fails_if_the_strides_do_not_fit_for_every_group_but_that_of_m3(group, side, padding):
    """Erratum: the proof uses Prop. 1, which then fails for every t but m3."""
    gap = gap_to_invariant_kernels(group, side=side, stride=2, padding=padding)
    if group == "m3":
        assert abs(gap) < 1e-9
    else:
        assert gap > 2e-3


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


def test_lemma_2_fails_if_the_strides_do_not_fit():
    """Erratum: no network with this layer separates the two upright images, but one separates them upside down."""
    x, y = torch.zeros(2, 1, 6, 6, dtype=torch.float64), torch.tensor([0, 1])
    x[0, :, 0], x[1, :, 2] = 1, 1  # a bright row, the first or the third
    model = ConvGapLinear(channels=2, classes=2).double()
    model.conv.stride = (2, 2)
    for _ in range(10):
        for parameter in model.parameters():
            nn.init.normal_(parameter)
        torch.testing.assert_close(model(x[:1]), model(x[1:]))  # so that no base network's loss is less than log 2
    log_2 = torch.log(torch.tensor(2.0, dtype=torch.float64))

    net = TransNet(model, ("r0", "r2")).requires_grad_(False)
    net.backbone.conv.weight.zero_()
    net.backbone.conv.weight[0, :, 0] = 1  # the top row of the kernel meets row 3, which is row 2 upside down
    net.backbone.conv.bias.zero_()
    for head, scale in zip(net.heads, (0, 100), strict=True):
        head.weight.copy_(scale * torch.tensor([[-1, 0], [1, 0]]))
        head.bias.copy_(scale * torch.tensor([0.1, -0.1]))
    loss = net.loss(x, y)
    assert loss < 0.51 * log_2
    folded = fold(nn.Sequential(net.backbone, net.heads[1]), "r2", 6)  # with moved windows the lemma holds
    assert F.cross_entropy(folded(x), y) < loss


# ----------------------------------------------------------------------------------- section 5.3: the invariance score


@pytest.mark.parametrize("group", ["r0,r1,r2,r3", "m0", "r2,m1"])
def test_lemma_3_the_group_mean_is_the_nearest_invariant_kernel(group):
    """Against a minimisation over all u with u = t(u) for every t, without means."""
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


class QuarterTurnEquivariant(nn.Module):
    """Kernels in four rotated copies, then a group convolution: a turn of the image turns and permutes the channels."""

    def __init__(self, inputs=3, width=32):
        super().__init__()
        self.lift = nn.Conv2d(inputs, 4 * width, 3, padding=1, bias=False)
        self.conv = nn.Conv2d(4 * width, 4 * width, 3, padding=1, bias=False)
        kernels = torch.randn(width, inputs, 3, 3)
        lifted = [d4.apply(t, kernels) for t in ("r0", "r1", "r2", "r3")]
        kernels = torch.randn(width, 4, width, 3, 3)
        turned = [d4.apply(t, kernels).roll(i, 1).flatten(1, 2) for i, t in enumerate(("r0", "r1", "r2", "r3"))]
        with torch.no_grad():
            self.lift.weight.copy_(torch.cat(lifted))
            self.conv.weight.copy_(torch.cat(turned))
        self.fc = nn.Linear(width, 10)

    def maps(self, x):
        return self.conv(self.lift(x).relu()).relu().unflatten(1, (4, -1))

    def forward(self, x):
        return self.fc(self.maps(x).amax(1).mean((2, 3)))


@torch.no_grad()
def test_the_invariance_score_does_not_see_equivariance_that_permutes_channels():
    model = QuarterTurnEquivariant().double()
    x = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    turned = d4.apply("r1", x)
    torch.testing.assert_close(model.maps(turned), d4.apply("r1", model.maps(x)).roll(1, 1))  # exactly equivariant
    torch.testing.assert_close(model(turned), model(x))  # and its logits are invariant
    for name, scores in layer_invariance(model, measure="relative").items():
        expected = random_kernel_score(model.get_submodule(name).weight.shape[1:])
        assert abs(scores.mean() - expected) < 0.02 * expected


# --------------------------------------------------------------------------------- what this implementation adds


@torch.no_grad()
@pytest.mark.parametrize("bn", ["joint", "separate"])
def test_running_statistics_depend_on_the_order_of_transforms_with_separate_batch_norm_only(bn):
    layers = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)
    model = nn.Sequential(*layers).double()
    x = torch.rand(8, 1, 6, 6, dtype=torch.float64)
    pruned, means = {}, {}
    for order in ("r0,r1,r2,r3", "r3,r2,r1,r0"):
        net = TransNet(model, order, init="copy", bn=bn)
        for _ in range(200):
            net(x)
        pruned[order] = net.prune().eval()
        means[order] = pruned[order][1].running_mean
    first, second = means.values()
    if bn == "joint":
        torch.testing.assert_close(first, second)
        return
    # The last of four transforms has a weight of 29 %, the first of 21 %.
    weight = 0.9 ** torch.arange(3, -1, -1, dtype=torch.float64)
    weight /= weight.sum()
    assert [round(100 * w) for w in weight.tolist()] == [21, 24, 26, 29]
    each = torch.stack([model[0](d4.apply(t, x)).mean((0, 2, 3)) for t in ("r0", "r1", "r2", "r3")])
    torch.testing.assert_close(first, weight @ each)
    torch.testing.assert_close(second, weight.flip(0) @ each)
    assert not torch.allclose(*(network(x) for network in pruned.values()), rtol=1e-5)


@pytest.mark.parametrize("m", [2, 4])
def test_self_distillation_at_weight_1_is_m_times_as_strong_as_that_of_sla(m):
    """SLA's own classifier for one pass has the loss CE + KL. Here the cross-entropy of each head has weight 1/m."""
    logits, y = torch.randn(8, m, 5, dtype=torch.float64, requires_grad=True), torch.randint(5, (8,))
    together = logits.detach().mean(1).softmax(-1)

    def gradient_of_the_identity_head(loss):
        return torch.autograd.grad(loss, logits)[0][:, 0]

    def sla(strength):
        divergence = F.kl_div(logits[:, 0].log_softmax(-1), together, reduction="batchmean")
        return gradient_of_the_identity_head(F.cross_entropy(logits[:, 0], y) + strength * divergence)

    def transnet(weight):
        return gradient_of_the_identity_head(heads_loss(logits, y) + weight * distillation_loss(logits))

    torch.testing.assert_close(transnet(1), sla(m) / m)
    torch.testing.assert_close(transnet(1 / m), sla(1) / m)


def test_every_test_that_the_errata_page_names_exists():
    page = (Path(__file__).parents[1] / "docs" / "errata.md").read_text()
    named = set(re.findall(r"`(test_\w+)`", page))
    assert len(named) > 10
    assert named <= set(globals())
