"""Write the figures of results/ into README.md and docs/, between markers, and the paper's status into
results/reproduction.json.

    python docs/publish/fill.py            fill in
    python docs/publish/fill.py --check    only check that pages and results agree

A page marks the place of a table, one of `TABLES`, and has the sentences around it:

    <!-- table: demo -->
    <!-- end -->
"""

import json
import re
import sys
from functools import partial
from pathlib import Path

import benchmark_tables
import chosen_settings
import how_many
import reproduction
import studies
from source import RESULTS, ROOT

MARKED = re.compile(r"<!-- table: (.*?) -->\n.*?<!-- end -->", re.DOTALL)
TABLES = {
    "first screen": studies.first_screen,
    "image alone": studies.image_alone,
    "beside the paper": studies.beside_paper,
    "studies": studies.details,
    "self-distillation": studies.self_distillation,
    "architectures": benchmark_tables.architectures,
    "architectures that are not wrapped": benchmark_tables.not_wrapped,
    "early exit": benchmark_tables.early_exit,
    "tuning": chosen_settings.recipe,
    "tuning self-distillation": chosen_settings.self_distillation,
    "pretrained": chosen_settings.pretrained,
    "demo": benchmark_tables.demo,
    "speed": benchmark_tables.speed,
    "training cost": benchmark_tables.training_cost,
    "fold cost": benchmark_tables.fold_cost,
    "prediction cost": benchmark_tables.prediction_cost,
    "kill and resume": benchmark_tables.kill_and_resume,
    "queue killed": benchmark_tables.queue_killed,
    "errors": benchmark_tables.fold_errors,
    "folds": benchmark_tables.folds,
    "refused": benchmark_tables.refused,
    "reproduction": reproduction.page,
    "what it takes": reproduction.takes,
    "number of heads": how_many.by_number,
    "heads": how_many.heads,
    "choice of transforms": how_many.by_transform,
    "transforms tried": how_many.tried_transforms,
    "predictors of the number of heads": how_many.predictors,
    "tutorial times": benchmark_tables.tutorial_times,
    "files": benchmark_tables.files,
    **{f"tutorial {command}": partial(benchmark_tables.printed, command) for command in benchmark_tables.TUTORIAL},
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
    texts = {page: filled(page) for page in pages}
    texts[RESULTS / "reproduction.json"] = json.dumps(reproduction.content(), indent=1, ensure_ascii=False) + "\n"
    outdated = {path: text for path, text in texts.items() if not path.exists() or path.read_text() != text}
    if "--check" not in sys.argv[1:]:
        for page, text in outdated.items():
            page.write_text(text)
    elif outdated:
        sys.exit(f"{next(iter(outdated)).relative_to(ROOT)} and results/ differ: run python docs/publish/fill.py")
    else:
        print("README.md and docs/ agree with results/")


if __name__ == "__main__":
    main()
