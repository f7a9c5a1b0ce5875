"""The table and the figure of early exit that ``transnet evaluate --anytime`` shows."""

import json

from trained import digits_run
from transnet.cli import main
from transnet.ship.predict import choose_threshold


def test_evaluate_prints_and_draws_early_exit(tmp_path, capsys):
    path, out = str(digits_run()), tmp_path / "figures"
    assert main(["evaluate", path, "--anytime", "--out", str(out)]) == 0
    shown = capsys.readouterr()
    assert "passes" in shown.out
    assert "chosen on the validation split" in " ".join(shown.out.split())
    assert "anytime-run." in shown.err
    assert {"anytime-run.png", "anytime-run.svg"} <= {file.name for file in out.iterdir()}
    assert main(["evaluate", path, "--anytime", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)[path]
    points = found["anytime"]["points"]
    assert points["accuracy"][0] == found["plain"]["pruned"]["accuracy"]
    assert points["accuracy"][-1] == found["plain"]["full"]["accuracy"]
    assert (points["passes"][0], points["passes"][-1]) == (1, 3)
    chosen = choose_threshold(path, passes=1.4)  # on the validation split
    assert chosen in points["confidence"]
    assert main(["evaluate", path, "--anytime", "--split", "val"]) == 0
    assert "on the same images" in " ".join(capsys.readouterr().out.split())


def test_runs_with_the_same_name_get_their_own_figures(tmp_path, capsys):
    paths = [str(digits_run()), str(digits_run(transforms="r0,r1", val_fraction=0.0))]  # both are called run
    assert main(["evaluate", *paths, "--anytime", "--json", "--out", str(tmp_path)]) == 0
    assert sorted(file.name for file in tmp_path.glob("*.svg")) == ["anytime-1-run.svg", "anytime-2-run.svg"]


def test_evaluate_refuses_to_draw_without_early_exit_or_folder(tmp_path, capsys):
    (tmp_path / "file").write_text("in the way")
    one = str(digits_run(transforms="r0"))
    for words, message in (
        ([one, "--anytime"], "has one head"),
        ([str(digits_run()), "--out", str(tmp_path / "figures")], "only --anytime draws"),
        ([str(digits_run()), "--anytime", "--out", str(tmp_path / "file")], "cannot be created"),
    ):
        assert main(["evaluate", *words]) == 2
        assert message in capsys.readouterr().err
    assert not (tmp_path / "figures").exists()
