"""The network's own earlier predictions as targets."""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import one_hot

from small_runs import images_file, plain, run, settings, stopped_run, trainer, weights
from transnet.data.augment import mix
from transnet.errors import ConfigError
from transnet.runs.folder import Run
from transnet.train.optim import build_optimizer
from transnet.train.past_targets import check_memory
from transnet.train.setup import Launch, prepare
from transnet.train.trainer import Trainer

PAST: dict[str, Any] = {"transforms": "r0", "past_targets": 0.8}
MIXED = {**PAST, "cutmix": 1.0, "mixup": 0.4, "mix_share": 0.5}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return images_file(tmp_path_factory.mktemp("data") / "x.npz", n=80)


@pytest.mark.parametrize("changes", [PAST, MIXED], ids=["plain", "mixed"])
def test_training_equals_a_loop(data: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    prepared = trainer(data, tmp_path / "run", plain(), **changes, epochs=5, batch_size=24, label_smoothing=0.1)
    setup, feed = prepared.setup, prepared.setup.feed
    net = copy.deepcopy(setup.net)
    optimizer = build_optimizer(net, setup.config, torch.device("cpu"))
    predictions, done = dict[int, torch.Tensor](), 0
    for epoch in range(5):
        plan = prepared.plan_of(epoch)
        feed.start(plan)
        for k, indices in enumerate(plan.order.split(24)):
            feed.step.fill_(k)
            x, y = feed.fetch(len(indices), 0)
            rows = []
            for i, label in zip(indices.tolist(), one_hot(y, 3).float(), strict=True):
                a = 0.8 * done / 20 if i in predictions else 0.0  # label smoothing is off
                rows.append((1 - a) * label + a * predictions.get(i, torch.zeros(3)))
            target, mixed = torch.stack(rows), plan.mix[k, 0] != 0
            if mixed:
                x, target = mix(x, target, plan.mix[k], 3)
            logits = net.logits(x)[:, 0]
            loss = -(target * logits.log_softmax(-1)).sum(-1).mean()
            optimizer.param_groups[0]["lr"] = setup.rates[done].item()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            done += 1
            if not mixed:
                predictions |= zip(indices.tolist(), logits.detach().softmax(-1).half().float(), strict=True)
    prepared.train()
    assert done == 20
    assert "mixup" not in changes or len(predictions) > 0
    for name, tensor in setup.net.state_dict().items():
        torch.testing.assert_close(tensor, net.state_dict()[name], rtol=1e-5, atol=1e-6)


def test_a_share_of_the_batches_is_mixed(data: Path, tmp_path: Path) -> None:
    prepared = trainer(data, tmp_path / "run", plain(), **{**MIXED, "batch_size": 1})
    mixed = torch.cat([prepared.plan_of(epoch).mix[:, 0] != 0 for epoch in range(3)]).float().mean()
    assert 0.4 < mixed < 0.6
    assert not (prepared.plan_of(0).mix[:, 1] != 1)[prepared.plan_of(0).mix[:, 0] == 0].any()
    prepared.setup.run.release()


@pytest.mark.parametrize("step", [1, 4, 7])
def test_a_resumed_run_ends_as_an_undisturbed_one(data: Path, tmp_path: Path, step: int) -> None:
    run(data, tmp_path / "whole", plain(), **MIXED)
    stopped_run(data, tmp_path / "run", step=step, **MIXED)
    run(data, tmp_path / "run", plain(), **MIXED, resume=True)
    assert weights(tmp_path / "run") == weights(tmp_path / "whole")


def test_a_run_with_other_data_is_not_resumed(data: Path, tmp_path: Path) -> None:
    stopped_run(data, tmp_path / "run", step=4, **PAST)
    before = sorted(path.name for path in (tmp_path / "run" / "state").iterdir())
    other = images_file(tmp_path / "x.npz", n=80, seed=1)
    with pytest.raises(ConfigError, match="data"):
        run(other, tmp_path / "run", plain(), **PAST, resume=True)
    assert sorted(path.name for path in (tmp_path / "run" / "state").iterdir()) == before


@pytest.mark.parametrize(
    ("changes", "field", "advice"),
    [
        ({"past_targets": 0.8}, "past_targets", "give r0"),
        ({"past_targets": 1.5, "transforms": "r0"}, "past_targets", "<= 1"),
        ({"mix_share": 0.5}, "mix_share", "`cutmix`"),
        ({"mix_share": 0.0, "cutmix": 1.0}, "mix_share", "> 0"),
    ],
)
def test_what_does_not_combine_is_refused(tmp_path: Path, changes: dict[str, Any], field: str, advice: str) -> None:
    with pytest.raises(ConfigError, match=advice) as error:
        settings("digits", tmp_path / "run", **changes)
    assert error.value.field == field


def test_a_table_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match="GiB") as error:
        check_memory(10**9, 10**6, torch.device("cpu"))
    assert error.value.field == "past_targets"


def test_a_run_without_past_targets_has_no_table(data: Path, tmp_path: Path) -> None:
    setup = prepare(Launch.of(settings(data, tmp_path / "run", transforms="r0"), quiet=True))
    assert Trainer(replace(setup)).step.past is None
    setup.run.release()
    assert Run(tmp_path / "run").settings().train.past_targets == 0
