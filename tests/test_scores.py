"""Tables of scores, as `transnet train` and `transnet evaluate` print them."""

import re
from pathlib import Path

import pytest
import torch

from transnet.cli.scores import print_scores
from transnet.runs.folder import Run
from transnet.runs.records import Scores
from transnet.train.evaluate import ensemble_scores, scores_of_logits


def scored(names: tuple[str, ...], *, n: int = 60, passes: int = 1, seed: int = 0) -> Scores:
    logits = torch.randn(n, len(names), 3, generator=torch.Generator().manual_seed(seed))
    return scores_of_logits(logits, torch.arange(n) % 3, names, passes=passes)


def test_scores_with_flip_tta_are_two_tables_that_fit_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    names = ("r0", "r1", "r2", "r3")
    alone, both = scored(names), scored(names, passes=2, seed=1)
    print_scores(alone, both)
    said = capsys.readouterr().out
    assert "…" not in said
    assert max(map(len, said.splitlines())) <= 80
    for column in ("passes", "balanced", "loss", "calibration", "head 3: r3"):
        assert said.count(column) == 2
    assert said.index("without flip TTA") < said.index("with flip TTA")
    words = " ".join(said.split())
    assert words.count("0 means that they agree") == words.count("1 is perfect") == 1  # explained once
    found = both.full.uncertainty
    assert (
        f"The heads with flip TTA disagree on {100 * found.split_votes:.1f} % of the images, by "
        f"{found.disagreement:.4f} nats, with an AUROC of {found.error_auroc:.3f}." in words
    )
    print_scores(alone, None)
    assert "flip TTA" not in capsys.readouterr().out  # one table needs no name


def first_column(said: str) -> list[str]:
    return [line.split("│")[1].strip() for line in said.splitlines() if line.startswith("│")]


def test_each_classifier_is_one_row(capsys: pytest.CaptureFixture[str]) -> None:
    for names, rows in (
        (("r0", "r1"), ["pruned (head 0: r0)", "full", "head 1: r1"]),
        (("r1", "r0", "r0"), ["pruned (head 1: r0)", "full", "head 0: r1", "head 2: r0"]),
        (("r1", "r2"), ["full", "head 0: r1", "head 1: r2"]),
        (("r0",), ["the one head: r0"]),
        (("r1",), ["the one head: r1"]),
    ):
        print_scores(scored(names), None)
        assert first_column(capsys.readouterr().out) == rows


def test_disagreement_is_explained_for_heads_and_for_runs(capsys: pytest.CaptureFixture[str]) -> None:
    generator = torch.Generator().manual_seed(0)
    logits, y = torch.randn(60, 2, 3, generator=generator), torch.arange(60) % 3
    print_scores(scores_of_logits(logits, y, ("r0", "r1")), None)
    said = " ".join(capsys.readouterr().out.split())
    assert re.search(r"The heads do not all choose the same class on \d+\.\d % of the images;", said)
    assert (
        "nats on average, and 0 means that they agree. The disagreement separates errors from correct predictions"
        in said
    )
    runs = ensemble_scores([logits, logits.flip(1)], y, [("r0", "r1")] * 2)
    print_scores(runs, None)
    out = capsys.readouterr().out
    assert first_column(out) == ["pruned", "full"]
    said = " ".join(out.split())
    assert "The runs' pruned classifiers do not all choose" in said
    assert "The runs' full models disagree on 0.0 % of the images, by 0.0000 nats" in said
    print_scores(runs, None, explained=True)
    assert "The runs' pruned classifiers disagree on " in capsys.readouterr().out


def test_an_ensemble_of_single_heads_is_one_row(capsys: pytest.CaptureFixture[str]) -> None:
    logits, y = torch.randn(60, 2, 3, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 3
    runs = ensemble_scores([logits[:, :1], logits[:, 1:]], y, [("r0",)] * 2)
    print_scores(runs, None)
    said = capsys.readouterr().out
    assert first_column(said) == ["pruned and full"]
    assert "The runs do not all choose" in said


def test_published_results_without_balanced_accuracy_can_be_printed(capsys: pytest.CaptureFixture[str]) -> None:
    runs = Path(__file__).parents[1] / "results" / "digits" / "runs"
    print_scores(Run(runs / "digits-fast-t2-s1").result().test, None)
    assert "passes" in (out := capsys.readouterr().out)
    assert "balanced" not in out
