"""Calibration and disagreement on cases whose answer is known."""

import math

import pytest
import torch

from transnet.metrics import calibration_error, disagreement, uncertainty
from transnet.train.evaluate import ensemble_entry, scores_of


def test_members_that_agree_disagree_by_nothing() -> None:
    one = torch.randn(20, 1, 5)
    assert disagreement(one.expand(20, 3, 5)).max() < 1e-12


@pytest.mark.parametrize("members", [2, 3, 4])
def test_sure_and_contrary_members_disagree_by_log_m(members: int) -> None:
    logits = 1000 * torch.eye(members)[None].repeat(7, 1, 1)
    assert disagreement(logits).tolist() == pytest.approx([math.log(members)] * 7)


def test_calibration_error_is_the_gap_between_confidence_and_accuracy() -> None:
    logits = torch.tensor([0.8, 0.2]).log().expand(100, 2)
    labels = torch.tensor([0] * 50 + [1] * 50)
    assert calibration_error(logits, labels) == pytest.approx(0.3, abs=1e-6)


def test_disagreement_that_marks_the_errors_has_an_auroc_of_one() -> None:
    agreed, split = [[4.0, 0.0], [4.0, 0.0]], [[9.0, 0.0], [0.0, 1.0]]
    members, labels = torch.tensor([agreed] * 6 + [split] * 2), torch.tensor([0] * 6 + [1] * 2)
    found = uncertainty(members, labels)
    assert found["error_auroc"] == 1
    assert found["split_votes"] == 0.25
    assert uncertainty(members[:6], labels[:6])["error_auroc"] is None


def test_a_single_classifier_has_no_disagreement() -> None:
    assert set(uncertainty(torch.randn(8, 1, 3), torch.zeros(8, dtype=torch.long))) == {"calibration_error"}


def test_heads_of_one_network_are_an_ensemble() -> None:
    torch.manual_seed(0)
    logits, labels = torch.randn(50, 2, 4), torch.randint(4, (50,))
    full = scores_of(logits, labels, ("r0", "r1"))["full"]
    assert full == pytest.approx(ensemble_entry([logits[:, 0], logits[:, 1]], labels, passes=2))
