"""How invariant the kernels of runs became: the paper's section 5.3 with its Figs. 5 and 6.

All runs of one comparison are scored under one group, never each under its own transforms: the baseline's own group is
trivial, so it would score zero.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import get_args

from transnet import d4
from transnet.errors import ConfigError, ModelError
from transnet.invariance import ROTATIONS, LayerScore, Measure, kernels, layer_invariance, summarise_layers
from transnet.model import TransNet
from transnet.report import table_format as cells
from transnet.report.measurement_cache import MeasurementCache
from transnet.report.paper import BY_HEADS, name_of
from transnet.report.plot_style import COLOURS, MARKERS, Figure, label, new_figure, save_figure
from transnet.report.table_format import EMPTY, Table
from transnet.runs.folder import load
from transnet.study.results import FinishedRun, Series
from transnet.study.statistics import difference

AXES = {
    "l2": "IS: distance to the nearest invariant kernel",
    "relative": "distance / norm of the kernel",
    "cosine": "cosine similarity with the group mean",
    "pearson": "correlation with the group mean",
}
_DISTANCE = "distance of a kernel to the nearest one that {group} leave unchanged"
MEANING = {
    "l2": f"{_DISTANCE} (l2): lower is more invariant",
    "relative": f"{_DISTANCE}, divided by the kernel's norm (relative): lower is more invariant",
    "cosine": "cosine similarity of a kernel with its mean over {group} (cosine): higher is more invariant",
    "pearson": "correlation of a kernel with its mean over {group} (pearson): higher is more invariant",
}


@dataclass(frozen=True)
class RunKernels:
    """The kernels of one run by one measure: every layer, and every kernel of the last layer."""

    transforms: str = ""
    layers: dict[str, LayerScore] = field(default_factory=dict)
    last: tuple[float, ...] = ()


@dataclass(frozen=True)
class Comparison:
    """Several runs under one group, by one measure."""

    group: str
    measure: Measure
    runs: dict[str, RunKernels]

    @property
    def random(self) -> dict[str, float]:
        """Every layer of any run, with the score of random kernels in the first run that has the layer."""
        deepest = max(self.runs.values(), key=lambda run: len(run.layers)).layers
        layers = dict.fromkeys([*deepest, *(layer for run in self.runs.values() for layer in run.layers)])
        return {
            layer: next(run.layers[layer].random for run in self.runs.values() if layer in run.layers)
            for layer in layers
        }


@dataclass(frozen=True)
class MeasuredKernels(RunKernels):
    """What is kept of a study's run: Figs. 5 and 6 by l2, and the last layer's mean by every measure.

    A network without square kernels larger than 1×1 has no layers.
    """

    last_layer: dict[str, float] = field(default_factory=dict)
    random: dict[str, float] = field(default_factory=dict)


def compare(paths: Sequence[str], *, group: str = ROTATIONS, measure: Measure = "l2") -> Comparison:
    """Score the kernels of finished runs.

    Raises:
        ConfigError: if a setting is wrong, or a run is given twice.
        ModelError: if a network has no kernels to score.
    """
    if measure not in get_args(Measure):
        raise ConfigError(f"unknown {measure!r}; known are {' '.join(get_args(Measure))}", field="measure")
    if len({Path(path).resolve() for path in paths}) < len(paths):
        raise ConfigError("a run is given twice", field="runs")
    names = d4.generate(group)
    return Comparison(",".join(names), measure, {path: score_run(load(path), names, measure) for path in paths})


def score_run(net: TransNet, group: Sequence[str], measure: Measure) -> RunKernels:
    """Score the kernels of one network."""
    layers = summarise_layers(net.backbone, group, measure)
    if not layers:
        raise ModelError(f"a {type(net.backbone).__name__} has no square kernels larger than 1×1")
    last = layer_invariance(net.backbone, group, measure)[list(layers)[-1]]
    return RunKernels(",".join(net.transforms), layers, tuple(last.tolist()))


def figures(series: Series, folder: Path, cache: MeasurementCache) -> list[Figure]:
    """Figs. 5 and 6, if the kernels of several kinds of runs were measured."""
    measured = measure_series(series, cache)
    if len({run.kind for run, _ in measured}) < 2:
        return []
    seed, comparison = one_seed(measured)
    layers, last = draw(comparison, folder, prefix=f"{series.name}-")
    by_layer = (
        "Distance of each kernel to the nearest one that rotations by 90° leave unchanged: lower is more "
        "invariant. Mean over a layer's kernels; bars are one standard deviation, cut at 0."
    )
    shares = "Share of the kernels with at most that distance: a curve further left has more invariant kernels."
    tables = (last_layer_table(measured, seed), steps_table(measured))
    return [
        Figure("Fig. 5: kernel invariance by layer", by_layer, layers, (layers_table(comparison, seed),)),
        Figure("Fig. 6: the last layer's kernels", shares, last, tables),
    ]


def measure_series(series: Series, cache: MeasurementCache) -> list[tuple[FinishedRun, MeasuredKernels]]:
    """The kernels of the baseline and of T2 to T4, from earlier measurements and from weights that are there."""
    found = []
    for run in (run for kind in BY_HEADS for run in series.of(kind)):
        measured = cache.get(MeasuredKernels, f"kernels: {run.name}", [run], partial(_measure, run))
        if measured and measured.layers:
            found.append((run, measured))
    return found


def _measure(run: FinishedRun) -> MeasuredKernels | None:
    if not run.has_weights:
        return None
    net = load(run.path)
    if not kernels(net.backbone):
        return MeasuredKernels()
    scores = {how: score_run(net, d4.generate(ROTATIONS), how) for how in get_args(Measure)}
    ends = {how: list(one.layers.values())[-1] for how, one in scores.items()}
    figure = scores["l2"]
    return MeasuredKernels(
        figure.transforms, figure.layers, figure.last,
        {how: end.mean for how, end in ends.items()}, {how: end.random for how, end in ends.items()},
    )  # fmt: skip


def one_seed(found: Sequence[tuple[FinishedRun, MeasuredKernels]]) -> tuple[int, Comparison]:
    """The runs of the seed with the most kinds, for the figures."""
    seeds = [run.seed for run, _ in found]
    seed = max(sorted(set(seeds)), key=seeds.count)
    shown: dict[str, RunKernels] = {name_of(run.kind, "full"): one for run, one in found if run.seed == seed}
    return seed, Comparison(ROTATIONS, "l2", shown)


def layers_table(comparison: Comparison, seed: int) -> Table:
    """The means behind Fig. 5: every layer, and how much T2 differs from the baseline."""
    runs = comparison.runs
    rows = []
    for layer, random in comparison.random.items():
        means = [run.layers[layer].mean if layer in run.layers else None for run in runs.values()]
        base, t2 = (runs[name].layers.get(layer) if name in runs else None for name in ("baseline", "T2"))
        change = cells.with_error(100 * (t2.mean / base.mean - 1), None, "+.1f") if base and t2 else EMPTY
        shown = (cells.with_error(mean, None, ".4f") if mean is not None else EMPTY for mean in means)
        rows.append((cells.text(layer), *shown, cells.with_error(random, None, ".4f"), change))
    columns = ("layer", *runs, "random kernels", "T2 to baseline, %")
    note = f"Mean IS of a layer's kernels, seed {seed}. Lower is more invariant. The paper finds T2 close to the "
    note += "baseline in all layers but the last."
    table = Table("invariance_layers", "The layers of Fig. 5", columns, tuple(rows), (note,))
    return table.without_empty_columns()


def last_layer_table(found: Sequence[tuple[FinishedRun, MeasuredKernels]], seed: int) -> Table:
    """The last layer by all four measures, over the seeds."""
    kinds = {run.kind: [one for other, one in found if other.kind == run.kind] for run, _ in found}
    measures: tuple[Measure, ...] = get_args(Measure)
    rows = [
        (
            cells.text(name_of(kind, "full")),
            *(cells.mean_of([one.last_layer[how] for one in of_kind], ".4f") for how in measures),
            cells.seeds(len(of_kind)),
        )
        for kind, of_kind in kinds.items()
    ]
    first = next(iter(kinds.values()))
    random = (cells.mean_of([one.random[how] for one in first], ".4f") for how in measures)
    rows.append((cells.text("random kernels"), *random, cells.seeds(len(first))))
    columns = ("model", "IS", "IS / norm", "cosine", "pearson", "n")
    notes = (
        f"Mean of the last layer's kernels under {ROTATIONS.replace(',', ' ')}, mean ± standard error over seeds. IS "
        "and IS / norm: higher is less invariant. Cosine and Pearson, with the group mean: higher is more invariant.",
        "Random kernels have independent normal entries, the same shape and, for IS, the mean norm of the first "
        f"model's kernels. The figures show seed {seed}.",
    )
    return Table("invariance", "The last layer of Figs. 5 and 6", columns, tuple(rows), notes)


def steps_table(found: Sequence[tuple[FinishedRun, MeasuredKernels]]) -> Table:
    """What each further head changes in the last layer."""
    kinds = {kind: [one for run, one in found if run.kind == kind] for kind in BY_HEADS}
    rows = []
    for (before, less), (after, more) in pairwise((kind, runs) for kind, runs in kinds.items() if runs):
        gaps = [
            difference([one.last_layer[how] for one in more], [one.last_layer[how] for one in less])
            for how in ("l2", "relative")
        ]
        names = cells.text(name_of(after, "full")), cells.text(name_of(before, "full"))
        counts = cells.count(len(more)), cells.count(len(less))
        rows.append((*names, *(cells.gap(one, "+.4f") for one in gaps), *counts))
    columns = ("model", "compared with", "difference of IS", "difference of IS / norm", "n", "n of the other")
    note = (
        "Differences of the last layer's mean scores with Welch's 95 % interval; below zero is more invariant. IS also "
        "falls if kernels only become smaller, so both must fall. The paper finds more invariance with every head."
    )
    title = "Each further head, in the last layer"
    return Table("invariance_steps", title, columns, tuple(rows), (note, cells.NO_SPREAD))


def draw(comparison: Comparison, folder: Path, prefix: str = "") -> tuple[Path, Path]:
    """Draw Fig. 5 (mean and spread per layer) and Fig. 6 (last layer, cumulative distribution)."""
    runs, axis = comparison.runs, AXES[comparison.measure]
    group = comparison.group.replace(",", " ")
    names = [label(f"{Path(name).name} ({run.transforms})") for name, run in runs.items()]

    figure, axes = new_figure()
    places = {name: k for k, name in enumerate(comparison.random, 1)}
    for i, run in enumerate(runs.values()):
        layers = list(run.layers.values())
        axes.errorbar(
            [places[layer] + 0.08 * (i - (len(runs) - 1) / 2) for layer in run.layers],
            [layer.mean for layer in layers], _bars(layers, comparison.measure), fmt=MARKERS[i % 7],
            color=COLOURS[i % 7], markersize=4, capsize=2, linewidth=1, label=names[i],
        )  # fmt: skip
    axes.plot(places.values(), comparison.random.values(), "k:", linewidth=1, label="random kernels")
    axes.set(xlabel="layer", ylabel=axis, title=f"Kernels under {group}, mean and standard deviation")
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=8)  # inside, it would hide bars
    figure.set_figheight(figure.get_figheight() + 0.2 * (len(runs) // 2 + 1))
    layers_file = save_figure(figure, folder / f"{prefix}invariance_layers")

    figure, axes = new_figure()
    for i, run in enumerate(runs.values()):
        values = sorted(run.last)
        shares = [100 * k / len(values) for k in range(len(values) + 1)]
        # Each curve has its markers at other places, so that curves can be told apart in grey print.
        axes.plot(
            [values[0], *values], shares, drawstyle="steps-post", linewidth=1.5, color=COLOURS[i % 7],
            marker=MARKERS[i % 7], markersize=5, markevery=(0.02 * (i % 6), 0.12), label=names[i],
        )  # fmt: skip
    axes.set(xlabel=axis, ylabel="kernels at or below it, %", title=f"The last layer's kernels under {group}")
    axes.legend(frameon=False, fontsize=8)
    return layers_file, save_figure(figure, folder / f"{prefix}invariance_last_layer")


def _bars(layers: Sequence[LayerScore], measure: Measure) -> tuple[list[float], list[float]]:
    """One standard deviation down and up, cut at the measure's bounds: 0 below and, except for l2, 1 above."""
    top = math.inf if measure == "l2" else 1.0
    down = [min(layer.std or 0.0, layer.mean) for layer in layers]
    up = [min(layer.std or 0.0, max(top - layer.mean, 0.0)) for layer in layers]
    return down, up


def print_comparison(comparison: Comparison) -> None:
    """Print a table of every layer of every run."""
    from rich.console import Console
    from rich.table import Table as Grid

    console = Console()
    meaning = MEANING[comparison.measure].format(group=comparison.group)
    # This is not the table's title, which would be as narrow as the table of a single run.
    console.print(f"{meaning}; mean ± standard deviation over a layer's kernels", highlight=False)
    grid = Grid()
    grid.add_column("layer")
    for name, run in comparison.runs.items():
        grid.add_column(f"{Path(name).name}\n{run.transforms}", justify="right")
    grid.add_column("random\nkernels", justify="right")
    for layer, random in comparison.random.items():
        found = [run.layers.get(layer) for run in comparison.runs.values()]
        shown = [f"{one.mean:.4f}" + (f" ± {one.std:.4f}" if one.std else "") if one else "" for one in found]
        grid.add_row(layer, *shown, f"{random:.4f}")
    console.print(grid)
