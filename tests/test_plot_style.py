"""The figures of a study are written in every format, and can be used inside a page."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from transnet.report.plot_style import Figure, escape

FIGURES = ("ensembles", "generalization", "invariance_layers", "invariance_last_layer")


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_written_in_every_format(small_study: Path, name: str) -> None:
    path = small_study / "figures" / f"digits-fast-{name}"
    assert path.with_suffix(".pdf").read_bytes().startswith(b"%PDF")
    assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    svg = path.with_suffix(".svg").read_text()
    ElementTree.fromstring(svg)
    page = Figure("figure_3", path.with_suffix(".svg"), []).svg
    assert page.startswith("<svg")
    assert "#000000" not in page
    assert "viewBox" in page.split(">", 1)[0]


def test_figures_on_one_page_share_no_ids(small_study: Path) -> None:
    seen: set[str] = set()
    for name in FIGURES:
        root = ElementTree.parse(small_study / "figures" / f"digits-fast-{name}.svg").getroot()
        used = {value for item in root.iter() for key, value in item.attrib.items() if "clip-path" in key}
        assert not used & seen
        seen |= used


def test_special_characters_in_names_are_escaped() -> None:
    assert escape("d_\udcff") == "d_?"  # a folder's name that is not UTF-8
    assert escape("a$b") == r"a\$b"
