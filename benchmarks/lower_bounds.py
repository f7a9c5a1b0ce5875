"""Which versions of torch the method works with: its tests, with the interpreter of one environment per version.

    python benchmarks/lower_bounds.py /envs/torch-2.7/bin/python /envs/torch-2.8/bin/python

An environment needs torch, its torchvision, pytest, hypothesis and the other dependencies of the package. The method is
the package without the trainer: the layer of `model.py`. Results of other versions stay in the file.
"""

import argparse
import json
import os
import subprocess
import tempfile
from pathlib import Path
from xml.etree import ElementTree

from environment import environment

ROOT = Path(__file__).parents[1]
PARTS = (
    "d4", "model", "classifier", "head", "inputs", "conventions", "batchnorm", "distillation", "invariance",
    "early_exit", "fold", "paper", "backbones", "transforms",
)  # fmt: skip
VERSIONS = """
import json, platform, timm, torch, torchvision
versions = {package.__name__: package.__version__ for package in (torch, torchvision, timm)}
print(json.dumps({"python": platform.python_version(), **versions}))
"""

TOO_OLD = "training and the commands need torch"  # the error of a test that also trains


def try_version(python, tests):
    """Run the tests with an interpreter, file by file, and return the versions and what became of the tests."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    versions = subprocess.run([python, "-c", VERSIONS], env=environ, check=True, capture_output=True, text=True).stdout
    count, failed = {"passed": 0, "skipped": 0, "of_the_trainer": 0}, []
    for test in tests:
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder) / "report.xml"
            words = [python, "-m", "pytest", "-q", "-m", "not slow", f"--junitxml={report}", test]
            subprocess.run(words, cwd=ROOT, env=environ, check=False, stdout=subprocess.DEVNULL)
            cases = list(ElementTree.parse(report).iter("testcase")) if report.exists() else []
        for case in cases:
            problem = next((found for kind in ("failure", "error") if (found := case.find(kind)) is not None), None)
            if problem is not None and TOO_OLD in "".join(problem.itertext()):
                count["of_the_trainer"] += 1
            elif problem is not None:
                failed.append(f"{test}::{case.get('name')}")
            else:
                count["passed" if case.find("skipped") is None else "skipped"] += 1
        if not cases:
            failed.append(f"{test}: no result")
    return {"versions": json.loads(versions), **count, "failed": failed}


def release(row):
    return tuple(int(part) for part in row["versions"]["torch"].partition("+")[0].split("."))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "lower_bounds.json")
    parser.add_argument("--parts", default=",".join(PARTS), help="files of the method whose tests run")
    parser.add_argument("python", nargs="+", help="an environment's interpreter")
    args = parser.parse_args()
    tests = [f"tests/test_{part}.py" for part in args.parts.split(",")]
    content = json.loads(args.out.read_text()) if args.out.exists() else {"rows": []}
    for python in args.python:
        row = {**environment("cpu"), "tests": tests, **try_version(python, tests)}
        rows = [other for other in content["rows"] if release(other) != release(row)]
        rows = sorted([*rows, row], key=release)
        works = [release(one) for one in rows if not one["failed"] and one["passed"]]
        broken = [release(one) for one in rows if one["failed"] or not one["passed"]]
        lowest = min((one for one in works if one > max(broken, default=())), default=None)
        content = {"lowest": lowest and ".".join(map(str, lowest)), "rows": rows}
        args.out.write_text(json.dumps(content, indent=1) + "\n")
        print(row["versions"]["torch"], row["passed"], "passed, failed:", *row["failed"] or ["none"])


if __name__ == "__main__":
    main()
