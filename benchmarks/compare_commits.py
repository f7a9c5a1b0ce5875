"""Does a change make training slower? Two checkouts train the same runs in turn, on a CPU.

    git worktree add before COMMIT
    python benchmarks/compare_commits.py --before before --out speed.json

Figures are image passes per second of whole epochs, and the ratio of their medians (this checkout over the other): the
digits with two heads, resnet8-small on 32×32 colour images, and ConvNeXt-Atto on JPEG files of photographs.
"""

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

from cpu_speed import ROOT, call, make_images, train_command
from measuring import options, write

CASES = {"digits": 40, "resnet8-small-32": 3, "convnext-atto-128": 3}  # epochs


def passes_per_second(tree: Path, case: str, data: Path, epochs: int) -> float:
    """The median over all epochs but the first of one run."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "run")
        words = [sys.executable, "-m", "transnet", "train", "digits", "--device", "cpu", "--evaluate-every", 0]
        words += ["--epochs", epochs, "--out", out]
        if case != "digits":
            words = train_command(data, case, out, transforms="r0,r1", epochs=epochs)
        call(words, {"PYTHONPATH": str(tree / "src")}, cwd=tree)
        rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()[1:]]
    return 2 * statistics.median(row["images_per_second"] for row in rows)


def main() -> None:
    parser = options(__doc__, repeats=5)
    parser.add_argument("--before", type=Path, required=True, help="a checkout of the commit to compare with")
    args: argparse.Namespace = parser.parse_args()
    found: dict[str, dict[str, object]] = {}
    for case, epochs in CASES.items():
        speeds: dict[str, list[float]] = {"before": [], "now": []}
        with tempfile.TemporaryDirectory() as folder:
            data = (
                Path("digits") if case == "digits" else make_images(case, 640 if "128" in case else 7680, Path(folder))
            )
            for _ in range(args.repeats):
                for name, tree in (("before", args.before.resolve()), ("now", ROOT)):
                    speeds[name].append(passes_per_second(tree, case, data, epochs))
        ratio = statistics.median(speeds["now"]) / statistics.median(speeds["before"])
        found[case] = {**speeds, "ratio": ratio}
        print(f"{case}: {ratio:.3f} of the speed before", flush=True)
    write(args.out, "cpu", {"cases": found})


if __name__ == "__main__":
    main()
