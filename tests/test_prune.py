import json

import pytest
import torch

from trained import copy_of_run, digits_run
from transnet import load
from transnet.errors import TransnetError
from transnet.ship.prune import network_of_run


def images():
    return torch.randn(5, 1, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("head", ["r0", "r1", "r2"])
def test_a_pruned_head_is_that_head_on_the_untransformed_image(head):
    network, about = network_of_run(digits_run(), head)
    assert (about.kind, about.transforms, about.fold) == ("pruned", (head,), head != "r0")
    net, x = load(digits_run()), images()
    assert torch.allclose(network(x), net.logits(x)[:, net.transforms.index(head)], atol=1e-4)


def test_all_keeps_the_transnet():
    network, about = network_of_run(digits_run(), "all")
    assert about.kind == "full"
    assert torch.equal(network(images()), load(digits_run())(images()))


def test_best_is_chosen_on_the_validation_split_only(tmp_path):
    run = copy_of_run(tmp_path / "run")
    result = json.loads((run / "result.json").read_text())
    for entry, loss in zip(result["val"]["heads"], (0.3, 0.1, 0.2), strict=True):
        entry["loss"] = loss
    (run / "result.json").write_text(json.dumps(result))
    assert network_of_run(run, "best")[1].transforms == ("r1",)
    (run / "result.json").write_text(json.dumps({**result, "val": None}))
    with pytest.raises(TransnetError, match="no validation split to choose by; train with `val_fraction`"):
        network_of_run(run, "best")


def test_an_unknown_head_lists_the_known():
    with pytest.raises(TransnetError, match="head: unknown 'm3'; known are best all r0 r1 r2"):
        network_of_run(digits_run(), "m3")


def test_a_run_without_r0_says_what_can_be_kept_instead(tmp_path):
    run = copy_of_run(tmp_path / "run", digits_run(transforms="r1,r2", epochs=1))
    with pytest.raises(
        TransnetError, match="no identity head r0; give --head best or --head all or --head r1 or --head"
    ):
        network_of_run(run)
    result = json.loads((run / "result.json").read_text())
    (run / "result.json").write_text(json.dumps({**result, "val": None}))
    with pytest.raises(TransnetError, match=r"give `head` all or `head` r1 or `head` r2 \(the transform"):
        network_of_run(run)
    with pytest.raises(TransnetError, match="head: unknown 'm3'; known are all r1 r2"):
        network_of_run(run, "m3")
    assert network_of_run(run, "r1")[1].fold


def test_of_two_heads_of_one_transform_best_means_the_one_that_can_be_kept(tmp_path):
    run = copy_of_run(tmp_path / "run", digits_run(transforms="r0,r1,r0", epochs=1))
    result = json.loads((run / "result.json").read_text())
    for entry, loss in zip(result["val"]["heads"], (0.3, 0.2, 0.1), strict=True):
        entry["loss"] = loss
    (run / "result.json").write_text(json.dumps(result))
    assert network_of_run(run, "best")[1].transforms == ("r1",)
