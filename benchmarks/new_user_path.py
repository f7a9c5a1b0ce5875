"""How long the tutorial takes for a new user: a folder of images and five commands, each in a process of its own.

    OMP_NUM_THREADS=1 python benchmarks/new_user_path.py --out results/new_user_path.json

The commands are read from docs/tutorial.md, and their output goes into the tutorial. One thread, because the network is
too small for more.
"""

import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measuring import options, write

ROOT = Path(__file__).parents[1]


def blocks(kind):
    """The tutorial's code of one kind."""
    return re.findall(rf"^```{kind}\n(.*?)^```", (ROOT / "docs" / "tutorial.md").read_text(), re.DOTALL | re.MULTILINE)


def commands():
    return [line for block in blocks("bash") for line in block.splitlines()]


def walk(folder):
    """Follow the tutorial in an empty folder; a row per command, and the number of images."""
    own = {"PYTHONPATH": str(ROOT / "src"), "TRANSNET_CACHE": str(folder / "cache"), "COLUMNS": "80"}
    environ = {**os.environ, **own}
    for code in blocks("python"):
        subprocess.run([sys.executable, "-c", code], cwd=folder, env=environ, check=True)
    rows = []
    for command in commands():
        words = shlex.split(command)
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", *words], cwd=folder, env=environ, text=True, check=False,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        seconds = time.monotonic() - began
        rows.append({"command": command, "seconds": seconds, "status": done.returncode, "printed": done.stdout})
    return rows, len(list((folder / "photos").rglob("*.png")))


def main():
    args = options(__doc__).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows, images = walk(Path(folder))
    for row in rows:
        print(f"{row['seconds']:6.1f} s  {row['command']}")
        if row["status"]:
            sys.exit(row["printed"])
    write(args.out, "cpu", {"images": images, "seconds": sum(row["seconds"] for row in rows), "rows": rows})


if __name__ == "__main__":
    main()
