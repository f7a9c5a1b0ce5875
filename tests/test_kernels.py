"""Figs. 5 and 6 and their tables."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from transnet import TransNet
from transnet.errors import ModelError
from transnet.invariance import LayerScore, Measure, layer_invariance, random_kernel_score, summarise_layers
from transnet.report.kernels import (
    KernelComparison,
    MeasuredKernels,
    RunKernels,
    draw_kernels,
    last_layer_table,
    layers_table,
    one_seed,
    print_comparison,
    score_run,
    steps_table,
)

LAYER = LayerScore(0.5, 0.1, 4, 0.6)


def comparison(runs: dict[str, RunKernels], measure: Measure = "l2") -> KernelComparison:
    return KernelComparison("r0,r1", measure, runs)


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The figures that are drawn, instead of files."""
    drawn: list[Any] = []
    monkeypatch.setattr("transnet.report.plot_style.save_figure", lambda figure, path: drawn.append(figure) or path)
    return drawn


def test_a_layers_summary_has_random_kernels_of_the_same_norm() -> None:
    net = nn.Sequential(nn.Conv2d(2, 5, 3), nn.Conv2d(5, 4, 1), nn.Conv2d(4, 1, 3))
    found = summarise_layers(net, "r1", "l2")
    values = layer_invariance(net, "r1", "l2")
    assert list(found) == ["0", "2"]
    assert found["0"].mean == pytest.approx(values["0"].mean().item())
    assert found["0"].std == pytest.approx(values["0"].std().item())
    assert (found["2"].n, found["2"].std) == (1, None)
    norm = net[0].weight.flatten(1).norm(dim=1).mean().item()
    assert found["0"].random == pytest.approx(norm * random_kernel_score((2, 3, 3), "r1", "relative"))
    assert summarise_layers(net, "r1", "cosine")["0"].random == random_kernel_score((2, 3, 3), "r1", "cosine")


def test_a_network_without_spatial_kernels_is_refused() -> None:
    flat = TransNet(nn.Sequential(nn.Flatten(), nn.Linear(64, 3)))
    with pytest.raises(ModelError, match="no square kernels"):
        score_run(flat, ("r0", "r1"), "l2")


def test_the_last_layers_kernels_are_drawn_as_a_cumulative_distribution(tmp_path: Path, figures: list[Any]) -> None:
    draw_kernels(
        comparison({
            "baseline": RunKernels("r0", {"a": LAYER}, (0.4, 0.1, 0.2, 0.3)),
            "T2": RunKernels("r0,r1", {"a": LAYER}, (0.1,)),
        }),
        tmp_path,
    )  # fmt: skip
    base, t2 = figures[1].axes[0].get_lines()
    assert list(zip(*base.get_data(), strict=True)) == [(0.1, 0), (0.1, 25), (0.2, 50), (0.3, 75), (0.4, 100)]
    assert list(t2.get_ydata()) == [0, 100]
    assert base.get_marker() != t2.get_marker()  # to distinguish them in grey print


def test_special_characters_in_names_are_drawn(tmp_path: Path) -> None:
    runs = {
        "_small": RunKernels("r0", {"a": LAYER, "b": LAYER}, (0.1, 0.2)),
        "p$1^$": RunKernels("r0", {"a": LAYER, "between": LAYER, "b": LAYER}, (0.1, 0.3)),
    }
    for path in draw_kernels(comparison(runs), tmp_path):
        assert path.suffix == ".svg"
        assert "_small (r0)" in path.read_text()
        assert "p$1^$ (r0)" in path.read_text()


@pytest.mark.parametrize(("measure", "ends"), [("l2", (0.0, 1.6)), ("cosine", (0.0, 1.0))])
def test_bars_end_at_the_measures_bounds(
    tmp_path: Path, figures: list[Any], measure: Measure, ends: tuple[float, float]
) -> None:
    layers = {"a": LayerScore(0.6, 1.0, 4, 0.6), "b": LayerScore(0.5, None, 1, 1)}
    draw_kernels(comparison({"x": RunKernels("r0", layers, (0.5,))}, measure), tmp_path)
    (bars,) = figures[0].axes[0].collections
    assert [tuple(segment[:, 1]) for segment in bars.get_segments()] == [pytest.approx(ends), (0.5, 0.5)]


@pytest.mark.parametrize("measure", ["l2", "relative", "cosine", "pearson"])
def test_the_printed_table_names_measure_and_direction(measure: Measure, capsys: pytest.CaptureFixture[str]) -> None:
    print_comparison(comparison({"x": RunKernels("r0", {"a": LAYER}, (0.1,))}, measure))
    printed = " ".join(capsys.readouterr().out.split())
    assert "r0,r1" in printed
    assert f"({measure}): {'lower' if measure in ('l2', 'relative') else 'higher'} is more invariant" in printed


def test_the_printed_table_has_every_runs_layers(capsys: pytest.CaptureFixture[str]) -> None:
    shallow = RunKernels("r0", {"a": LAYER, "b": LAYER}, (0.1,))
    deep = RunKernels("r0", {"a": LAYER, "between": LAYER, "b": LAYER}, (0.1,))
    for runs in ({"x": shallow, "y": deep}, {"y": deep, "x": shallow}):
        print_comparison(comparison(runs))
        rows = [line.split("│")[1].strip() for line in capsys.readouterr().out.splitlines() if line.count("0.6000")]
        assert rows == ["a", "between", "b"]


def measured(values: dict[str, list[float]]) -> dict[str, dict[int, MeasuredKernels]]:
    """Runs with a last layer of the given IS; the layer before it has an IS of 0.5 in the baseline, else of 0.6."""
    found: dict[str, dict[int, MeasuredKernels]] = {kind: {} for kind in values}
    for kind, given in values.items():
        for seed, value in enumerate(given):
            layers = {"a": LayerScore(0.5 if kind == "base" else 0.6, 0.1, 2, 0.7), "b": LayerScore(value, 0.1, 2, 0.7)}
            scores = {"l2": value, "relative": 2 * value, "cosine": 1 - value, "pearson": 1 - value}
            found[kind][seed] = MeasuredKernels("r0", layers, (value,), scores, dict.fromkeys(scores, 0.7))
    return found


def test_the_last_layer_has_a_row_per_model_and_one_of_random_kernels() -> None:
    rows = [
        [cell.text for cell in row] for row in last_layer_table(measured({"base": [0.2, 0.4], "t2": [0.1]}), 0).rows
    ]
    assert rows[0] == ["baseline", "0.3000 ± 0.1000", "0.6000 ± 0.2000", "0.7000 ± 0.1000", "0.7000 ± 0.1000", "2"]
    assert [row[0] for row in rows] == ["baseline", "T2", "random kernels"]
    assert rows[1][-1] == "1 (one seed)"


def test_every_further_head_is_compared_with_the_one_before() -> None:
    table = steps_table(measured({"base": [0.2, 0.21, 0.2], "t2": [0.1, 0.11, 0.1], "t4": [0.05]}))
    rows = [[cell.text for cell in row] for row in table.rows]
    assert [row[:2] for row in rows] == [["T2", "baseline"], ["T4", "T2"]]
    assert rows[0][2].startswith("−0.1000 [−0.1")
    assert rows[1][2:] == ["−0.0533", "−0.1067", "1", "3"]  # one run has no interval


def test_layers_show_how_much_t2_differs() -> None:
    seed, shown = one_seed(measured({"base": [0.2, 0.3], "t2": [0.4, 0.1]}))
    rows = {row[0].text: [cell.text for cell in row[1:]] for row in layers_table(shown, seed).rows}
    assert rows == {"a": ["0.5000", "0.6000", "0.7000", "+20.0"], "b": ["0.2000", "0.4000", "0.7000", "+100.0"]}


def test_the_figures_show_the_seed_with_the_most_models() -> None:
    found = measured({"base": [0.2, 0.3], "t2": [0.4, 0.1], "t3": [0.1, 0.1]})
    del found["t3"][0]
    seed, shown = one_seed(found)
    assert seed == 1
    assert list(shown.runs) == ["baseline", "T2", "T3"]
    assert torch.tensor(shown.runs["baseline"].last).tolist() == pytest.approx([0.3])
