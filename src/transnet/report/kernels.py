"""How invariant the kernels of runs became: the paper's section 5.3 with its Figs. 5 and 6.

All runs of one comparison are scored under one group: under its own, the identity, the baseline would score zero.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle, pairwise
from pathlib import Path
from typing import get_args

from transnet import d4
from transnet.console import print_table
from transnet.errors import ConfigError, ModelError
from transnet.invariance import ROTATIONS, LayerScore, Measure, kernels, layer_invariance, summarise_layers
from transnet.model import TransNet
from transnet.report import plot_style
from transnet.report import table_format as cells
from transnet.report.measurement_cache import MeasurementCache
from transnet.report.plot_style import COLOURS, MARKERS, Figure
from transnet.report.table_format import EMPTY, TEXTS, Table
from transnet.report.tables import BY_HEADS, name_of
from transnet.runs.folder import load
from transnet.study.results import FinishedRun, Series
from transnet.study.statistics import difference

MEASURES: tuple[Measure, ...] = get_args(Measure)


@dataclass(frozen=True)
class RunKernels:
    """The kernels of one run by one measure."""

    transforms: str = ""
    layers: dict[str, LayerScore] = field(default_factory=dict)
    last: tuple[float, ...] = ()  # every kernel of the last layer


@dataclass(frozen=True)
class KernelComparison:
    """Several runs under one group, by one measure."""

    group: str
    measure: Measure
    runs: Mapping[str, RunKernels]

    @property
    def random(self) -> dict[str, float]:
        """Every layer of any run, with the score of random kernels in the first run that has the layer."""
        layers = [run.layers for run in self.runs.values()]
        deepest_first = (max(layers, key=len), *reversed(layers))  # a later one replaces values, but not their order
        return {name: layer.random for one in deepest_first for name, layer in one.items()}


@dataclass(frozen=True)
class MeasuredKernels(RunKernels):
    """What is kept of a study's run, by l2. A network without square kernels larger than 1×1 has no layers."""

    last_layer: dict[str, float] = field(default_factory=dict)  # the last layer's mean by every measure
    random: dict[str, float] = field(default_factory=dict)  # and that of random kernels


Measured = dict[str, dict[int, MeasuredKernels]]  # by kind of run and seed


def compare_kernels(paths: Sequence[str], group: str, measure: Measure) -> KernelComparison:
    """Score the kernels of finished runs under the group that some transforms generate."""
    try:
        names = d4.generate(group)
    except ModelError as error:
        raise ConfigError(error.message, field="group") from None
    if names == ("r0",):
        raise ConfigError(f"{group} is the identity alone; add another transform, such as r1 or m0", field="group")
    if len({Path(path).resolve() for path in paths}) < len(paths):
        raise ConfigError("a run is given twice", field="runs")
    scores = {path: score_run(load(path, transform=None), names, measure) for path in paths}
    return KernelComparison(",".join(names), measure, scores)


def score_run(net: TransNet, group: Iterable[str], measure: Measure) -> RunKernels:
    """Score the kernels of one network."""
    layers = summarise_layers(net.backbone, group, measure)
    if not layers:
        raise ModelError(f"a {type(net.backbone).__name__} has no square kernels larger than 1×1")
    last = layer_invariance(net.backbone, group, measure)[list(layers)[-1]]
    return RunKernels(",".join(net.transforms), layers, tuple(last.tolist()))


def kernel_figures(series: Series, folder: Path, cache: MeasurementCache) -> list[Figure]:
    """Figs. 5 and 6, if the kernels of several kinds of runs were measured earlier, or have weights to measure."""
    measured: Measured = {}
    for run in (run for kind in BY_HEADS for run in series.of(kind)):
        found = cache.get(MeasuredKernels, f"kernels: {run.name}", [run], partial(_measure, run))
        if found and found.layers:
            measured.setdefault(run.kind, {})[run.seed] = found
    if len(measured) < 2:
        return []
    seed, comparison = one_seed(measured)
    layers, last = draw_kernels(comparison, folder, prefix=f"{series.name}-")
    return [
        Figure("figure_5", layers, [layers_table(comparison, seed)]),
        Figure("figure_6", last, [last_layer_table(measured, seed), steps_table(measured)]),
    ]


def _measure(run: FinishedRun) -> MeasuredKernels | None:
    if not run.has_weights:
        return None
    net = load(run.path, transform=None)
    if not kernels(net.backbone):
        return MeasuredKernels()
    scores = {how: score_run(net, d4.generate(ROTATIONS), how) for how in MEASURES}
    ends = {how: list(one.layers.values())[-1] for how, one in scores.items()}
    return MeasuredKernels(
        **vars(scores["l2"]), last_layer={how: end.mean for how, end in ends.items()},
        random={how: end.random for how, end in ends.items()},
    )  # fmt: skip


def one_seed(measured: Measured) -> tuple[int, KernelComparison]:
    """The runs of the seed with the most kinds, for the figures."""
    seeds = [seed for runs in measured.values() for seed in runs]
    seed = max(sorted(set(seeds)), key=seeds.count)
    shown = {name_of(kind, "full"): runs[seed] for kind, runs in measured.items() if seed in runs}
    return seed, KernelComparison(ROTATIONS, "l2", shown)


def layers_table(comparison: KernelComparison, seed: int) -> Table:
    """The means behind Fig. 5: every layer, and how much T2 differs from the baseline."""
    runs = comparison.runs
    rows = []
    for layer, random in comparison.random.items():
        means = {name: run.layers[layer].mean for name, run in runs.items() if layer in run.layers}
        change = EMPTY
        if means.keys() >= {"baseline", "T2"}:
            change = cells.with_error(100 * (means["T2"] / means["baseline"] - 1), form="+.1f")
        shown = [cells.with_error(means[name], form=".4f") if name in means else EMPTY for name in runs]
        rows.append([cells.plain(layer), *shown, cells.with_error(random, form=".4f"), change])
    columns = ("layer", *runs, "random kernels", "T2 to baseline, %")
    return Table("invariance_layers", columns, rows, {"seed": seed}).without_empty_columns()


def last_layer_table(measured: Measured, seed: int) -> Table:
    """The last layer by all four measures, over the seeds."""
    models = [(name_of(kind, "full"), [one.last_layer for one in runs.values()]) for kind, runs in measured.items()]
    models.append(("random kernels", [one.random for one in next(iter(measured.values())).values()]))
    rows = []
    for name, runs in models:
        means = [cells.mean_of([run[how] for run in runs], ".4f") for how in MEASURES]
        rows.append([cells.plain(name), *means, cells.seeds(len(runs))])
    columns = ("model", "IS", "IS / norm", "cosine", "pearson", "n")
    return Table("invariance", columns, rows, {"seed": seed, "group": ROTATIONS.replace(",", " ")})


def steps_table(measured: Measured) -> Table:
    """What each further head changes in the last layer."""
    rows = []
    for (fewer, less), (kind, more) in pairwise(measured.items()):
        sides = [[one.last_layer for one in runs.values()] for runs in (more, less)]
        gaps = [difference(*([one[how] for one in side] for side in sides)) for how in ("l2", "relative")]
        names = [cells.plain(name_of(one, "full")) for one in (kind, fewer)]
        counts = [cells.plain(len(side)) for side in sides]
        rows.append([*names, *(cells.gap(one, "+.4f") for one in gaps), *counts])
    columns = ("model", "compared with", "difference of IS", "difference of IS / norm", "n", "n of the other")
    return Table("invariance_steps", columns, rows)


def draw_kernels(comparison: KernelComparison, folder: Path, prefix: str = "") -> tuple[Path, Path]:
    """Draw Fig. 5 (mean and spread per layer) and Fig. 6 (last layer, cumulative distribution)."""
    runs, axis = comparison.runs, TEXTS["measures"][comparison.measure]["axis"]
    group = comparison.group.replace(",", " ")
    places = {name: k for k, name in enumerate(comparison.random, 1)}
    top = math.inf if comparison.measure == "l2" else 1.0
    (figure, axes), (last_figure, last_axes) = plot_style.new_figure(), plot_style.new_figure()
    for i, ((name, run), colour, marker) in enumerate(zip(runs.items(), cycle(COLOURS), cycle(MARKERS))):
        style = {"color": colour, "marker": marker, "label": plot_style.escape(f"{Path(name).name} ({run.transforms})")}
        layers = list(run.layers.values())
        # Bars of one standard deviation end at the bounds of the measure.
        down = [min(layer.std or 0.0, layer.mean) for layer in layers]
        up = [min(layer.std or 0.0, max(top - layer.mean, 0.0)) for layer in layers]
        axes.errorbar(
            [places[layer] + 0.08 * (i - (len(runs) - 1) / 2) for layer in run.layers],
            [layer.mean for layer in layers], (down, up), linestyle="", markersize=4, capsize=2, linewidth=1, **style,
        )  # fmt: skip
        values = sorted(run.last)
        shares = [100 * k / len(values) for k in range(len(values) + 1)]
        # The markers of each curve are at other places, so that curves can be distinguished in grey print.
        last_axes.plot(
            [values[0], *values], shares, drawstyle="steps-post", linewidth=1.5, markersize=5,
            markevery=(0.02 * (i % 6), 0.12), **style,
        )  # fmt: skip
    axes.plot(places.values(), comparison.random.values(), "k:", linewidth=1, label="random kernels")
    axes.set(xlabel="layer", ylabel=axis, title=f"Kernels under {group}, mean and standard deviation")
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=8)  # inside, it would hide bars
    figure.set_figheight(figure.get_figheight() + 0.2 * (len(runs) // 2 + 1))
    last_axes.set(xlabel=axis, ylabel="kernels at or below it, %", title=f"The last layer's kernels under {group}")
    last_axes.legend(frameon=False, fontsize=8)
    layers_file = plot_style.save_figure(figure, folder / f"{prefix}invariance_layers")
    return layers_file, plot_style.save_figure(last_figure, folder / f"{prefix}invariance_last_layer")


def print_comparison(comparison: KernelComparison) -> None:
    """Print a table of every layer of every run."""
    meaning = TEXTS["measures"][comparison.measure]["meaning"].format(group=comparison.group)
    print(f"{meaning}; mean ± standard deviation over a layer's kernels")  # the title of a narrow table would wrap
    names = (f"{Path(name).name}\n{run.transforms}" for name, run in comparison.runs.items())
    rows = []
    for layer, random in comparison.random.items():
        scores = [run.layers.get(layer) for run in comparison.runs.values()]
        shown = [f"{one.mean:.4f}" + (f" ± {one.std:.4f}" if one.std else "") if one else "" for one in scores]
        rows.append([layer, *shown, f"{random:.4f}"])
    print_table(["layer", *names, "random\nkernels"], rows)
