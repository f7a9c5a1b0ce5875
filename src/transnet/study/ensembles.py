"""Fig. 3: accuracy against the number of instances that are processed to classify an image.

m base networks, m pruned T2, and one Tm with all its heads each take m passes. Ensembles of one size share no network,
so that the standard error over them is one of independent values. None reaches beyond a block of four seeds (0…3,
4…7, …): further seeds add ensembles and change none.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from transnet.study.answers import Answers
from transnet.study.old_results import FinishedRun, Group
from transnet.study.plan import MEMBERS, MEMBERS_OF
from transnet.train.evaluate import ensemble_entry
from transnet.train.evaluate_runs import Outputs


@dataclass(frozen=True)
class Ensemble:
    """Classifiers whose outputs are averaged: networks of one kind, or for the curve Tm the heads of one network."""

    curve: str
    instances: int
    members: tuple[FinishedRun, ...]

    @property
    def name(self) -> str:
        """What sets it apart from all others of its group."""
        return name_of(self.curve, [run.name for run in self.members])


def name_of(curve: str, members: Sequence[str]) -> str:
    """The name of the ensemble of a curve that runs of these names make."""
    return f"{curve}: {' + '.join(members)}"


def ensembles_of(group: Group) -> list[Ensemble]:
    """All ensembles of a group's finished runs, curve by curve, the smallest first."""
    found = []
    for curve, kind in MEMBERS_OF.items():
        runs = {run.seed: run for run in group.runs.get(kind, ())}
        for m in range(1, MEMBERS + 1):
            for block in range(0, max(runs, default=-1) + 1, MEMBERS):
                for first in range(block, block + MEMBERS - m + 1, m):
                    seeds = range(first, first + m)
                    if all(seed in runs for seed in seeds):
                        found.append(Ensemble(curve, m, tuple(runs[seed] for seed in seeds)))
    for m in range(1, MEMBERS + 1):
        found += [Ensemble("Tm", m, (run,)) for run in group.runs.get("base" if m == 1 else f"t{m}", ())]
    return found


def of_members(members: Sequence[Answers]) -> dict[str, Any]:
    """Accuracy, loss, calibration error, disagreement and passes of several networks' mean."""
    passes = sum(member.passes for member in members)
    return ensemble_entry([member.logits for member in members], members[0].labels, passes=passes)


def of_heads(said: Outputs) -> dict[str, Any]:
    """The same of all heads of one network, by its run's protocol."""
    heads = list(torch.unbind(said.views[-1], 1))
    return ensemble_entry(heads, said.labels, passes=len(heads) * len(said.views))


def known_of(ensemble: Ensemble) -> dict[str, Any] | None:
    """What a run's own result says of an ensemble of one network, without its outputs: accuracy, loss and passes."""
    if len(ensemble.members) > 1:
        return None
    score = ensemble.members[0].score("full" if ensemble.curve == "Tm" else "pruned")
    return {name: score[name] for name in ("accuracy", "loss", "n", "passes")}


def curves_of(measured: Sequence[tuple[Ensemble, dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    """The figure's curves, ``{"base": …, "PT2": …, "Tm": …}``, from those ensembles that were measured.

    Returns:
        For each curve its points: ``instances``, ``passes`` (with flip), ``ensembles`` (the entry of each) and the
        ``seeds`` of each.
    """
    curves: dict[str, list[dict[str, Any]]] = {}
    for curve in (*MEMBERS_OF, "Tm"):
        curves[curve] = []
        for m in range(1, MEMBERS + 1):
            there = [(one, entry) for one, entry in measured if (one.curve, one.instances) == (curve, m)]
            if there:
                curves[curve].append(
                    {
                        "instances": m,
                        "passes": there[0][1]["passes"],
                        "ensembles": [entry for _, entry in there],
                        "seeds": [[run.seed for run in one.members] for one, _ in there],
                    }
                )
    return curves
