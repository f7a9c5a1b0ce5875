"""How many heads and which transforms, from what was measured, and what would have predicted the best number."""

import statistics
from collections.abc import Callable, Sequence

from chosen_settings import option
from comparisons import kernels_of
from reproduction import by_series, minutes
from source import figure, grid, percent, read
from studies import Study
from transnet.report import table_format as cells
from transnet.report.tables import BY_HEADS, accuracies, name_of
from transnet.study.file import read_study
from transnet.study.results import FinishedRun
from transnet.study.statistics import difference

SERIES = "cifar100-fast"
KINDS = dict(enumerate(BY_HEADS, 1))
Values = Callable[[int], Sequence[float]]  # of the runs with m heads


def _study() -> Study:
    return by_series()[SERIES]


def _longer(m: int) -> str:
    """The baseline of equal training compute."""
    return "base" if m == 1 else f"base-x{m}"


def by_number() -> str:
    """Accuracy against the number of heads, beside the baseline that was trained for as many passes."""
    series, rows = _study().series, []
    for m, kind in KINDS.items():
        for part in ("pruned", "full") if m > 1 else ("pruned",):
            row: list[object] = [m, name_of(kind, part), len(series.of(kind))]
            for flip in (False, True):
                ours, plain = (accuracies(series.of(one), part, flip) for one in (kind, _longer(m)))
                row += [figure(ours), figure(plain), cells.gap(difference(ours, plain)) if m > 1 else "–"]
            rows.append(row)
    columns = ("m", "model", "n", "accuracy %", "baseline, m× epochs %", "difference", "flip TTA %",
               "baseline, m× epochs, flip TTA %", "difference, flip TTA")  # fmt: skip
    return f"{grid(columns, rows)}\n\n{_study().title}."


def heads() -> str:
    """Every head and every subset of heads, as the report has them."""
    study = _study()
    table = (study.folder / "tables" / f"{study.series.name}-heads.md").read_text()
    return f"{table.partition(chr(10))[2].strip()}\n\n{study.title}."


def by_transform() -> str:
    """Accuracy of two heads against the second one's transform, at equal training compute."""
    study, rows = _study(), []
    among = by_series()
    for kind, variant in read_study("paper-natural").variants.items():
        transforms = str(variant.options["transforms"])
        if transforms.count(",") != 1:
            continue
        runs, row = study.series.of(kind), []
        for part in ("pruned", "full"):
            if runs:
                gap = difference(accuracies(runs, part), accuracies(study.series.of("base-x2"), "pruned"))
                row += [figure(accuracies(runs, part)), cells.gap(gap)]
            else:
                row += [f"not run, {minutes('cifar100', 'fast', {kind: 3}, among)} minutes", "–"]
        rows.append((f"`{transforms}`", len(runs), *row))
    columns = ("transforms", "n", "pruned, flip TTA %", "to baseline, 2× epochs", "both heads, flip TTA %",
               "to baseline, 2× epochs")  # fmt: skip
    command = "transnet study paper-natural --out results/cifar100"
    return f"{grid(columns, rows)}\n\n{study.title}. To run what is missing: `{command}`."


def tried_transforms() -> str:
    """The transforms that were tried on held-out training images, with one seed."""
    found = read("tune_teaching.json")
    rows = [
        (option(row["candidate"]), row["epochs"] * len(row["alone"]["heads"]), *(
            percent(row[how][part]) for how in ("alone", "mirrored") for part in ("pruned", "full")))
        for row in found["rows"] if "bn" not in row["candidate"]
    ]  # fmt: skip
    columns = ("transforms", "training passes per image", "pruned %", "all heads %", "pruned, flip TTA %",
               "all heads, flip TTA %")  # fmt: skip
    held_out = f"{found['rows'][0]['judged_by']:,} images of CIFAR-100's training set were held out, one seed."
    return f"{grid(columns, rows)}\n\n{held_out} {found['origin']}"


def predictors() -> str:
    """What is known of each number of heads, the number that it would choose, and the best numbers."""
    study = _study()

    def runs(m: int) -> list[FinishedRun]:
        return study.series.of(KINDS[m])

    def lead(m: int, part: str) -> Sequence[float]:
        return [difference(accuracies(runs(m), part), accuracies(study.series.of(_longer(m)), "pruned")).mean]

    known: dict[str, Values] = {
        "invariance score of the last layer": lambda m: [one.last_layer["l2"] for one in kernels_of(study, KINDS[m])],
        "invariance score / norm": lambda m: [one.last_layer["relative"] for one in kernels_of(study, KINDS[m])],
        "training loss": lambda m: [one.loss for run in runs(m) if (one := run.result.train) and one.loss is not None],
        "generalisation score": lambda m: [one for run in runs(m) if (one := run.result.generalization) is not None],
    }  # fmt: skip
    best: dict[str, Values] = {
        "accuracy of PTm": lambda m: accuracies(runs(m), "pruned"),
        "accuracy of Tm": lambda m: accuracies(runs(m), "full"),
        "lead of PTm at equal training compute": lambda m: lead(m, "pruned"),
        "lead of Tm at equal training compute": lambda m: lead(m, "full"),
    }
    rows = [
        (name, *_row(values, ".3f"), _extreme(values, min), _extreme(values, max)) for name, values in known.items()
    ]
    wanted = [(name, *_row(values, ".2f"), _extreme(values, max)) for name, values in best.items()]
    numbers = [f"m = {m}" for m in KINDS]
    chosen = sorted({m for row in rows for m in row[-2:]})
    missed = [row[0] for row in wanted if row[-1] not in chosen]
    verdict = f"Every known quantity is lowest and highest at m = {' or '.join(map(str, chosen))}. " + (
        f"None of them chooses the best m for: {'; '.join(missed)}." if missed else ""
    )
    return "\n\n".join([
        grid(("known", *numbers, "m at its lowest", "m at its highest"), rows),
        grid(("wanted, flip TTA", *numbers, "best m"), wanted), f"{study.title}. {verdict}",
    ])  # fmt: skip


def _row(values: Values, form: str) -> list[str]:
    found = [values(m) for m in KINDS]
    return [figure(each, form) if each else "–" for each in found]


def _extreme(values: Values, choose: Callable[..., int]) -> int:
    means = {m: statistics.fmean(found) for m in KINDS if (found := values(m))}
    return choose(means, key=lambda m: means[m])
