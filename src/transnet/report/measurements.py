"""What a study measures on its networks themselves, kept as JSON: the report then needs neither weights nor data.

OUT/measured/<group>.json    the ensembles of Fig. 3 and the kernels of Figs. 5 and 6, part by part

A part is one ensemble, or one run's kernels. It is kept with the marks of its runs and holds while these are the same,
whether their weights are still there or not. So a study can be trained in stretches, on machines that keep no weights
(`transnet.study.answers` has what ensembles across stretches need). What could be measured in none of them is left out.
"""

import json
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, get_args

from transnet.console import say
from transnet.data import DataSet
from transnet.errors import DataError
from transnet.invariance import ROTATIONS, Measure, kernels
from transnet.report.kernels import score_kernels
from transnet.runs.files import read_json, write_atomically
from transnet.runs.folder import Run, load
from transnet.study.answers import Answers, drop_answers, keep_answers, kept_answers
from transnet.study.ensembles import Ensemble, curves_of, ensembles_of, known_of, name_of, of_heads, of_members
from transnet.study.old_results import FinishedRun, Group
from transnet.study.plan import BY_HEADS, KINDS, MEMBERS
from transnet.train.evaluate_runs import collect, own_data

SCHEMA = 3

Found = dict[str, Any]


class Measured:
    """A group's file of measurements."""

    def __init__(self, path: Path) -> None:
        self.path = path
        before: dict[str, Any] = dict(read_json(path, "")) if path.exists() else {}
        self.parts: dict[str, Any] = before.get("parts", {}) if before.get("schema") == SCHEMA else {}

    def part(self, name: str, runs: Sequence[FinishedRun], measure: Callable[[], Found | None]) -> Found | None:
        """What was measured of these runs before, or else is now; None where ``measure`` says that it cannot be."""
        marks = {run.name: run.mark for run in runs}
        if name not in self.parts or self.parts[name]["runs"] != marks:
            if (new := measure()) is None:
                return None
            self.parts[name] = {"runs": marks, "found": new}
            # At once: the machine's time may end before everything is measured.
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self.path, json.dumps({"schema": SCHEMA, "parts": self.parts}, indent=1).encode())
        found: Found = self.parts[name]["found"]
        return found


def was_measured(out: Path, group: str, curve: str, members: Sequence[str]) -> bool:
    """Whether the ensemble of these runs was measured before, and none of them was trained again since."""
    part = Measured(_file(out, group)).parts.get(name_of(curve, members))
    runs = {name: Run(out / "runs" / name) for name in members}
    return part is not None and all(
        run.finished and run.result().model_sha256 == part["runs"][name] for name, run in runs.items()
    )


def _file(out: Path, group: str) -> Path:
    return out / "measured" / f"{group}.json"


def measure(group: Group, out: Path, *, data: str | None = None, device: str = "auto") -> dict[str, Any]:
    """``{"ensembles": …, "invariance": … | None}`` of a group, for the figures; only what is new is measured.

    Args:
        group: the runs.
        out: the study's folder.
        data: where the data lies, where its name does not find it.
        device: where the networks run.
    """
    measured = Measured(_file(out, group.name))

    @cache
    def opened() -> DataSet | None:
        try:
            return own_data(group.some.path, at=data)
        except DataError as error:  # such as on a machine that only hands the runs to a cluster
            say(f"{group.name}: ensembles that were not measured before are left out: {error}")
            return None

    def to_ask(path: Path) -> DataSet | None:
        """What a run's network can be shown; None where one or the other is gone."""
        return opened() if Run(path).model.exists() else None

    @cache
    def answers(path: Path, mark: str) -> Answers | None:
        kept = kept_answers(path, mark)
        if kept is None and (images := to_ask(path)):
            kept = keep_answers(path, images, device=device)
        return kept

    def heads_of(run: FinishedRun) -> Found | None:
        images = to_ask(run.path)
        return of_heads(collect(run.path, data=images, device=device)) if images else None

    def ensemble(one: Ensemble) -> Found | None:
        if one.curve == "Tm" and one.instances > 1:
            return heads_of(one.members[0])
        said = [answers(run.path, run.mark) for run in one.members]
        return of_members([each for each in said if each]) if all(said) else None

    def kernels_of(run: FinishedRun) -> Found | None:
        return measured.part(f"kernels: {run.name}", [run], lambda: _kernels(run) if run.has_weights else None)

    scored = [(run, kernels_of(run)) for kind in BY_HEADS for run in group.of(kind)]  # needs no data
    ensembles = [(one, measured.part(one.name, one.members, partial(ensemble, one))) for one in ensembles_of(group)]
    for one, entry in ensembles:
        if entry and len(one.members) == MEMBERS:  # no other ensemble will want them
            for run in one.members:
                drop_answers(run.path)
    if any(entry for _, entry in ensembles):  # then what is known of the others stands beside them
        ensembles = [(one, entry or known_of(one)) for one, entry in ensembles]
    return {
        "invariance": _comparison([(run, found) for run, found in scored if found]),
        "ensembles": curves_of([(one, entry) for one, entry in ensembles if entry]),
    }


def _kernels(run: FinishedRun) -> Found:
    """A run's kernels by the paper's measure, and its last layer's mean by every one; nothing where it has none."""
    net = load(run.path)
    if not kernels(net.backbone):
        return {}
    found = {how: score_kernels(net, group=ROTATIONS, measure=how) for how in get_args(Measure)}
    last = {how: list(of["layers"].values())[-1] for how, of in found.items()}
    return {
        **found["l2"],
        "last_layer": {how: layer["mean"] for how, layer in last.items()},
        "random": {how: layer["random"] for how, layer in last.items()},
    }


def _comparison(found: list[tuple[FinishedRun, Found]]) -> dict[str, Any] | None:
    """What the figures show, one seed's kernels, and of every seed the last layer."""
    if not found:
        return None
    seeds = [run.seed for run, _ in found]
    shown = max(sorted(set(seeds)), key=seeds.count)  # the first of those with the most kinds
    kinds = dict.fromkeys(run.kind for run, _ in found)
    first = found[0][0].kind
    return {
        "group": ROTATIONS,
        "measure": "l2",
        "seed": shown,
        "runs": {KINDS[run.kind].full: scores for run, scores in found if run.seed == shown},
        "last_layer": {
            how: {
                KINDS[kind].full: [kernels["last_layer"][how] for run, kernels in found if run.kind == kind]
                for kind in kinds
            }
            for how in get_args(Measure)
        },
        "random": {
            "of": KINDS[first].full,
            **{how: [of["random"][how] for run, of in found if run.kind == first] for how in get_args(Measure)},
        },
    }
