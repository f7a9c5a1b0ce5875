"""How settings were chosen, and runs from pretrained weights."""

import statistics
from typing import Any

from source import RESULTS, counted, figure, grid, link, made_with, origin, read, remark
from transnet.report.table_format import seeds
from transnet.runs.folder import Run
from transnet.runs.records import Result
from transnet.study.statistics import as_text


def percent(accuracy: float) -> str:
    return f"{100 * accuracy:.2f}"


def recipe() -> str:
    """The candidates for the recipe `fast`."""
    found = read("tune_fast.json")
    kinds = (("base", "pruned"), ("T2", "pruned"), ("T2", "full"))
    rows = [(row["candidate"], *(percent(row[kind][part]) for kind, part in kinds)) for row in found["rows"]]
    return (
        f"The recipe `fast`: accuracy on validation images, {found['split']} of CIFAR-100, {found['epochs']} epochs, "
        f"one seed. {origin(found, 'tune_fast.json')}. The first row is the starting point; each other row changes one "
        "setting. These images chose the recipe, so they do not judge it. The row with the best baseline was chosen."
        f"{remark(found)}\n\n" + grid(("candidate", "baseline %", "PT2 %", "T2 %"), rows)
    )


def self_distillation() -> str:
    """The candidates for self-distillation: means over their seeds."""
    found = read("tune_teaching.json")
    runs: dict[str, list[dict[str, Any]]] = {}
    for run in found["rows"]:
        runs.setdefault(run["candidate"], []).append(run)
    columns = (("alone", "pruned"), ("alone", "full"), ("mirrored", "pruned"), ("mirrored", "full"))

    def mean(name: str, view: str, part: str) -> float:
        return statistics.fmean(run[view][part] for run in runs[name])

    rows = [(option(name), seeds(len(of)), *(percent(mean(name, *column)) for column in columns))
            for name, of in runs.items()]  # fmt: skip
    pairs = [(name, f"{name} taught 1") for name in runs if f"{name} taught 1" in runs]
    changes = [(option(plain), *(as_text(100 * (mean(distilled, *column) - mean(plain, *column)), "+.2f")
                                 for column in columns)) for plain, distilled in pairs]  # fmt: skip
    base, other = runs["base-long"][0], runs["r0,r1"][0]
    names = ("one head %", "all heads %", "one head, flip TTA %", "all heads, flip TTA %")
    return (
        f"Self-distillation: accuracy on {base['judged_by']:,} training images of CIFAR-100 that were cut off, "
        f"{other['epochs']} epochs, baseline {base['epochs']}. {origin(found, 'tune_teaching.json')}. m0 is the "
        "horizontal flip, and m3 is r1 of the flipped image. Weight 1 with r0,r1 was chosen for the accuracy of its "
        "pruned head on the image alone. How far two seeds of one candidate would differ was not measured."
        f"{remark(found)}\n\n{grid(('candidate', 'n', *names), rows)}\n\nWhat weight 1 changed, in points:\n\n"
        + grid(("candidate", *(name.removesuffix(" %") for name in names)), changes)
    )


def option(candidate: str) -> str:
    """A candidate as options of the command line."""
    transforms, _, change = candidate.partition(" ")
    if transforms == "base-long":
        return "baseline"
    words = change.replace("taught", "--distillation").replace("bn-separate", "--bn separate")
    return f"`{f'{transforms} {words}'.strip()}`"


def pretrained() -> str:
    """Runs from ImageNet's weights: a column for each setting, a row for each head."""
    patterns = ("pretrained_run", "anytime_runs/t3-pretrained-s*")
    groups: dict[str, list[Result]] = {}
    for path in (path for pattern in patterns for path in sorted(RESULTS.glob(pattern))):
        result = Run(path).result()
        train = result.config.train
        name = f"{train.epochs} epochs, learning rate {train.lr:g}, weight decay {train.weight_decay:g}"
        groups.setdefault(name, []).append(result)
    results = [result for group in groups.values() for result in group]
    data, one = results[0].config.data, results[0]

    def row(name: str, passes: int, values: list[list[float]]) -> tuple[object, ...]:
        return name, *(figure([100 * value for value in of_group]) for of_group in values), passes

    rows = [
        row(f"head {head.name}", 1, [[run.test.heads[i].accuracy for run in group] for group in groups.values()])
        for i, head in enumerate(one.test.heads)
    ]
    rows.append(row("all heads", len(rows), [[run.test.full.accuracy for run in group] for group in groups.values()]))
    columns = ("", *(f"% after {name} ({counted(len(group))})" for name, group in groups.items()), "passes per image")
    gains = [
        [100 * (run.test.full.accuracy - run.test.heads[0].accuracy) for run in group] for group in groups.values()
    ]
    rows.append(("all heads − identity head, points", *(as_text(statistics.fmean(gain), "+.2f") for gain in gains), ""))
    commits = ", ".join(dict.fromkeys(run.commit for run in results if run.commit))
    tried = read("tune_finetuning.json")
    candidates = [
        (
            row["candidate"].replace("lr", "learning rate"),
            percent(row["alone"]["pruned"]),
            percent(row["alone"]["full"]),
        )
        for row in tried["rows"]
    ]
    return "\n\n".join([
        f"T{len(one.test.heads)} runs on {data.name} from ImageNet's weights: {one.config.train.model}, images of "
        f"{data.image_size}×{data.image_size} pixels, {data.sizes.train:,} training images, no label smoothing. "
        f"Accuracies on the {data.sizes.test:,} test images, without flip TTA. No baseline was trained beside them, so "
        f"the gain over one is not known. {made_with(one.device, one.versions['torch'], commits)} "
        f"({link('pretrained_run')}, {link('anytime_runs')}).",
        grid(columns, rows),
        f"The shorter run was not tuned. For the longer runs, these candidates were tried on "
        f"{tried['rows'][0]['judged_by']:,} training images that had been cut off, {tried['rows'][0]['epochs']} "
        "epochs, one seed; the first was chosen. Weight decay and epochs were not tuned. "
        f"{origin(tried, 'tune_finetuning.json')}.{remark(tried)}",
        grid(("candidate", "one head %", "all heads %"), candidates),
    ])  # fmt: skip
