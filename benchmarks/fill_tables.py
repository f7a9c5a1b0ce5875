"""Write the figures of results/ into README.md, between its markers; ``--check`` only says whether they agree.

    python benchmarks/fill_tables.py
    python benchmarks/fill_tables.py --check

Nobody types a result: a table that cannot be made from a file is not made.
"""

import json
import re
import sys
from pathlib import Path

from study_tables import accuracy

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"


def read(name):
    path = RESULTS / name
    return json.loads(path.read_text()) if path.exists() else None


def table(header, rows):
    lines = ["| " + " | ".join(header) + " |", "|" + "|".join(" --- " for _ in header) + "|"]
    return "\n".join(lines + ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows])


def figure(values, form):
    mean = sum(values) / len(values)
    if len(values) == 1:
        return f"{form.format(mean)} (one seed)"
    error = (sum((v - mean) ** 2 for v in values) / (len(values) - 1) / len(values)) ** 0.5
    return f"{form.format(mean)} ± {form.format(error)}"


def equal_passes(rows):
    """What TransNet's pruned classifiers gain over base trained for as many passes, with Welch's interval."""
    from transnet.measure.metrics import difference

    said = []
    for m in (2, 3):
        pruned = [100 * row["pruned"] for row in rows if row["kind"] == f"T{m}"]
        base = [100 * row["pruned"] for row in rows if row["kind"] == f"base, {m}× epochs"]
        gain = difference(pruned, base)
        said.append(f"PT{m} {gain.mean:+.2f} points (95 % interval {gain.low:+.2f} to {gain.high:+.2f})")
    return "Against base of equal training passes: " + ", ".join(said) + "."


def demo():
    found = read("demo.json")
    if not found:
        return "Not measured yet: `transnet demo --json results/demo.json`."
    rows = []
    for kind in dict.fromkeys(row["kind"] for row in found["rows"]):
        runs = [row for row in found["rows"] if row["kind"] == kind]
        m = runs[0]["predict_passes"]
        ratio = figure([run["generalization"] for run in runs], "{:.1f}")
        pruned = figure([100 * run["pruned"] for run in runs], "{:.2f}")
        rows.append([kind if m == 1 else f"PT{m}, pruned", pruned, ratio, f"{runs[0]['train_passes']:,}", 1])
        if m > 1:
            full = figure([100 * run["full"] for run in runs], "{:.2f}")
            rows.append([f"T{m}, all heads", full, "", f"{runs[0]['train_passes']:,}", m])
    n = len({row["seed"] for row in found["rows"]})
    caption = (
        f"scikit-learn's digits, {found['train_images']} training and {found['test_images']} test images, "
        f"n = {n} seeds, mean ± standard error. "
        f"{found['device']}, torch {found['versions']['torch']}, commit {found['commit']} "
        "([results/demo.json](results/demo.json)). " + equal_passes(found["rows"])
    )
    head = ["", "accuracy %", "test / train loss", "training passes", "passes an image"]
    return table(head, rows) + "\n\n" + caption


def results():
    parts = []
    if found := read("loss_overhead_cpu.json"):
        rows = [[r["m"], f"{r['time_ratio']:.3f}", f"{r['memory_ratio']:.3f}"] for r in found["rows"]]
        parts.append(
            "What `net.loss` and backward cost over a loop written by hand, ResNet-18, "
            f"{found['device']} ([results/loss_overhead_cpu.json](results/loss_overhead_cpu.json)):\n\n"
            + table(["heads", "time, ratio", "memory, ratio"], rows)
        )
    if found := read("fold_latency_cpu.json"):
        rows = [[row["model"], row["transform"], row["batch"], f"{row['ratio']:.3f}"] for row in found.get("rows", [])]
        if rows:
            parts.append(
                "Latency of a network with its transform folded in, over the plain one, "
                f"{found['device']} ([results/fold_latency_cpu.json](results/fold_latency_cpu.json)):\n\n"
                + table(["model", "transform", "batch", "ratio"], rows)
            )
    if found := read("kill_resume.json"):
        parts.append(
            f"Runs killed with SIGKILL at a random moment and resumed: {found['same']} of {found['killed']} ended with "
            "the same weights, bit for bit, as the undisturbed run "
            "([results/kill_resume.json](results/kill_resume.json))."
        )
    if found := read("pruned_latency_cpu.json"):
        rows = [
            [row["model"], f"{row['side']}×{row['side']}", row["batch"], row["clock"], f"{row['pruned_ratio']:.3f}",
             f"{row['again_ratio']:.3f}", f"{row['full_ratio']:.2f}"]
            for row in found["rows"]
        ]  # fmt: skip
        head = ["model", "images", "batch", "clock", "pruned / base", "a copy of base / base", "both heads / base"]
        parts.append(
            f"What prediction costs, {found['device']}, on a machine that did other work too; the copy of base shows "
            "how far equal models differ ([results/pruned_latency_cpu.json](results/pruned_latency_cpu.json)):\n\n"
            + table(head, rows)
        )
    return "\n\n".join([accuracy(RESULTS), *parts])


TABLES = {"demo": demo, "results": results}


def main():
    readme = ROOT / "README.md"
    before = readme.read_text()
    after = before
    for name, make in TABLES.items():
        if not re.search(rf"<!-- table: {name} -->\n.*?<!-- end -->", after, re.DOTALL):
            sys.exit(f"README.md has no markers for the table {name}")
        start, end = f"<!-- table: {name} -->\n", "<!-- end -->"
        head, rest = after.split(start, 1)
        after = f"{head}{start}\n{make()}\n\n{end}{rest.split(end, 1)[1]}"
    if "--check" in sys.argv[1:]:
        if after != before:
            sys.exit("README.md and results/ differ: run python benchmarks/fill_tables.py")
        print("README.md agrees with results/")
    else:
        readme.write_text(after)


if __name__ == "__main__":
    main()
