"""A model that mixes the images of a batch is named in a warning."""

import warnings

import pytest
import timm
import torch
from torch import nn

from small_models import Bare, K, batch, small
from small_runs import Plain, images_file, run
from transnet import TransNet


class Mixing(Bare):
    def forward(self, x):
        return super().forward(x + 0.1 * x.mean(0))


def test_timms_gcvit_is_found_at_the_first_batch_in_evaluation_mode_and_once():
    net = TransNet(timm.create_model("gcvit_xxtiny", num_classes=K)).eval()
    x = torch.randn(2, 3, 224, 224)
    with torch.no_grad():
        with pytest.warns(UserWarning, match="GlobalContextVit.*depends on the other images"):
            net(x)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            net(x)


def test_a_run_warns_before_it_trains(tmp_path):
    class MixingPlain(Plain):
        def forward(self, x):
            return super().forward(x + 0.1 * x.mean(0))

    with pytest.warns(UserWarning, match="MixingPlain.*depends on the other images"):
        run(images_file(tmp_path / "x.npz"), tmp_path / "run", model=MixingPlain(), epochs=1)


def test_training_and_batches_without_two_different_images_do_not_use_up_the_check():
    net = TransNet(Mixing())
    x, _ = batch()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        net(x)
        net.eval()
        net(x[:1])
        net(x[:1].expand(4, -1, -1, -1))
    with pytest.warns(UserWarning, match="Mixing"):
        net.predict(x, heads="r1")


@pytest.mark.parametrize("bn", ["joint", "separate"])
def test_models_that_do_not_mix_images_cause_no_warning(bn):
    class Noisy(nn.Module):
        def forward(self, x):
            return x + torch.randn_like(x)

    x, _ = batch()
    for model in (small(), nn.Sequential(Noisy(), small())):
        net = TransNet(model, bn=bn).eval()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            net(x)


def test_the_check_does_not_change_the_random_numbers():
    x, _ = batch()
    net = TransNet(Bare()).eval()
    torch.manual_seed(3)
    net(x)
    after = torch.rand(1)
    torch.manual_seed(3)
    assert torch.equal(torch.rand(1), after)
