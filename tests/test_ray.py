"""A study on a cluster of several nodes, one of which dies in the middle."""

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from small_runs import images_file, inherited_sigint, small_study, wait_for
from transnet.runs.folder import Run
from transnet.study.execute import execute
from transnet.study.local import LocalProcesses
from transnet.study.plan import plan_runs
from transnet.study.ray import RayCluster

ray = pytest.importorskip("ray")


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A head that runs nothing, and two nodes of one core each."""
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    source = str(Path(__file__).parents[1] / "src")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([source, os.environ.get("PYTHONPATH", "")]))
    # A dead node is noticed in seconds instead of half a minute.
    system = {"health_check_initial_delay_ms": 1000, "health_check_period_ms": 500, "health_check_failure_threshold": 3}
    nodes = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, "_system_config": system}
    )
    nodes.victims = [nodes.add_node(num_cpus=1) for _ in range(2)]
    ray.init(address=nodes.address, log_to_driver=False)
    yield nodes
    ray.shutdown()
    nodes.shutdown()


def scores(folder: Path) -> dict[str, Any]:
    results = {path.name: Run(path).result() for path in (folder / "runs").iterdir()}
    return {
        name: [getattr(result, part) for part in ("test", "train", "generalization")]
        for name, result in results.items()
    }


@pytest.mark.slow
def test_a_study_survives_the_death_of_a_node(cluster: Any, tmp_path: Path) -> None:
    disturbed, calm = (
        plan_runs(small_study(epochs=40, train_fraction=0.2), tmp_path / name) for name in ("disturbed", "calm")
    )
    killed: list[int] = []

    def kill_a_node() -> None:
        """When both nodes train and neither is nearly done."""
        runs = tmp_path / "disturbed" / "runs"
        while sum(len(Run(path).metrics()) >= 5 for path in runs.glob("*")) < 2:
            time.sleep(0.05)
        killed.extend(len(Run(path).metrics()) for path in runs.glob("*"))
        cluster.remove_node(cluster.victims[0], allow_graceful=False)

    killer = threading.Thread(target=kill_a_node, daemon=True)
    killer.start()
    outcome = execute(disturbed, RayCluster(device="cpu"), quiet=True)
    killer.join(1)
    assert killed
    assert max(killed) < 40
    assert not outcome.failed
    here = LocalProcesses(tmp_path / "calm", device="cpu")
    assert not execute(calm, here, quiet=True).failed
    assert scores(tmp_path / "disturbed") == scores(tmp_path / "calm")
    for path in (tmp_path / "disturbed" / "runs").iterdir():
        assert [entry.epoch for entry in Run(path).metrics()] == list(range(1, 41))


@pytest.mark.slow
def test_an_error_of_the_run_itself_is_not_tried_again(cluster: Any, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "digits-fast-t2-s0").write_text("in the way")
    outcome = execute(plan_runs(small_study(), tmp_path), RayCluster(device="cpu"), quiet=True)
    assert list(outcome.failed) == ["digits-fast-t2-s0"]
    assert "cannot be written" in outcome.failed["digits-fast-t2-s0"]
    assert sum(Run(path).finished for path in (tmp_path / "runs").iterdir()) == 3


@pytest.mark.slow
def test_stopping_saves_the_runs_that_train(cluster: Any, tmp_path: Path) -> None:
    executor = RayCluster(device="cpu")
    for run in plan_runs(small_study(epochs=400, train_fraction=0.2), tmp_path):
        executor.start(run)
    while not any(len(Run(path).metrics()) >= 3 for path in (tmp_path / "runs").glob("*")):
        assert executor.ended() == []
        time.sleep(0.1)
    executor.stop()
    executor.close()
    begun = [Run(path) for path in (tmp_path / "runs").iterdir()]
    assert 1 <= len(begun) < 4
    assert not any(run.finished for run in begun)
    assert any(list(run.state.glob("*/manifest.json")) for run in begun)


@pytest.mark.slow
def test_stopping_reaches_a_run_before_it_trains_even_if_the_cluster_was_started_with_sigint_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    with inherited_sigint(signal.SIG_IGN):
        executor = RayCluster(device="cpu")
    executor.start(plan_runs(small_study(epochs=400), tmp_path)[0])
    wait_for(lambda: any((tmp_path / "runs").glob("*/state/lock")))  # its task has begun and still imports
    executor.stop()
    executor.close()
    assert not any(Run(path).finished for path in (tmp_path / "runs").glob("*"))


@pytest.mark.slow
def test_data_is_found_in_the_folder_of_the_study(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images_file(tmp_path / "x.npz")
    monkeypatch.chdir(tmp_path)  # the nodes have other working directories
    runs = plan_runs(small_study(data="x.npz", model="resnet8-small", train_fraction=1.0), "study")
    assert not execute(runs, RayCluster(device="cpu"), quiet=True).failed
