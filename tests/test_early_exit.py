"""Early exit runs further heads only for undecided images; its threshold is chosen on other data."""

import pytest
import torch
from torch import nn

from transnet import TransNet, anytime
from transnet.early_exit import calibrate, curve, tradeoff
from transnet.errors import ConfigError, ModelError


@pytest.fixture
def net():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 3))
    net = TransNet(model, "r0,r1,r2").eval()
    with torch.no_grad():  # so that the heads choose different classes
        for scale, head in zip((4, 4, 64), net.heads, strict=True):
            head.weight.mul_(scale)
    return net.requires_grad_(False)


@pytest.fixture
def x():
    return 3 * torch.randn(40, 1, 8, 8, generator=torch.Generator().manual_seed(1))


def passes(net):
    """Record the number of images in each pass of the backbone."""
    sizes = []
    net.backbone.register_forward_hook(lambda module, args, output: sizes.append(len(args[0])))
    return sizes


def test_confidence_one_is_the_full_model_and_zero_the_first_head(net, x):
    all_heads, used = anytime(net, x, confidence=1.0)
    assert torch.allclose(all_heads, net.predict(x).softmax(-1), atol=1e-6)
    assert used.tolist() == [3] * 40
    first, used = anytime(net, x, confidence=0.0)
    assert torch.allclose(first, net.predict(x, heads="r0").softmax(-1), atol=1e-6)
    assert used.tolist() == [1] * 40


def test_only_undecided_images_run_the_next_head(net, x):
    middle = float(against_runner_up(net.predict(x, heads="r0")).median())
    sizes = passes(net)
    probabilities, used = anytime(net, x, confidence=middle)
    assert sizes[0] == 40
    assert sizes[1] == int((used > 1).sum()) < 40
    assert 0 < sizes[2] == int((used > 2).sum()) < sizes[1]
    assert torch.equal(used == 1, against_runner_up(net.predict(x, heads="r0")) >= middle)
    two = net.predict(x, heads="r0,r1")
    assert torch.allclose(probabilities[used == 2], two.softmax(-1)[used == 2], atol=1e-6)
    # The odds of the two heads are multiplied.
    enough = against_runner_up(2 * two) >= middle
    assert torch.equal((used == 2)[used > 1], enough[used > 1])


def against_runner_up(logits):
    first, second = logits.softmax(-1).topk(2, -1).values.unbind(-1)
    return first / (first + second)


def test_images_of_a_batch_do_not_influence_each_other(net, x):
    together, used = anytime(net, x, confidence=0.5)
    for i in (0, 7, 39):
        alone, number = anytime(net, x[i : i + 1], confidence=0.5)
        assert torch.allclose(alone[0], together[i], atol=1e-6)
        assert number.item() == used[i]


def test_shared_heads_and_statistics_per_transform_work(x):
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))
    net = TransNet(model, "r0,r1", heads="shared", bn="separate").eval()
    assert torch.allclose(anytime(net, x, confidence=1.0)[0], net.predict(x).softmax(-1), atol=1e-6)


def test_it_needs_no_running_statistics(x):
    norm = nn.BatchNorm2d(4, track_running_stats=False)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), norm, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))
    net = TransNet(model, "r0,r1", bn="separate").eval()
    assert torch.allclose(anytime(net, x, confidence=0.0)[0], net.predict(x, heads="r0").softmax(-1), atol=1e-6)


def test_invalid_arguments_are_refused(net, x):
    with pytest.raises(ConfigError) as caught:
        anytime(net, x, confidence=90)
    assert caught.value.field == "confidence"
    with pytest.raises(ModelError, match=r"call net.eval\(\)"):
        anytime(net.train(), x)
    with pytest.raises(ModelError, match="labels"):
        curve(torch.randn(4, 2, 3), torch.zeros(5, dtype=torch.long))


def test_images_that_only_a_later_head_cannot_take_are_refused(net):
    wide = torch.randn(2, 1, 8, 12)
    with pytest.raises(ValueError, match="needs square images"):
        anytime(net, wide, confidence=0)


def test_curve_equals_anytime(net, x):
    y = torch.arange(40) % 3
    thresholds = torch.tensor([0.0, 0.4, 0.6, 1.0])
    points = curve(net.logits(x).detach(), y, thresholds)
    for i, threshold in enumerate(thresholds.tolist()):
        probabilities, used = anytime(net, x, confidence=threshold)
        assert float(points.passes[i]) == pytest.approx(float(used.double().mean()))
        assert float(points.accuracy[i]) == pytest.approx(float((probabilities.argmax(-1) == y).double().mean()))
    assert points.full == pytest.approx(float(points.accuracy[-1]))


def test_calibrate_finds_the_lowest_threshold_within_the_target():
    # The first head is right whenever it is certain; otherwise the second is needed.
    sure, unsure = torch.tensor([[4.0, 0.0], [4.0, 0.0]]), torch.tensor([[0.2, 0.0], [0.0, 5.0]])
    logits = torch.stack([sure] * 70 + [unsure] * 30)
    y = torch.tensor([0] * 70 + [1] * 30)
    threshold = calibrate(logits, y, within=0.1)
    points = curve(logits, y, torch.tensor([threshold]))
    assert points.full == 1.0
    assert float(points.accuracy[0]) == 1.0
    assert float(points.passes[0]) == pytest.approx(1.3)
    assert calibrate(logits, y, within=100) == 0.5  # one head for every image
    affordable = calibrate(logits, y, passes=1.3)
    assert threshold <= affordable < calibrate(logits, y, passes=2) == 1.0
    assert float(curve(logits, y, torch.tensor([affordable])).passes[0]) <= 1.3
    for field, value in (("passes", 0.5), ("within", -1), ("within", float("nan"))):
        with pytest.raises(ConfigError) as caught:
            calibrate(logits, y, **{field: value})
        assert caught.value.field == field


def test_tradeoff_chooses_its_thresholds_on_the_other_images():
    generator = torch.Generator().manual_seed(0)
    logits, others = (scale * torch.randn(400, 3, 4, generator=generator) for scale in (1, 5))
    y = torch.arange(400) % 4
    points, same = tradeoff(logits, y, (others, y)), tradeoff(logits, y, (logits, y))
    for found in (points, same):
        assert float(found.passes[0]) == 1
        assert float(found.passes[-1]) == 3
        assert float(found.accuracy[-1]) == found.full
    assert same.passes[1:-1].tolist() == pytest.approx([1.1, 1.2, 1.4, 1.7, 2.0, 2.5], abs=0.05)
    # The others' heads are five times as sure, so that their thresholds stop none of these images early.
    assert (points.passes[1:-1] > same.passes[1:-1] + 0.1).all()
    assert points.confidence.tolist() == tradeoff(others, y, (others, y)).confidence.tolist()
