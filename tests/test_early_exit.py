import json

import pytest
import torch
from torch import nn

from trained import digits_run
from transnet import TransNet, anytime
from transnet.cli import run
from transnet.early_exit import Auto, Calibration, calibrate, calibrate_run, curve, tradeoff
from transnet.errors import TransnetError


@pytest.fixture
def net():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 3))
    net = TransNet(model, "r0,r1,r2").eval()
    with torch.no_grad():  # heads that are of different minds about different images
        for scale, head in zip((4, 4, 64), net.heads, strict=True):
            head.weight.mul_(scale)
    return net.requires_grad_(False)


@pytest.fixture
def x():
    return 3 * torch.randn(40, 1, 8, 8, generator=torch.Generator().manual_seed(1))


def passes(net):
    """How many images each pass of the backbone gets."""
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


def test_only_undecided_images_go_on(net, x):
    middle = float(against_runner_up(net.predict(x, heads="r0")).median())
    sizes = passes(net)
    probabilities, used = anytime(net, x, confidence=middle)
    assert sizes[0] == 40
    assert sizes[1] == int((used > 1).sum()) < 40
    assert 0 < sizes[2] == int((used > 2).sum()) < sizes[1]
    assert torch.equal(used == 1, against_runner_up(net.predict(x, heads="r0")) >= middle)
    two = net.predict(x, heads="r0,r1")
    assert torch.allclose(probabilities[used == 2], two.softmax(-1)[used == 2], atol=1e-6)
    # The odds that two heads give are multiplied: each is as good a witness as the other.
    enough = against_runner_up(2 * two) >= middle
    assert torch.equal((used == 2)[used > 1], enough[used > 1])


def against_runner_up(logits):
    first, second = logits.softmax(-1).topk(2, -1).values.unbind(-1)
    return first / (first + second)


def test_it_keeps_each_image_apart_from_its_batch(net, x):
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


def test_mistakes_say_what_would_work(net, x):
    with pytest.raises(ValueError, match=r"confidence: 90 was given; a probability from 0 to 1"):
        anytime(net, x, confidence=90)
    with pytest.raises(ValueError, match=r"call net.eval\(\)"):
        anytime(net.train(), x)


def test_images_that_a_later_head_could_not_take_are_refused_at_once(net):
    wide = torch.randn(2, 1, 8, 12)
    with pytest.raises(ValueError, match="needs square images"):
        anytime(net, wide, confidence=0)


def test_the_curve_is_what_anytime_does(net, x):
    y = torch.arange(40) % 3
    thresholds = torch.tensor([0.0, 0.4, 0.6, 1.0])
    points = curve(net.logits(x).detach(), y, thresholds)
    for i, threshold in enumerate(thresholds.tolist()):
        probabilities, used = anytime(net, x, confidence=threshold)
        assert float(points.passes[i]) == pytest.approx(float(used.double().mean()))
        assert float(points.accuracy[i]) == pytest.approx(float((probabilities.argmax(-1) == y).double().mean()))
    assert points.full == pytest.approx(float(points.accuracy[-1]))


def test_calibration_finds_the_cheapest_threshold_that_keeps_its_promise():
    # The first head is right where it is sure; where it is not, the second is needed.
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
    with pytest.raises(ValueError, match=r"passes: 0.5"):
        calibrate(logits, y, passes=0.5)
    with pytest.raises(ValueError, match="within: -1"):
        calibrate(logits, y, within=-1)


def test_calibration_of_a_run_needs_a_validation_split():
    chosen = calibrate_run(digits_run())
    assert 0.5 <= chosen.confidence <= 1
    assert (chosen.heads, chosen.n, chosen.within) == (3, 143, 0.1)
    assert 1 <= chosen.passes <= 3
    with pytest.raises(TransnetError, match=r"confidence: .*`val_fraction`.*give a number"):
        calibrate_run(digits_run(transforms="r0,r1", val_fraction=0.0))


@pytest.mark.parametrize(
    ("passes", "meaning"),
    [
        (1.0, "one head for every image"),
        (3.0, "all 3 heads for every image"),
        (1.25, "1.25 of 3 heads for an image on average"),
    ],
)
def test_a_calibration_says_what_its_threshold_means(passes, meaning):
    said = str(Calibration(0.5, passes, heads=3, n=1430, lost=0.07, within=0.1))
    assert said == f"confidence 0.5000, {meaning}: within 0.1 points of all heads on 1,430 validation images"


@pytest.mark.parametrize(
    ("lost", "meaning"), [(0.21, "0.21 points below"), (0.0, "no worse than"), (-0.3, "no worse than")]
)
def test_for_so_many_passes_a_calibration_says_what_is_lost(lost, meaning):
    assert f": {meaning} all heads on 50 validation images" in str(Calibration(0.9, 1.4, heads=3, n=50, lost=lost))


def test_a_run_is_calibrated_for_passes_as_well():
    chosen = calibrate_run(digits_run(), passes=1.5)
    assert 1 <= chosen.passes <= 1.5
    assert chosen.within is None
    assert calibrate_run(digits_run(), passes=3).confidence == 1


def test_a_target_that_cannot_be_met_is_refused():
    with pytest.raises(TransnetError, match=r"passes: 0.5 was given; 1 or more is needed"):
        Auto(passes=0.5)
    with pytest.raises(TransnetError, match=r"within: nan was given"):
        Auto(within=float("nan"))


def test_the_tradeoff_takes_its_thresholds_from_other_images():
    generator = torch.Generator().manual_seed(0)
    logits, others = (scale * torch.randn(400, 3, 4, generator=generator) for scale in (1, 5))
    y = torch.arange(400) % 4
    points, same = tradeoff(logits, y, (others, y)), tradeoff(logits, y, (logits, y))
    for found in (points, same):
        assert float(found.passes[0]) == 1
        assert float(found.passes[-1]) == 3
        assert float(found.accuracy[-1]) == found.full
    assert same.passes[1:-1].tolist() == pytest.approx([1.1, 1.2, 1.4, 1.7, 2.0, 2.5], abs=0.05)
    # The others' heads are five times as sure, so that their thresholds let none of these images go early.
    assert (points.passes[1:-1] > same.passes[1:-1] + 0.1).all()
    assert points.confidence.tolist() == tradeoff(others, y, (others, y)).confidence.tolist()


def test_evaluate_shows_and_draws_what_anytime_prediction_costs(tmp_path, capsys):
    path, out = str(digits_run()), tmp_path / "figures"
    assert run(["evaluate", path, "--anytime", "--out", str(out)]) == 0
    said = capsys.readouterr()
    assert "anytime, the image alone" in said.out
    assert "chosen on the validation split" in " ".join(said.out.split())
    assert str(out / "anytime-run.svg") in said.err
    assert sorted(file.name for file in out.iterdir()) == ["anytime-run.pdf", "anytime-run.png", "anytime-run.svg"]
    assert run(["evaluate", path, "--anytime", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)[path]
    points = found["anytime"]["points"]
    assert points["accuracy"][0] == found["plain"]["pruned"]["accuracy"]
    assert points["accuracy"][-1] == found["plain"]["full"]["accuracy"]
    assert (points["passes"][0], points["passes"][-1]) == (1, 3)
    chosen = calibrate_run(path, passes=1.4).confidence  # on the validation split
    assert chosen in points["confidence"]
    assert run(["evaluate", path, "--anytime", "--split", "val"]) == 0
    assert "chosen on the images that judge it" in " ".join(capsys.readouterr().out.split())


def test_figures_of_runs_with_one_name_are_kept_apart(tmp_path, capsys):
    paths = [str(digits_run()), str(digits_run(transforms="r0,r1", val_fraction=0.0))]  # both are called run
    assert run(["evaluate", *paths, "--anytime", "--json", "--out", str(tmp_path)]) == 0
    assert sorted(file.name for file in tmp_path.glob("*.svg")) == ["anytime-1-run.svg", "anytime-2-run.svg"]


def test_evaluate_refuses_what_it_cannot_draw(tmp_path, capsys):
    (tmp_path / "file").write_text("in the way")
    one = str(digits_run(transforms="r0"))
    for words, message in (
        ([one, "--anytime"], "has one head, so there is nothing to stop early"),
        ([str(digits_run()), "--out", str(tmp_path / "figures")], "where --anytime draws; add that"),
        ([str(digits_run()), "--anytime", "--out", str(tmp_path / "file")], "is a file; give a folder"),
    ):
        assert run(["evaluate", *words]) == 2
        assert message in capsys.readouterr().err
    assert not (tmp_path / "figures").exists()
