"""Write the figures of results/ into README.md and docs/, between markers; ``--check`` only says whether they agree.

    python benchmarks/fill_tables.py
    python benchmarks/fill_tables.py --check

A page says where a table belongs:

    <!-- table: demo -->
    <!-- end -->

with a name of `result_tables.TABLES`.
"""

import re
import sys

from result_tables import ROOT, TABLES

MARKED = re.compile(r"<!-- table: (.*?) -->\n.*?<!-- end -->", re.DOTALL)


def filled(page):
    """The page's text with every marked table as results/ has it now."""

    def again(marked):
        name = marked[1]
        if name not in TABLES:
            sys.exit(f"{page}: unknown table {name!r}; known are {', '.join(TABLES)}")
        content = TABLES[name]()
        if page.name != "README.md":  # a site of docs/ has no results/ to link to
            content = re.sub(r"\[(results/.*?)\]\(\1\)", r"`\1`", content).replace("(#results)", "(results.md)")
        return f"<!-- table: {name} -->\n\n{content}\n\n<!-- end -->"

    return MARKED.sub(again, page.read_text())


def main():
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    used = [name for page in pages for name in MARKED.findall(page.read_text())]
    if unused := sorted(set(TABLES) - set(used)):
        sys.exit(f"no page has markers for the table {unused[0]}")
    differ = [page for page in pages if filled(page) != page.read_text()]
    if "--check" in sys.argv[1:]:
        if differ:
            sys.exit(f"{differ[0].relative_to(ROOT)} and results/ differ: run python benchmarks/fill_tables.py")
        print("README.md and docs/ agree with results/")
    for page in differ:
        page.write_text(filled(page))


if __name__ == "__main__":
    main()
