"""Class scores on disk: what is written is read again, and files that are damaged are refused by name."""

import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from transnet.errors import FileError
from transnet.runs.predictions import Predictions

RESULTS = Path(__file__).parents[1] / "results"


def made_up() -> Predictions:
    scores = np.linspace(-3, 3, 5 * 2 * 4).reshape(5, 2, 4).astype(np.float16)
    return Predictions(("r0", "r1"), scores, scores[::-1], np.array([0, 3, 1, 2, 0]), "abc", "def")


def test_predictions_are_loaded_as_they_were_saved(tmp_path: Path) -> None:
    path = tmp_path / "predictions.npz"
    for saved in (made_up(), replace(made_up(), scores_flip=None)):
        saved.write(path)
        loaded = Predictions.read(path)
        assert (loaded.heads, loaded.model_sha256, loaded.fingerprint) == (("r0", "r1"), "abc", "def")
        assert (loaded.scores == saved.scores).all()
        assert (loaded.labels == saved.labels).all()
        assert (loaded.scores_flip is None) == (saved.scores_flip is None)


def test_published_predictions_give_the_published_accuracy() -> None:
    from transnet.study.results import read_runs

    runs = [run for series in read_runs(RESULTS / "cifar100") for run in series.all_runs if run.predictions]
    assert runs
    for run in runs:
        found = run.predictions
        assert found is not None
        assert found.scores_flip is not None
        for part, scores in (("pruned", found.scores_flip[:, 0]), ("full", found.scores_flip.mean(1, np.float32))):
            accuracy = (scores.argmax(-1) == found.labels).mean()
            assert accuracy == pytest.approx(run.score(part).accuracy, abs=3e-4)  # half precision


@pytest.mark.parametrize(
    "change",
    [
        {"labels": np.array([0, 1])},
        {"labels": np.array([0, 3, 1, 2, 4])},
        {"heads": ("r0",)},
        {"scores_flip": np.zeros((5, 2, 3))},
        {"scores": np.zeros((5, 8)), "scores_flip": None},
    ],
)
def test_arrays_that_do_not_belong_together_are_refused(tmp_path: Path, change: dict[str, object]) -> None:
    replace(made_up(), **change).write(tmp_path / "predictions.npz")  # type: ignore[arg-type]
    with pytest.raises(FileError, match=r"predictions\.npz"):
        Predictions.read(tmp_path / "predictions.npz")


def test_files_of_another_kind_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "predictions.npz"
    with pytest.raises(FileError, match="does not exist"):
        Predictions.read(path)
    path.write_bytes(b"no archive")
    with pytest.raises(FileError, match="damaged"):
        Predictions.read(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("heads.npy", b"no array")
    with pytest.raises(FileError, match="damaged"):
        Predictions.read(path)
    made_up().write(path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(FileError, match="damaged"):
        Predictions.read(path)
