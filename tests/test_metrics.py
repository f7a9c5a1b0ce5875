"""Calibration and disagreement, on cases with a known result and against torchmetrics."""

import math

import pytest
import torch
from torchmetrics.functional.classification import binary_auroc

from transnet.metrics import auroc, calibration_error, disagreement, uncertainty
from transnet.train.evaluate import ensemble_score, scores_of_logits


def test_equal_members_do_not_disagree() -> None:
    one = torch.randn(20, 1, 5)
    assert disagreement(one.expand(20, 3, 5)).max() < 1e-12


@pytest.mark.parametrize("members", [2, 3, 4])
def test_certain_members_with_different_classes_disagree_by_log_m(members: int) -> None:
    logits = 1000 * torch.eye(members)[None].repeat(7, 1, 1)
    assert disagreement(logits).tolist() == pytest.approx([math.log(members)] * 7)


def test_calibration_error_is_the_gap_between_confidence_and_accuracy() -> None:
    logits = torch.tensor([0.8, 0.2]).log().expand(100, 2)
    labels = torch.tensor([0] * 50 + [1] * 50)
    assert calibration_error(logits, labels) == pytest.approx(0.3, abs=1e-6)


def expected_calibration_error(confidences: list[float], right: list[bool]) -> float:
    """Guo et al. 2017, Eq. 3: 15 equal bins, a confidence of 1 in the last one."""
    total = 0.0
    for i in range(15):
        inside = [k for k, c in enumerate(confidences) if i / 15 <= c < (i + 1) / 15 or (i == 14 and c == 1)]
        if inside:
            accuracy = sum(right[k] for k in inside) / len(inside)
            total += len(inside) / len(right) * abs(accuracy - sum(confidences[k] for k in inside) / len(inside))
    return total


@pytest.mark.parametrize("certain", [0, 10, 40])
def test_a_confidence_of_one_belongs_to_the_last_of_fifteen_bins(certain: int) -> None:
    logits = 3 * torch.randn(40, 5, generator=torch.Generator().manual_seed(0))
    logits[:certain] *= 1e4  # their softmax is exactly 1
    choice = logits.argmax(-1)
    labels = torch.where(torch.arange(40) % 3 == 0, (choice + 1) % 5, choice)
    confidences = logits.double().softmax(-1).amax(-1).tolist()
    assert confidences.count(1.0) == certain
    right = (choice == labels).tolist()
    assert calibration_error(logits, labels) == pytest.approx(expected_calibration_error(confidences, right), abs=1e-9)


def test_nearly_and_entirely_certain_predictions_share_a_bin() -> None:
    # Confidence 0.95 and always right, confidence 1 and right in nine of ten cases: well calibrated on average.
    logits = torch.cat([torch.tensor([[0.95, 0.05]]).log().expand(10, 2), torch.tensor([[1e4, 0.0]]).expand(10, 2)])
    labels = torch.tensor([0] * 19 + [1])
    assert calibration_error(logits, labels) == pytest.approx(0.975 - 0.95, abs=1e-6)


def test_disagreement_that_separates_the_errors_has_an_auroc_of_one() -> None:
    agreed, split = [[4.0, 0.0], [4.0, 0.0]], [[9.0, 0.0], [0.0, 1.0]]
    members, labels = torch.tensor([agreed] * 6 + [split] * 2), torch.tensor([0] * 6 + [1] * 2)
    found = uncertainty(members, labels)
    assert found["error_auroc"] == 1
    assert found["split_votes"] == 0.25
    assert "error_auroc" not in uncertainty(members[:6], labels[:6])


@pytest.mark.parametrize("levels", [3, 10**6])  # with many ties and with few
def test_auroc_equals_that_of_torchmetrics(levels: int) -> None:
    generator = torch.Generator().manual_seed(0)
    values = torch.randint(levels, (200,), generator=generator) / levels
    positive = torch.rand(200, generator=generator) < 0.3 + 0.4 * values
    assert auroc(values, positive) == pytest.approx(binary_auroc(values, positive.long()).item(), abs=1e-6)


def test_auroc_needs_positives_and_negatives() -> None:
    values = torch.rand(5)
    assert auroc(values, torch.ones(5, dtype=torch.bool)) is None
    assert auroc(values, torch.zeros(5, dtype=torch.bool)) is None


def test_a_single_classifier_has_no_disagreement() -> None:
    assert set(uncertainty(torch.randn(8, 1, 3), torch.zeros(8, dtype=torch.long))) == {"calibration_error"}


def test_heads_of_one_network_are_an_ensemble() -> None:
    torch.manual_seed(0)
    logits, labels = torch.randn(50, 2, 4), torch.randint(4, (50,))
    full = scores_of_logits(logits, labels, ("r0", "r1")).full
    ensemble = ensemble_score([logits[:, 0], logits[:, 1]], labels, passes=2)
    assert full.uncertainty == ensemble.uncertainty
    assert (full.accuracy, full.passes) == (ensemble.accuracy, ensemble.passes)
    assert full.loss == pytest.approx(ensemble.loss)
