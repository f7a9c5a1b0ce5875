"""Write the figures of results/ into README.md and docs/, between markers.

    python docs/publish/fill.py            fill in
    python docs/publish/fill.py --check    only check that pages and results agree

A page marks the place of a table, one of `TABLES`:

    <!-- table: demo -->
    <!-- end -->
"""

import re
import sys
from pathlib import Path

import benchmark_tables
import chosen_settings
import early_exit
import studies
from source import ROOT

MARKED = re.compile(r"<!-- table: (.*?) -->\n.*?<!-- end -->", re.DOTALL)
TABLES = {
    "first screen": studies.first_screen,
    "in brief": lambda: f"{studies.brief()}\n\n{benchmark_tables.prediction_in_brief()}",
    "headline": studies.headline,
    "overview": studies.overview,
    "studies": studies.details,
    "self-distillation": studies.self_distillation,
    "early exit": early_exit.table,
    "tuning": chosen_settings.recipe,
    "tuning self-distillation": chosen_settings.self_distillation,
    "pretrained": chosen_settings.pretrained,
    "demo": benchmark_tables.demo,
    "speed": benchmark_tables.speed,
    "costs": benchmark_tables.costs,
    "errors": benchmark_tables.fold_errors,
    "folds": benchmark_tables.folds,
    "refused": benchmark_tables.refused,
    "new user": benchmark_tables.new_user,
    "tutorial times": benchmark_tables.tutorial_times,
    "files": benchmark_tables.files,
    **{
        f"tutorial {name}": lambda i=i: benchmark_tables.printed(i)
        for i, name in enumerate(("train", "evaluate", "prune", "onnx", "predict"))
    },
}


def filled(page: Path) -> str:
    """The page's text with every marked table as results/ has it now."""

    def fill(marked: re.Match[str]) -> str:
        name = marked[1]
        if name not in TABLES:
            sys.exit(f"{page}: unknown table {name!r}; known are {', '.join(TABLES)}")
        content = TABLES[name]()
        if page.name != "README.md":  # the site that is made of docs/ has no results/ to link to
            content = re.sub(r"\[(results/.*?)\]\(\1\)", r"`\1`", content)
        return f"<!-- table: {name} -->\n\n{content}\n\n<!-- end -->"

    return MARKED.sub(fill, page.read_text())


def main() -> None:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    outdated = {page: text for page in pages if (text := filled(page)) != page.read_text()}
    if "--check" in sys.argv[1:]:
        if outdated:
            sys.exit(f"{next(iter(outdated)).relative_to(ROOT)} and results/ differ: run python docs/publish/fill.py")
        print("README.md and docs/ agree with results/")
        return
    for page, text in outdated.items():
        page.write_text(text)


if __name__ == "__main__":
    main()
