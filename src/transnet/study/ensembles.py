"""Fig. 3: accuracy against the number of instances that are processed to classify an image.

m base networks, m pruned T2, and one Tm with all its heads each take m passes. Ensembles of one size share no network
(seeds 0…m−1, m…2m−1, …), so that the standard error over them is one of independent values.
"""

from collections.abc import Sequence
from typing import Any

import torch

from transnet.measure.evaluate import ensemble_entry
from transnet.study.finished import FinishedRun, Group
from transnet.study.plan import MEMBERS
from transnet.train.evaluation import Outputs, collect


def measure_ensembles(group: Group, *, device: str = "auto") -> dict[str, list[dict[str, Any]]]:
    """The figure's points: ``{"base": …, "PT2": …, "Tm": …}``.

    Returns:
        For each curve its points: ``instances``, ``passes`` (with flip), ``ensembles`` (one entry each of accuracy,
        loss, calibration error and disagreement) and the ``seeds`` of each.
    """
    curves: dict[str, list[dict[str, Any]]] = {"base": [], "PT2": [], "Tm": []}
    for curve, kind in (("base", "base"), ("PT2", "t2")):
        runs = group.runs.get(kind, [])
        measured = [collect(run.path, device=device) for run in runs]
        for m in range(1, min(MEMBERS, len(runs)) + 1):
            parts = [range(start, start + m) for start in range(0, len(runs) - m + 1, m)]
            entries = [_ensemble([measured[i] for i in part]) for part in parts]
            curves[curve].append(_point(m, entries, [[runs[i].seed for i in part] for part in parts]))
    for m in range(1, MEMBERS + 1):
        runs = group.compared("base" if m == 1 else f"t{m}")
        if runs:
            entries = [_heads(collect(run.path, device=device)) for run in runs]
            curves["Tm"].append(_point(m, entries, [[run.seed] for run in runs]))
    return curves


def runs_for_ensembles(group: Group) -> list[FinishedRun]:
    """The runs the figure is made of."""
    return [run for kind in ("base", "t2", "t3", "t4") for run in group.runs.get(kind, ())]


def _ensemble(members: Sequence[Outputs]) -> dict[str, Any]:
    """The mean of the identity heads, by the runs' protocol."""
    if len({member.fingerprint for member in members}) > 1:
        raise ValueError("ensembles: these runs were tested on different images; train them in a folder of their own")
    logits = [member.views[-1][:, member.transforms.index("r0")] for member in members]
    return ensemble_entry(logits, members[0].labels, passes=len(members) * len(members[0].views))


def _heads(network: Outputs) -> dict[str, Any]:
    """The mean of one network's heads."""
    heads = list(torch.unbind(network.views[-1], 1))
    return ensemble_entry(heads, network.labels, passes=len(heads) * len(network.views))


def _point(m: int, entries: list[dict[str, Any]], seeds: list[list[int]]) -> dict[str, Any]:
    return {"instances": m, "passes": entries[0]["passes"], "ensembles": entries, "seeds": seeds}
