"""The tests of the paper's equations, lemmas, propositions and examples: which of them pass?

    python benchmarks/paper_tests.py --out results/paper_tests.json

A test with several cases passes if all of them do.
"""

import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from pathlib import Path

from measuring import options, write

ROOT = Path(__file__).parents[1]


def main():
    args = options(__doc__).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        command = [sys.executable, "-m", "pytest", "tests/test_paper.py", "-q", f"--junitxml={report}"]
        subprocess.run(command, cwd=ROOT, check=False, stdout=sys.stderr)
        cases = ET.parse(report).getroot().iter("testcase")
    passed: dict[str, bool] = {}
    for case in cases:
        name = case.attrib["name"].partition("[")[0]
        good = not any(child.tag in ("failure", "error", "skipped") for child in case)
        passed[name] = passed.get(name, True) and good
    write(args.out, "cpu", {"tests": passed})


if __name__ == "__main__":
    main()
