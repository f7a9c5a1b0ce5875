"""Draws the figures of docs/method.md: transforms.svg, passes.svg and invariance.svg.

    python docs/figures/method.py

What is shown is computed by the library: the eight pictures by `d4.apply`, the kernels and scores by `invariance`.
"""

from pathlib import Path

import torch
from torch import Tensor

from transnet import d4
from transnet.invariance import group_mean, invariance_score

HERE = Path(__file__).parent
INK, QUIET, BLUE, ORANGE, GREEN = "#222222", "#5f6368", "#0072B2", "#D55E00", "#009E73"
LETTER = (".####.", ".#....", ".###..", ".#....", ".#....", ".#..##")


def page(width: int, height: int, title: str, parts: list[str]) -> str:
    """A whole SVG on a white card, which is legible on any page."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'font-family="Helvetica, Arial, sans-serif" font-size="15" fill="{INK}">'
    )
    card = f'<rect width="{width}" height="{height}" rx="8" fill="#ffffff"/>'
    return "\n".join([head, f"<title>{title}</title>", card, *parts, "</svg>", ""])


def text(x: float, y: float, words: str, *, anchor: str = "middle", colour: str = INK, bold: bool = False) -> str:
    """Words at a place."""
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" fill="{colour}"{weight}>{words}</text>'


def box(x: float, y: float, width: float, height: float, colour: str, *, stroke: str = "none") -> str:
    """A rectangle."""
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" fill="{colour}" stroke="{stroke}"/>'


def pixels(x: float, y: float, image: Tensor, colour: str, side: int = 12) -> list[str]:
    """A black and white picture."""
    rows, columns = image.shape
    parts = [box(x, y, columns * side, rows * side, "#f1f3f4", stroke="#9aa0a6")]
    parts += [box(x + j * side, y + i * side, side, side, colour) for i, j in image.nonzero().tolist()]
    return parts


def transforms() -> str:
    """The eight elements of D4 on a letter, in the pairs that a left-right flip makes one."""
    letter = torch.tensor([[float(mark == "#") for mark in row] for row in LETTER])
    says = {
        "r0": "as it is", "r1": "a quarter turn", "r2": "a half turn", "r3": "three quarters",
        "m0": "mirrored", "m1": "r1, mirrored", "m2": "r2, mirrored", "m3": "r3, mirrored",
    }  # fmt: skip
    parts = []
    pairs = (("r0", "m0", INK), ("r1", "m3", BLUE), ("r2", "m2", ORANGE), ("r3", "m1", GREEN))
    for i, (turn, mirror, colour) in enumerate(pairs):
        x = 30 + i * 150
        for y, name in ((20, turn), (160, mirror)):
            parts += pixels(x, y, d4.apply(name, letter), colour)
            parts += [text(x + 36, y + 92, name, bold=True), text(x + 36, y + 111, says[name], colour=QUIET)]
    return page(610, 290, "The eight rotations and reflections of a square image", parts)


def passes() -> str:
    """What training and prediction cost, in passes of the backbone."""
    rows = (
        ("base", 1, 1, "the classifier alone"),
        ("PT2, pruned", 2, 1, "two heads while training"),
        ("T2, all heads", 2, 2, "two heads, always"),
        ("PT3, pruned", 3, 1, "three heads while training"),
        ("T3, all heads", 3, 3, "three heads, always"),
    )
    parts = [
        text(330, 30, "a training image", bold=True, anchor="start"),
        text(490, 30, "a new image", bold=True, anchor="start"),
    ]
    for i, (name, train, predict, says) in enumerate(rows):
        y = 48 + i * 44
        parts += [
            text(20, y + 14, name, anchor="start", bold=True),
            text(20, y + 32, says, anchor="start", colour=QUIET),
        ]
        for start, number, colour in ((330, train, BLUE), (490, predict, ORANGE)):
            parts += [box(start + k * 34, y, 28, 28, colour) for k in range(number)]
    parts.append(text(20, 288, "One square is one pass through the backbone.", anchor="start", colour=QUIET))
    return page(610, 304, "Passes of the backbone, by kind of classifier", parts)


def kernel(x: float, y: float, values: Tensor, side: int = 34) -> list[str]:
    """A kernel's numbers on cells that are the bluer the higher and the more orange the lower."""
    parts = []
    for i, row in enumerate(values.tolist()):
        for j, value in enumerate(row):
            strength, colour = min(abs(value) / 2, 1.0), BLUE if value > 0 else ORANGE
            at = x + j * side, y + i * side
            parts.append(box(*at, side, side, "#ffffff"))
            parts.append(box(*at, side, side, colour).replace("/>", f' fill-opacity="{0.6 * strength:.2f}"/>'))
            parts.append(box(*at, side, side, "none", stroke="#9aa0a6"))
            number = text(at[0] + side / 2, at[1] + side / 2 + 4, f"{value:.1f}".replace("-", "−"))
            parts.append(number.replace("<text", '<text font-size="12"'))
    return parts


def invariance() -> str:
    """Two kernels, the nearest ones that rotations leave as they are, and their distance."""
    edge = torch.tensor([[-1.0, 0, 1], [-2, 0, 2], [-1, 0, 1]])
    spot = torch.tensor([[-1.0, 0, -1], [0, 2, 0.8], [-1, 0.4, -1]])
    parts = [text(71, 30, "kernel w", bold=True), text(261, 30, "mean of its turns", bold=True)]
    parts += [text(451, 30, "what is left", bold=True)]
    for y, w in ((46, edge), (176, spot)):
        mean = group_mean(w[None, None])[0, 0]
        score = float(invariance_score(w[None, None]))
        relative = float(invariance_score(w[None, None], measure="relative"))
        parts += [*kernel(20, y, w), *kernel(210, y, mean), *kernel(400, y, w - mean)]
        parts += [text(166, y + 57, "−"), text(356, y + 57, "=")]
        parts += [
            text(515, y + 45, f"IS = {score:.2f}", anchor="start", bold=True),
            text(515, y + 66, f"{relative:.0%} of ‖w‖", anchor="start", colour=QUIET),
        ]
    return page(620, 296, "The invariance score of two kernels under rotations", parts)


def drawings() -> dict[str, str]:
    """The files by name."""
    return {"transforms.svg": transforms(), "passes.svg": passes(), "invariance.svg": invariance()}


if __name__ == "__main__":
    for name, content in drawings().items():
        (HERE / name).write_text(content)
