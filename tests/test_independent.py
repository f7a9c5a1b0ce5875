"""Comparisons with independent implementations: ttach, e2cnn, statsmodels and scikit-learn.

A comparison is skipped if its package is not installed. The extra ``dev`` has all of them.
"""

import warnings
from types import ModuleType

import numpy as np
import pytest
import torch
from sklearn.metrics import balanced_accuracy_score, log_loss, roc_auc_score

from small_models import small
from transnet import TransNet, d4, invariance_score
from transnet.invariance import group_mean
from transnet.metrics import auroc
from transnet.study.statistics import difference
from transnet.train.evaluate import ensemble_score


@pytest.fixture(scope="module")
def ttach() -> ModuleType:
    return pytest.importorskip("ttach")


@pytest.fixture(scope="module")
def e2cnn() -> ModuleType:
    return pytest.importorskip("e2cnn")


# ------------------------------------------------------------------------------------- ttach: test-time augmentation


def test_one_shared_head_under_d4_is_ttachs_d4_augmentation(ttach: ModuleType) -> None:
    model, x = small().eval(), torch.randn(6, 3, 16, 16)
    net = TransNet(model, d4.NAMES, heads="shared", init="copy").eval()
    augmented = ttach.ClassificationTTAWrapper(model, ttach.aliases.d4_transform(), merge_mode="mean")
    with torch.no_grad():
        torch.testing.assert_close(net(x), augmented(x), atol=1e-5, rtol=1e-5)


def test_flip_tta_is_ttachs_horizontal_flip(ttach: ModuleType) -> None:
    model, x = small().eval(), torch.randn(6, 3, 16, 16)
    net = TransNet(model, "r0", init="copy").eval()
    augmented = ttach.ClassificationTTAWrapper(model, ttach.aliases.hflip_transform(), merge_mode="mean")
    with torch.no_grad():
        torch.testing.assert_close(net.predict(x, flip=True), augmented(x), atol=1e-5, rtol=1e-5)


def test_the_elements_of_d4_are_ttachs(ttach: ModuleType) -> None:
    x = torch.randn(1, 1, 5, 5)
    ours = {tuple(d4.apply(name, x).flatten().tolist()) for name in d4.NAMES}
    theirs = {tuple(t.augment_image(x).flatten().tolist()) for t in ttach.aliases.d4_transform()}
    assert len(ours) == 8
    assert ours == theirs


# ------------------------------------------------------------------------------------ e2cnn: invariant convolutions


@pytest.mark.parametrize(("turns", "group"), [(4, "r1"), (2, "r2")])  # numpy 2.3 broke e2cnn's reflections
@pytest.mark.parametrize("side", [3, 5])
def test_kernels_that_e2cnn_makes_invariant_have_a_score_of_zero(
    e2cnn: ModuleType, turns: int, group: str, side: int
) -> None:
    rotations = e2cnn.gspaces.Rot2dOnR2(turns)
    fields = [e2cnn.nn.FieldType(rotations, [rotations.trivial_repr] * n) for n in (3, 4)]
    with warnings.catch_warnings(action="ignore"):  # about its use of torch
        weight = e2cnn.nn.R2Conv(*fields, kernel_size=side, bias=False).expand_parameters()[0].detach()
    assert weight.flatten(1).norm(dim=1).min() > 0
    assert invariance_score(weight, group, "relative").max() < 1e-5
    torch.testing.assert_close(group_mean(weight, group), weight)
    assert invariance_score(torch.randn_like(weight), group, "relative").min() > 0.1


# --------------------------------------------------------------------------------------- statsmodels: Welch's interval


@pytest.mark.parametrize("n", [(2, 2), (3, 3), (3, 10), (8, 5)])
def test_intervals_are_statsmodels(n: tuple[int, int]) -> None:
    weightstats = pytest.importorskip("statsmodels.stats.weightstats")
    random = np.random.default_rng(sum(n))
    ours, others = (random.normal(size, 1 / size, size) for size in n)
    low, high = weightstats.CompareMeans.from_data(ours, others).tconfint_diff(usevar="unequal")
    found = difference(ours.tolist(), others.tolist())
    assert (found.low, found.high) == pytest.approx((low, high), rel=1e-9)


# ------------------------------------------------------------------------------------------- scikit-learn: metrics


@pytest.mark.parametrize("seed", range(5))
def test_auroc_is_scikit_learns(seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    values = torch.randn(200, generator=random).mul(4).round()  # with ties
    positive = torch.rand(200, generator=random) < 0.3
    assert auroc(values, positive) == pytest.approx(roc_auc_score(positive, values), abs=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_loss_and_balanced_accuracy_are_scikit_learns(seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    logits, y = torch.randn(2, 90, 4, generator=random).double(), torch.arange(90) % 4
    found, mean = ensemble_score(list(logits), y, passes=2), logits.mean(0)
    assert found.loss == pytest.approx(log_loss(y, mean.softmax(-1), labels=range(4)), rel=1e-6)
    assert found.balanced_accuracy == pytest.approx(balanced_accuracy_score(y, mean.argmax(-1)))
