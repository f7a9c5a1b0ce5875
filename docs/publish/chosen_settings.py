"""How settings were chosen, and runs from pretrained weights."""

import statistics
from collections.abc import Sequence

from source import RESULTS, counted, figure, grid, link, made_with, percent, read
from transnet.runs.folder import Run
from transnet.runs.records import Result
from transnet.study.statistics import as_text


def recipe() -> str:
    found = read("tune_fast.json")
    kinds = (("base", "pruned"), ("T2", "pruned"), ("T2", "full"))
    rows = [(row["candidate"], *(percent(row[kind][part]) for kind, part in kinds)) for row in found["rows"]]
    table = grid(("candidate", "baseline %", "PT2 %", "T2 %"), rows)
    return f"{table}\n\n{found['split']} of CIFAR-100, {found['epochs']} epochs, one seed. {found['origin']}"


def self_distillation() -> str:
    """The candidates for self-distillation, and what weight 1 changed: means over their seeds."""
    found = read("tune_teaching.json")
    columns = {
        "one head": ("alone", "pruned"), "all heads": ("alone", "full"),
        "one head, flip TTA": ("mirrored", "pruned"), "all heads, flip TTA": ("mirrored", "full"),
    }  # fmt: skip
    seeds = {row["candidate"]: [one for one in found["rows"] if one["candidate"] == row["candidate"]]
             for row in found["rows"]}  # fmt: skip
    means = {name: [statistics.fmean(run[view][part] for run in runs) for view, part in columns.values()]
             for name, runs in seeds.items()}  # fmt: skip
    rows = [(option(name), len(seeds[name]), *map(percent, values)) for name, values in means.items()]
    changes = [
        (option(name), *(as_text(100 * (b - a), "+.2f") for a, b in zip(values, means[f"{name} taught 1"])))
        for name, values in means.items()
        if f"{name} taught 1" in means
    ]
    base, other = seeds["base-long"][0], seeds["r0,r1"][0]
    return "\n\n".join([
        grid(("candidate", "n", *(f"{name} %" for name in columns)), rows),
        f"{base['judged_by']:,} training images of CIFAR-100 were held out to compare the candidates; "
        f"{other['epochs']} epochs, baseline {base['epochs']}. {found['origin']}",
        "What weight 1 changed, in points:", grid(("candidate", *columns), changes),
    ])  # fmt: skip


def option(candidate: str) -> str:
    transforms, _, change = candidate.partition(" ")
    if transforms == "base-long":
        return "baseline"
    words = change.replace("taught", "--distillation").replace("bn-separate", "--bn separate")
    return f"`{f'{transforms} {words}'.strip()}`"


def pretrained() -> str:
    """Runs from ImageNet's weights, a row for each setting."""
    groups: dict[str, list[Result]] = {}
    for path in (RESULTS / "pretrained_run", *sorted(RESULTS.glob("anytime_runs/t3-pretrained-s*"))):
        result = Run(path).result()
        train = result.config.train
        name = f"{train.epochs} epochs, learning rate {train.lr:g}, weight decay {train.weight_decay:g}"
        groups.setdefault(name, []).append(result)
    rows = [(f"{name} ({counted(len(group))})", *_accuracies(group)) for name, group in groups.items()]
    results = [result for group in groups.values() for result in group]
    data, one = results[0].config.data, results[0]
    heads = [f"head {head.name} %" for head in one.test.heads]
    commits = ", ".join(dict.fromkeys(run.commit for run in results if run.commit))
    tried = read("tune_finetuning.json")
    candidates = [(row["candidate"].replace("lr", "learning rate"), percent(row["alone"]["pruned"]),
                   percent(row["alone"]["full"])) for row in tried["rows"]]  # fmt: skip
    return "\n\n".join([
        grid(("settings", *heads, "all heads %", "all heads − identity head, points"), rows),
        f"{one.config.train.model}, images of {data.image_size}×{data.image_size} pixels, {data.sizes.train:,} "
        f"training and {data.sizes.test:,} test images of {data.name}. "
        f"{made_with(one.device, one.versions['torch'], commits)} ({link('pretrained_run')}, {link('anytime_runs')}).",
        f"The candidates for the longer runs, compared on {tried['rows'][0]['judged_by']:,} training images that were "
        f"held out, {tried['rows'][0]['epochs']} epochs, one seed:",
        grid(("candidate", "one head %", "all heads %"), candidates), tried["origin"],
    ])  # fmt: skip


def _accuracies(group: Sequence[Result]) -> list[str]:
    heads = [[100 * run.test.heads[i].accuracy for run in group] for i in range(len(group[0].test.heads))]
    full = [100 * run.test.full.accuracy for run in group]
    gain = as_text(statistics.fmean(full) - statistics.fmean(heads[0]), "+.2f")
    return [*map(figure, heads), figure(full), gain]
