"""Summary of the fine-tuning study: intervals, verdicts by Holm's method, and what is missing.

finetune_study.py --summary writes it. Only complete rounds count: seeds with which every arm and data set of a part has
run. The interval resamples seeds and test images independently, with the same images for all seeds and both arms, per
direction of Grocery; directions are then averaged. A comparison that Holm's method finds different from zero is "a
above" or "b above" even if its interval is within ±1 point. A difference over at most three seeds gets no verdict.
"""

from collections import defaultdict

import numpy as np

from finetune_inputs import IMAGES

VIEWS = ("one_pass", "flip", "two_views")
COMPARISONS = (  # data, a, b, passes
    ("grocery144", "t2-distilled", "base-rot", 1),
    ("grocery144", "t2-distilled", "base-rot", 2),
    ("cifar100-2500", "t2-distilled", "base", 1),
    ("cifar100-2500", "t2-distilled", "base", 2),
)
LEVEL, MATTERS, DRAWS = 0.05, 1.0, 10_000


def bootstrap(directions, draws=DRAWS):
    """Return means of resampled differences; each direction is an array (seeds, images)."""
    rng, means = np.random.default_rng(0), np.zeros(draws)
    for differences in directions:
        seeds, images = differences.shape
        for i in range(draws):
            of_images = differences[rng.integers(seeds, size=seeds)].mean(0)
            means[i] += of_images[rng.integers(images, size=images)].mean() / len(directions)
    return means


def p_value(means):
    """Return the two-sided p-value of a difference of zero."""
    tail = min((means <= 0).sum(), (means >= 0).sum())
    return min(1.0, 2 * (tail + 1) / (len(means) + 1))


def holm(p_values, comparisons):
    """Return which hypotheses Holm's method rejects at 5 %, of a family of `comparisons`."""
    rejected = [False] * len(p_values)
    for rank, i in enumerate(np.argsort(p_values, kind="stable")):
        if p_values[i] > LEVEL / (comparisons - rank):
            break
        rejected[i] = True
    return rejected


def verdict(row, rejected):
    if row["n"] <= 3:
        return None
    if rejected:
        return "a above" if row["mean"] > 0 else "b above"
    return "no difference that matters" if row["low"] >= -MATTERS and row["high"] <= MATTERS else "cannot tell"


def two_pass_view(arm):
    """Flip TTA is the baseline's best use of two passes; other arms use r0 and r1 or both heads."""
    return "flip" if arm.removesuffix("-x2") == "base" else "two_views"


class Runs:
    """The finished runs of complete rounds, with whether they classify each test image correctly."""

    def __init__(self, out, rows, parts):
        self.out, self.rows, self.cache = out, {}, {}
        every = {(row["data"], row["arm"], row["seed"]): row for row in rows}
        for part in parts.values():
            for i in range(max(n for _, _, n, _ in part)):
                keys = [(data, arm, 100 + i) for data, arm, n, _ in part if i < n]
                if all(key in every for key in keys):
                    self.rows |= {key: every[key] for key in keys}

    def seeds(self, data, *arms):
        found = [{seed for d, a, seed in self.rows if (d, a) == (data, arm)} for arm in arms]
        return sorted(set.intersection(*found))

    def correct(self, data, arm, seed, view):
        key = data, arm, seed, view
        if key not in self.cache:
            with np.load(self.out / f"predictions/{data}-{arm}-{seed}.npz") as kept:
                self.cache[key] = (kept[f"{view}_class"] == kept["label"]).astype(np.float32)
        return self.cache[key]

    def compare(self, data, a, b, passes):
        """Return a row with the difference a − b in points and its interval, and the p-value."""
        view = {arm: two_pass_view(arm) if passes == 2 else "one_pass" for arm in (a, b)}
        directions = defaultdict(list)
        for seed in self.seeds(data, a, b):
            direction = seed % 2 if data.startswith("grocery") else 0
            one, other = (self.correct(data, arm, seed, view[arm]) for arm in (a, b))
            directions[direction].append(100 * (one - other))
        stacked = [np.stack(seeds) for seeds in directions.values()]
        means = bootstrap(stacked)
        low, high = np.percentile(means, [2.5, 97.5])
        row = {"data": data, "a": a, "b": b, "passes": passes, "mean": np.mean([part.mean() for part in stacked])}
        row |= {"low": low, "high": high}
        row = {key: round(float(value), 4) if isinstance(value, np.floating) else value for key, value in row.items()}
        return row | {"n": sum(map(len, stacked))}, p_value(means)

    def arms(self):
        """Return one row per data set, direction and arm, with means and standard errors over seeds."""
        groups = defaultdict(list)
        for (data, arm, seed), row in sorted(self.rows.items()):
            direction = ("train", "test")[seed % 2] if data.startswith("grocery") else None
            groups[data, direction, arm].append(row)
        table = []
        for (data, direction, arm), rows in groups.items():
            line = {"data": data, "direction": direction, "arm": arm, "n": len(rows)}
            sources = {view: [row[view] for row in rows] for view in VIEWS}
            sources |= {f"nll_{view}": [row["nll"][view] for row in rows] for view in VIEWS}
            if rows[0]["upright_bn"]:
                sources |= {f"upright_bn_{view}": [row["upright_bn"][view] for row in rows] for view in VIEWS}
            for name, values in sources.items():
                error = float(np.std(values, ddof=1) / len(values) ** 0.5) if len(values) > 1 else None
                line[name] = {"mean": round(float(np.mean(values)), 4), "se": error and round(error, 4)}
            table.append(line)
        return table


def missing(rows, parts):
    """Return the planned runs without a line, with their hours of one core, estimated from the finished runs."""
    done, rate = {(row["data"], row["arm"], row["seed"]) for row in rows}, defaultdict(list)
    for row in rows:
        for key in ((row["data"].split("-")[0], row["arm"].removesuffix("-x2")), row["data"].split("-")[0], None):
            rate[key].append(row["seconds"] / row["steps"])
    found = []
    for data, arm, n, epochs in [entry for part in parts.values() for entry in part]:
        if seeds := [seed for seed in range(100, 100 + n) if (data, arm, seed) not in done]:
            name = data.split("-")[0]
            known = next((rate[k] for k in ((name, arm.removesuffix("-x2")), name, None) if rate[k]), None)
            steps = IMAGES[data] * epochs // 32
            hours = round(len(seeds) * steps * float(np.mean(known)) / 3600, 2) if known else None
            found.append({"data": data, "arm": arm, "seeds": seeds, "hours": hours})
    return found


def summarize(out, rows, parts):
    """Return comparisons with verdicts, all other differences without, a table of the arms, and what is missing."""
    runs = Runs(out, rows, parts)
    named = [runs.compare(*entry) for entry in COMPARISONS if runs.seeds(*entry[:3])]
    rejected = holm([p for _, p in named], len(COMPARISONS))
    comparisons = [row | {"verdict": verdict(row, no)} for (row, _), no in zip(named, rejected, strict=True)]
    exploratory = []
    for data in IMAGES:
        arms = sorted({arm for d, arm, _ in runs.rows if d == data})
        for suffix in ("", "-x2"):
            base, heads = f"base{suffix}", f"t2-distilled{suffix}"
            same = [arm for arm in arms if arm.endswith("-x2") == bool(suffix)]
            pairs = [(arm, base) for arm in same if arm != base] + [
                (heads, arm) for arm in same if arm not in (base, heads)
            ]
            for a, b in pairs:
                entries = [(data, a, b, passes) for passes in (1, 2)]
                exploratory += [
                    runs.compare(*entry)[0] for entry in entries if entry not in COMPARISONS and runs.seeds(*entry[:3])
                ]
    return {
        "comparisons": comparisons,
        "exploratory": exploratory,
        "arms": runs.arms(),
        "missing": missing(rows, parts),
    }
