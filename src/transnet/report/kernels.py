"""How invariant the kernels of runs became: the paper's section 5.3 with its Figs. 5 and 6.

All runs of one comparison are held against one group, never each against its own transforms: a base network's own
group is trivial, and it would score zero.
"""

import math
from pathlib import Path
from typing import Any, get_args

from torch import Tensor

from transnet import d4
from transnet.errors import ConfigError
from transnet.invariance import Measure, kernels, layer_invariance, random_kernel_score
from transnet.model import TransNet
from transnet.report.plot_style import COLOURS, MARKERS, label, new_figure, save
from transnet.runs.folder import load

LABELS = {
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


def compare(paths: list[str], *, group: str, measure: Measure) -> dict[str, Any]:
    """Mean and spread per layer of every run, and every kernel of the last layer.

    Returns:
        ``group``, ``measure`` and ``runs``: for each run its ``transforms``, its ``layers`` (``mean``, ``std``, ``n``
        and ``random``: what a kernel of independent normal entries of the same shape scores, for l2 at the layer's
        mean norm) and every kernel's value in the ``last`` layer.
    """
    if measure not in get_args(Measure):
        raise ConfigError(f"unknown {measure!r}; known are {' '.join(get_args(Measure))}", field="measure")
    if len({Path(path).resolve() for path in paths}) < len(paths):
        raise ConfigError("invariance: a run is given twice")
    names = d4.generate(group)
    runs = {str(path): score_kernels(load(path), group=names, measure=measure) for path in paths}
    return {"group": ",".join(names), "measure": measure, "runs": runs}


def score_kernels(net: TransNet, *, group: str | tuple[str, ...], measure: Measure) -> dict[str, Any]:
    """One run's entry of `compare`.

    Raises:
        ConfigError: where the network has no kernels to score.
    """
    if not kernels(net.backbone):
        raise ConfigError(f"invariance: a {type(net.backbone).__name__} has no square kernels larger than 1×1")
    scores = layer_invariance(net.backbone, group=group, measure=measure)
    weights = kernels(net.backbone)
    return {
        "transforms": ",".join(net.transforms),
        "layers": {
            name: {
                "mean": values.mean().item(),
                "std": values.std().item() if len(values) > 1 else None,
                "n": len(values),
                "random": _random(weights[name], group, measure),
            }
            for name, values in scores.items()
        },
        "last": scores[list(scores)[-1]].tolist(),
    }


def draw(comparison: dict[str, Any], folder: Path, prefix: str = "") -> list[Path]:
    """Fig. 5 (mean and spread per layer) and Fig. 6 (last layer, cumulative distribution), as SVG, PDF and PNG."""
    axis = LABELS[comparison["measure"]]
    group = comparison["group"].replace(",", " ")
    runs = comparison["runs"]
    written = []

    figure, axes = new_figure()
    places = {name: k for k, name in enumerate(_random_scores(runs), 1)}
    for i, (name, run) in enumerate(runs.items()):
        layers = list(run["layers"].values())
        at = [places[layer] + 0.08 * (i - (len(runs) - 1) / 2) for layer in run["layers"]]
        axes.errorbar(
            at, [layer["mean"] for layer in layers], _bars(layers, comparison["measure"]), fmt=MARKERS[i % 7],
            color=COLOURS[i % 7], markersize=4, capsize=2, linewidth=1, label=_title(name, run),
        )  # fmt: skip
    axes.plot(places.values(), _random_scores(runs).values(), "k:", linewidth=1, label="random kernels")
    axes.set(xlabel="layer", ylabel=axis, title=f"Kernels under {group}, mean and standard deviation")
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=8)  # inside it would hide bars
    figure.set_figheight(figure.get_figheight() + 0.2 * (len(runs) // 2 + 1))
    written += save(figure, folder / f"{prefix}invariance_layers")

    figure, axes = new_figure()
    for i, (name, run) in enumerate(runs.items()):
        values = sorted(run["last"])
        shares = [100 * k / len(values) for k in range(len(values) + 1)]
        # Markers are apart by their place in the figure, so that curves can be told apart in grey print.
        axes.plot(
            [values[0], *values], shares, drawstyle="steps-post", linewidth=1.5, color=COLOURS[i % 7],
            marker=MARKERS[i % 7], markersize=5, markevery=(0.02 * (i % 6), 0.12), label=_title(name, run),
        )  # fmt: skip
    axes.set(xlabel=axis, ylabel="kernels at or below it, %", title=f"The last layer's kernels under {group}")
    axes.legend(frameon=False, fontsize=8)
    written += save(figure, folder / f"{prefix}invariance_last_layer")
    return written


def print_comparison(comparison: dict[str, Any]) -> None:
    """A table of every layer of every run."""
    from rich.console import Console
    from rich.table import Table

    runs = comparison["runs"]
    console = Console()
    meaning = MEANING[comparison["measure"]].format(group=comparison["group"])
    # Not the table's title, which would be as narrow as the table of a single run.
    console.print(f"{meaning}; mean ± standard deviation over a layer's kernels", highlight=False)
    table = Table()
    table.add_column("layer")
    for name, run in runs.items():
        table.add_column(f"{Path(name).name}\n{run['transforms']}", justify="right")
    table.add_column("random\nkernels", justify="right")
    for layer, random in _random_scores(runs).items():
        cells = [run["layers"].get(layer) for run in runs.values()]
        shown = [
            f"{cell['mean']:.4f}" + (f" ± {cell['std']:.4f}" if cell["std"] else "") if cell else "" for cell in cells
        ]
        table.add_row(layer, *shown, f"{random:.4f}")
    console.print(table)


def _bars(layers: list[dict[str, Any]], measure: str) -> tuple[list[float], list[float]]:
    """One standard deviation down and up, as far as there are values: none is below 0, and but for l2 none above 1."""
    top = math.inf if measure == "l2" else 1.0
    down = [min(layer["std"] or 0.0, layer["mean"]) for layer in layers]
    up = [min(layer["std"] or 0.0, max(top - layer["mean"], 0.0)) for layer in layers]
    return down, up


def _random_scores(runs: dict[str, Any]) -> dict[str, float]:
    """Every layer that any run has, with what random kernels score in the first one that has it."""
    deepest = max(runs.values(), key=lambda run: len(run["layers"]))["layers"]
    layers = dict.fromkeys([*deepest, *(layer for run in runs.values() for layer in run["layers"])])
    return {
        layer: next(run["layers"][layer]["random"] for run in runs.values() if layer in run["layers"])
        for layer in layers
    }


def _title(name: str, run: dict[str, Any]) -> str:
    return label(f"{Path(name).name} ({run['transforms']})")


def _random(weight: Tensor, group: str | tuple[str, ...], measure: Measure) -> float:
    """What kernels of independent entries, of this layer's shape and mean norm, would score."""
    relative = random_kernel_score(weight.shape[1:], group, "relative" if measure == "l2" else measure)
    norm = weight.detach().flatten(1).norm(dim=1).mean().item()
    return relative * norm if measure == "l2" else relative
