"""What a run says while it trains, in a terminal and in a log, and its scores."""

import math
import os
import pty
import re
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from small_runs import images_file, plain, settings
from transnet.console import counted, printable
from transnet.train import progress
from transnet.train.device import device_name
from transnet.train.evaluate import ensemble_scores, scores_of
from transnet.train.progress import RunProgress, loss_text, notes, print_scores
from transnet.train.trainer import train


def entry(epoch: int, names: tuple[str, ...] = ("r0", "r1"), **changes: Any) -> dict[str, Any]:
    heads = [{"name": name, "accuracy": 0.97, "loss": 0.1, "n": 40, "passes": 1} for name in names]
    pruned = heads[names.index("r0")] if "r0" in names else None
    test = {"pruned": pruned, "full": {"accuracy": 0.98, "loss": 0.1, "n": 40, "passes": 2}, "heads": heads}
    return {
        "epoch": epoch, "loss": [0.25] * len(names), "accuracy": [0.9] * len(names), "images_per_second": 4215.3,
        "test": test, **changes,
    }  # fmt: skip


# ------------------------------------------------------------------------------------------------------- in a terminal


def test_the_live_line_has_epoch_bar_and_time_left_first_and_fits_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"COLUMNS": "80", "TERM": "xterm"}.items():
        monkeypatch.setenv(name, value)
    names = ("r0", "r1", "r2", "r3")
    reader, writer = pty.openpty()
    with os.fdopen(writer, "w") as terminal, redirect_stderr(terminal):
        with RunProgress(names, 60, 5, shown=True) as shown:
            shown.epoch(entry(3, names))
            shown.bar.refresh()
        read = b""
        while b"all heads" not in read:  # a terminal hands over a part of what was written
            read += os.read(reader, 100_000)
        said = read.decode()
    os.close(reader)
    lines = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line).strip() for line in re.split(r"[\r\n]", said)]
    line = next(line for line in lines if "3/60" in line)
    assert re.fullmatch(r"epoch  3/60 [━╸╺]* +-:--:-- left r0 0.250/90.0%  test 98.00% all heads", line)
    assert len(line) <= 80


def test_the_note_says_all_where_there_is_room_and_the_first_head_at_least() -> None:
    longest, *_, shortest = notes(("r0", "r1"), entry(1))
    assert longest == "r0 0.250/90.0%  r1 0.250/90.0%  test 97.00% pruned, 98.00% all heads  4,215 images/s"
    assert shortest == "r0 0.250/90.0%"
    assert sorted(map(len, notes(("r0", "r1"), entry(1))), reverse=True) == [
        len(n) for n in notes(("r0", "r1"), entry(1))
    ]


def test_a_classifier_of_one_head_has_one_test_figure_and_one_without_r0_is_not_called_pruned() -> None:
    assert notes(("r0",), entry(1, ("r0",)))[1] == "r0 0.250/90.0%  test 98.00%"
    assert notes(("r1", "r2"), entry(1, ("r1", "r2")))[2] == "r1 0.250/90.0%  test 98.00% all heads"
    assert notes(("r0",), entry(1, ("r0",), test=None))[1] == "r0 0.250/90.0%"


# ------------------------------------------------------------------------------------------------------------ in a log


def test_a_log_has_a_line_after_the_first_epoch_then_now_and_then_and_for_the_last(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    with RunProgress(("r0", "r1"), 12, 5, done=1.5, shown=True) as shown:
        for epoch in range(2, 13):
            clock[0] += 5 if epoch == 2 else 10
            shown.epoch(entry(epoch))
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == (
        "epoch 2 of 12: loss 0.2500, test accuracy 97.00% pruned, 98.00% all heads, 4,215 images/s, 0:01:40 left"
    )
    assert [int(line.split()[1]) for line in lines] == [2, 5, 8, 11, 12]
    assert lines[-1].endswith("0:00:00 left")


def test_who_does_not_speak_writes_no_log(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    data = images_file(tmp_path / "x.npz")
    train(settings(data, tmp_path / "quiet", epochs=1), model=plain(), quiet=True)
    assert capfd.readouterr().err == ""
    train(settings(data, tmp_path / "spoken", epochs=1, evaluate_every=0), model=plain())
    said = capfd.readouterr().err
    assert re.search(r"^epoch 1 of 1: loss \d\.\d{4}, test accuracy .* images/s, 0:00:00 left$", said, re.MULTILINE)
    assert "3 classes, 8×8, in memory" in said
    assert "1 epoch of batch 32" in said
    assert said.splitlines()[1].endswith("CPU, 1 thread")
    assert "warning" not in said


def test_where_there_is_a_validation_split_that_is_what_is_watched(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = images_file(tmp_path / "x.npz")
    train(settings(file, tmp_path / "run", epochs=1, val_fraction=0.2))
    assert re.search(r"^epoch 1 of 1: loss \S+, validation accuracy \S+ pruned", capfd.readouterr().err, re.MULTILINE)


def test_images_that_are_not_square_are_said_to_be_cut(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    x = np.random.default_rng(0).integers(0, 256, (20, 12, 16, 1), dtype=np.uint8)
    np.savez(tmp_path / "wide.npz", x_train=x, y_train=np.arange(20) % 2, x_test=x[:4], y_test=np.arange(4) % 2)
    train(settings(tmp_path / "wide.npz", tmp_path / "run", epochs=1, batch_size=10, evaluate_every=0))
    assert "2 classes, cut to 12×12, in memory, not flipped\n" in capfd.readouterr().err


def test_a_run_that_diverged_says_so(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    train(settings(images_file(tmp_path / "x.npz"), tmp_path / "run", lr=1e3, epochs=1), model=plain())
    said = capfd.readouterr().err
    assert re.search(r"warning: the last epoch's training loss is .*, far above that of guessing, 1\.10: .*--lr", said)


# ----------------------------------------------------------------------------------------------------- numbers, scores


def test_one_of_a_thing_is_singular(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [counted(n, "epoch") for n in (0, 1, 2000)] == ["0 epochs", "1 epoch", "2,000 epochs"]
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    assert device_name(torch.device("cpu")) == "CPU, 4 threads"


def test_a_loss_that_ran_away_is_short() -> None:
    assert [loss_text(loss) for loss in (0.06518, 20535026742918343336293853822976.0)] == ["0.0652", "2e+31"]
    assert loss_text(math.inf) == "inf"


def test_a_strangers_name_does_not_steer_the_terminal() -> None:
    assert printable("a\x1b\nb") == "a��b"


def scored(names: tuple[str, ...], *, n: int = 60, passes: int = 1, seed: int = 0) -> dict[str, Any]:
    logits = torch.randn(n, len(names), 3, generator=torch.Generator().manual_seed(seed))
    return scores_of(logits, torch.arange(n) % 3, names, passes=passes)


def test_scores_with_the_mirror_image_are_two_tables_that_fit_80_columns(
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
    assert said.index("the image alone") < said.index("the image and its mirror image")
    words = " ".join(said.split())
    assert words.count("where 0 is agreement") == words.count("1 never fails") == 1  # explained once
    share, apart = 100 * both["full"]["split_votes"], both["full"]["disagreement"]
    assert (
        f"On the image and its mirror image, the heads differ for {share:.1f} % of the images, by {apart:.4f} nats, "
        f"with an AUROC of {both['full']['error_auroc']:.3f}." in words
    )
    print_scores(alone, None)
    assert "the image alone" not in capsys.readouterr().out  # one table needs no name


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


def test_what_disagreement_means_is_said_of_heads_and_of_runs(capsys: pytest.CaptureFixture[str]) -> None:
    generator = torch.Generator().manual_seed(0)
    logits, y = torch.randn(60, 2, 3, generator=generator), torch.arange(60) % 3
    print_scores(scores_of(logits, y, ("r0", "r1")), None)
    said = " ".join(capsys.readouterr().out.split())
    assert re.search(r"The heads do not all choose the same class for \d+\.\d % of the images;", said)
    assert "nats on average, where 0 is agreement. How far they differ tells wrong answers from right ones" in said
    runs = ensemble_scores([(logits,), (logits.flip(1),)], y, [("r0", "r1")] * 2)["plain"]
    assert runs is not None
    print_scores(runs, None)
    out = capsys.readouterr().out
    assert first_column(out) == ["pruned", "full"]
    said = " ".join(out.split())
    assert "The runs' pruned classifiers do not all choose" in said
    assert "The runs' full models differ for 0.0 % of the images, by 0.0000 nats" in said
    print_scores(runs, None, explained=True)
    assert "The runs' pruned classifiers differ for " in capsys.readouterr().out


def test_an_ensemble_of_single_heads_is_one_row(capsys: pytest.CaptureFixture[str]) -> None:
    logits, y = torch.randn(60, 2, 3, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 3
    runs = ensemble_scores([(logits[:, :1],), (logits[:, 1:],)], y, [("r0",)] * 2)["plain"]
    assert runs is not None
    print_scores(runs, None)
    said = capsys.readouterr().out
    assert first_column(said) == ["pruned and full"]
    assert "The runs do not all choose" in said
