"""Progress of a run, in a terminal and in a log."""

import math
import os
import pty
import re
from contextlib import redirect_stderr
from pathlib import Path

import numpy as np
import pytest
import torch

from small_runs import images_file, plain, settings
from transnet.console import counted, printable
from transnet.runs.records import EpochEntry, HeadScore, Score, Scores
from transnet.train import progress
from transnet.train.device import device_name
from transnet.train.progress import RunProgress, loss_text
from transnet.train.trainer import train


def entry(epoch: int, names: tuple[str, ...] = ("r0", "r1"), *, tested: bool = True) -> EpochEntry:
    heads = tuple(HeadScore(name=name, accuracy=0.97, loss=0.1, n=40) for name in names)
    pruned = heads[names.index("r0")] if "r0" in names else None
    test = Scores(pruned=pruned, full=Score(accuracy=0.98, loss=0.1, n=40, passes=2), heads=heads)
    return EpochEntry(
        epoch=epoch, step=5 * epoch, lr=0.1, loss=(0.25,) * len(names), accuracy=(0.9,) * len(names), seconds=1.0,
        images_per_second=4215.3, test=test if tested else None,
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------------- in a terminal


def test_the_live_line_has_bar_epoch_and_time_left_first_and_fits_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"COLUMNS": "80", "TERM": "xterm"}.items():
        monkeypatch.setenv(name, value)
    reader, writer = pty.openpty()
    with os.fdopen(writer, "w") as terminal, redirect_stderr(terminal):
        shown = RunProgress(60, 5, shown=True)
        with shown.bar:
            shown.epoch(entry(3))
            shown.bar.refresh()
        read = b""
        while b"97.00%" not in read:  # a terminal hands over a part of what was written
            read += os.read(reader, 100_000)
        printed = read.decode()
    os.close(reader)
    lines = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line).strip() for line in re.split(r"[\r\n]", printed)]
    line = next(line for line in lines if "3/60" in line)
    assert re.fullmatch(r"epoch [━╸╺]*  3/60 -:--:-- left test accuracy 97.00% pruned, .*…", line)
    assert len(line) <= 80


# ------------------------------------------------------------------------------------------------------------ in a log


def test_a_log_has_a_line_after_the_first_epoch_then_now_and_then_and_for_the_last(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    shown = RunProgress(12, 5, done=1.5, shown=True)
    for epoch in range(2, 13):
        clock[0] += 5 if epoch == 2 else 10
        shown.epoch(entry(epoch))
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == (
        "epoch 2 of 12: loss 0.2500, test accuracy 97.00% pruned, 98.00% all heads, 4,215 images/s, 0:01:40 left"
    )
    assert [int(line.split()[1]) for line in lines] == [2, 5, 8, 11, 12]
    assert lines[-1].endswith("0:00:00 left")


@pytest.mark.parametrize(
    ("names", "tested", "accuracy"),
    [
        (("r0", "r1"), True, "test accuracy 97.00% pruned, 98.00% all heads, "),
        (("r1", "r2"), True, "test accuracy 98.00% all heads, "),
        (("r0",), True, "test accuracy 98.00%, "),
        (("r0",), False, ""),
    ],
)
def test_a_line_has_the_accuracy_of_each_classifier_once(
    capsys: pytest.CaptureFixture[str], names: tuple[str, ...], tested: bool, accuracy: str
) -> None:
    RunProgress(1, 5, shown=True).epoch(entry(1, names, tested=tested))
    expected = f"epoch 1 of 1: loss 0.2500, {accuracy}4,215 images/s, 0:00:00 left\n"
    assert capsys.readouterr().err == expected


def test_a_quiet_run_writes_no_log(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    data = images_file(tmp_path / "x.npz")
    train(settings(data, tmp_path / "quiet", epochs=1), model=plain(), quiet=True)
    assert capfd.readouterr().err == ""
    train(settings(data, tmp_path / "spoken", epochs=1, evaluate_every=0), model=plain())
    printed = capfd.readouterr().err
    assert re.search(r"^epoch 1 of 1: loss \d\.\d{4}, test accuracy .* images/s, 0:00:00 left$", printed, re.MULTILINE)
    assert "3 classes, 8×8, in memory" in printed
    assert "1 epoch of batch 32" in printed
    assert printed.splitlines()[1].endswith("CPU, 1 thread")
    assert "warning" not in printed


def test_a_validation_split_is_shown_instead_of_the_test_set(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = images_file(tmp_path / "x.npz")
    train(settings(file, tmp_path / "run", epochs=1, val_fraction=0.2))
    assert re.search(r"^epoch 1 of 1: loss \S+, validation accuracy \S+ pruned", capfd.readouterr().err, re.MULTILINE)


def test_images_that_are_not_square_are_reported_as_cropped(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    x = np.random.default_rng(0).integers(0, 256, (20, 12, 16, 1), dtype=np.uint8)
    np.savez(tmp_path / "wide.npz", x_train=x, y_train=np.arange(20) % 2, x_test=x[:4], y_test=np.arange(4) % 2)
    train(settings(tmp_path / "wide.npz", tmp_path / "run", epochs=1, batch_size=10, evaluate_every=0))
    assert "2 classes, cropped to 12×12, in memory, not flipped\n" in capfd.readouterr().err


def test_a_run_that_diverged_gets_a_warning(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    train(settings(images_file(tmp_path / "x.npz"), tmp_path / "run", lr=1e3, epochs=1), model=plain())
    printed = capfd.readouterr().err
    assert re.search(
        r"warning: the last epoch's training loss is .*, far above that of guessing, 1\.10: .*`lr`", printed
    )


# ----------------------------------------------------------------------------------------------------- numbers, scores


def test_one_item_is_singular(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [counted(n, "epoch") for n in (0, 1, 2000)] == ["0 epochs", "1 epoch", "2,000 epochs"]
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    assert device_name(torch.device("cpu")) == "CPU, 4 threads"


def test_a_diverged_loss_is_short() -> None:
    assert [loss_text(loss) for loss in (0.06518, 20535026742918343336293853822976.0)] == ["0.0652", "2e+31"]
    assert loss_text(math.inf) == "inf"


def test_control_characters_in_names_do_not_reach_the_terminal() -> None:
    assert printable("a\x1b\nb") == "a��b"
