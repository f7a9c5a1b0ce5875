"""How long a new user's path takes: the tutorial's folder of images and five commands, each in a process of its own.

    OMP_NUM_THREADS=1 python benchmarks/new_user_path.py --out results/new_user_path.json

The commands are read from docs/tutorial.md, so that what is timed is what is written there. What each printed is kept
and goes into the tutorial. One thread: the network is too small for more.
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

TUTORIAL = Path(__file__).parents[1] / "docs" / "tutorial.md"
SOURCE = Path(__file__).parents[1] / "src"


def blocks(kind):
    """The tutorial's code of one kind."""
    return re.findall(rf"^```{kind}\n(.*?)^```", TUTORIAL.read_text(), re.DOTALL | re.MULTILINE)


def commands():
    return [line for block in blocks("bash") for line in block.splitlines()]


def walk(folder):
    """Follow the tutorial in an empty folder; a row a command, and the number of images it trained on."""
    own = {"PYTHONPATH": str(SOURCE), "TRANSNET_CACHE": str(folder / "cache"), "COLUMNS": "80"}
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
