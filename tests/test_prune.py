import json

import pytest
import torch

from trained import copy_of_run, digits_run
from transnet import load
from transnet.errors import ConfigError
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
    with pytest.raises(ConfigError, match=r"no validation split .* train with `val_fraction`") as caught:
        network_of_run(run, "best")
    assert caught.value.field == "head"


def test_an_unknown_head_is_refused_with_a_list_of_the_known_ones():
    with pytest.raises(ConfigError, match="head: unknown 'm3'; known are best all r0 r1 r2"):
        network_of_run(digits_run(), "m3")


def test_for_a_run_without_r0_the_heads_that_can_be_kept_are_listed(tmp_path):
    run = copy_of_run(tmp_path / "run", digits_run(transforms="r1,r2", epochs=1))
    with pytest.raises(ConfigError, match="no identity head r0; known are best all r1 r2"):
        network_of_run(run)
    result = json.loads((run / "result.json").read_text())
    (run / "result.json").write_text(json.dumps({**result, "val": None}))
    with pytest.raises(ConfigError, match="known are all r1 r2"):
        network_of_run(run)
    with pytest.raises(ConfigError, match="head: unknown 'm3'; known are all r1 r2"):
        network_of_run(run, "m3")
    assert network_of_run(run, "r1")[1].fold


def test_best_ignores_the_second_head_of_a_transform(tmp_path):
    run = copy_of_run(tmp_path / "run", digits_run(transforms="r0,r1,r0", epochs=1))
    result = json.loads((run / "result.json").read_text())
    for entry, loss in zip(result["val"]["heads"], (0.3, 0.2, 0.1), strict=True):
        entry["loss"] = loss
    (run / "result.json").write_text(json.dumps(result))
    assert network_of_run(run, "best")[1].transforms == ("r1",)
