"""The self-distillation loss pulls one head towards the mean of all heads."""

import pytest
import torch

from transnet import distillation_loss
from transnet.distillation import student_of
from transnet.errors import ModelError


@pytest.fixture
def logits():
    return torch.randn(5, 3, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()


def test_the_loss_is_the_divergence_from_the_mean_of_all_heads(logits):
    found = distillation_loss(logits, 1)
    mean, own = logits.mean(1).softmax(-1), logits[:, 1].softmax(-1)
    by_hand = (mean * (mean / own).log()).sum(1).mean()
    assert found.item() == pytest.approx(by_hand.item(), rel=1e-5)
    found.backward()
    assert logits.grad[:, 1].abs().min() > 0
    assert logits.grad[:, [0, 2]].count_nonzero() == 0  # the other heads get no gradient


def test_the_first_head_learns_unless_another_is_named(logits):
    distillation_loss(logits).backward()
    assert logits.grad[:, 0].abs().min() > 0
    assert logits.grad[:, 1:].count_nonzero() == 0


def test_heads_that_agree_have_no_loss(logits):
    alike = logits[:, :1].expand(-1, 3, -1)
    assert distillation_loss(alike).item() == pytest.approx(0, abs=1e-6)


def test_a_gradient_step_lowers_the_loss(logits):
    before = distillation_loss(logits)
    before.backward()
    assert distillation_loss(logits.detach() - logits.grad) < before


def test_half_precision_logits_have_the_gradient_of_single_precision():
    generator = torch.Generator().manual_seed(0)
    one = 8 * torch.randn(512, 1, 100, generator=generator)
    half = (one + 0.05 * torch.randn(512, 2, 100, generator=generator)).bfloat16()
    gradients = []
    for logits in (half.clone().requires_grad_(), half.float().requires_grad_()):
        distillation_loss(logits).backward()
        gradients.append(logits.grad.float())
    assert (gradients[0] - gradients[1]).norm() < 0.01 * gradients[1].norm()


def test_invalid_arguments_are_refused(logits):
    for fewer in (logits[:, 0], logits[:, :1]):
        with pytest.raises(ModelError) as caught:
            distillation_loss(fewer)
        assert caught.value.field == "logits"
    for student in (3, -1, 1.5, "r0"):
        with pytest.raises(ModelError) as caught:
            distillation_loss(logits, student)
        assert caught.value.field == "student"


def test_the_student_is_the_head_that_pruning_keeps():
    assert student_of(("r1", "r0"), 1.0) == 1
    for transforms, weight in ((("r0",), 1.0), (("r1", "r2"), 1.0), (("r0", "r1"), -1.0), (("r0", "r1"), float("nan"))):
        with pytest.raises(ModelError) as caught:
            student_of(transforms, weight)
        assert caught.value.field == "distillation"
