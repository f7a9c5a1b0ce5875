"""The dihedral group D4: the eight rotations and reflections of a square image.

Elements, in the paper's notation (section 3.3):

    r0 r1 r2 r3    r^i: rotate counter-clockwise by 0, 90, 180, 270 degrees
    m0 m1 m2 m3    m∘r^i: rotate by r^i first, then reflect left-right

On a tensor, r is ``torch.rot90(x, 1, (-2, -1))`` and m the flip of the last dimension. Every law of the group
follows from r⁴ = m² = 1 and r∘m = m∘r⁻¹:

    r^a ∘ r^b   = r^(a+b)           (m∘r^a) ∘ r^b     = m∘r^(a+b)
    r^a ∘ m∘r^b = m∘r^(b-a)         (m∘r^a) ∘ (m∘r^b) = r^(b-a)
    inverse: r^i ↦ r^(-i); every m∘r^i is its own inverse

On an image, m0 flips left-right, m2 flips upside down, and m1 and m3 reflect along a diagonal. r1 r3 m1 m3 swap
height and width; they act on any tensor, but an image must be square to keep its shape under them.

    >>> compose("r1", "m0"), inverse("r1"), generate("r1")
    ('m3', 'r3', ('r0', 'r1', 'r2', 'r3'))
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from transnet.errors import ModelError

NAMES = ("r0", "r1", "r2", "r3", "m0", "m1", "m2", "m3")


def parse(transforms: str | Iterable[str]) -> tuple[str, ...]:
    """Read element names from ``"r0,r1"`` or from a sequence of names; order and repetitions are kept."""
    if isinstance(transforms, str):
        transforms = [name.strip() for name in transforms.split(",") if name.strip()]
    names = tuple(transforms) if isinstance(transforms, Iterable) else (transforms,)
    if not names:
        raise ModelError(f"none given; choose from {' '.join(NAMES)}, for example 'r0,r1'", field="transforms")
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"transforms: {name!r} is not a name; known are {' '.join(NAMES)}")
        if name not in NAMES:
            raise ModelError(f"unknown {name!r}; known are {' '.join(NAMES)}", field="transforms")
    return names


@torch.fx.wrap  # fx records this as one call, because it cannot record a condition
def apply(name: str, x: Tensor) -> Tensor:
    """Transform the last two dimensions of any tensor and keep the memory format; r0 returns ``x`` itself."""
    reflected, turns = _element(name)
    if x.ndim < 2:
        raise ModelError(f"{name} acts on the last two dimensions; the tensor has shape {tuple(x.shape)}")
    y = torch.rot90(x, turns, (-2, -1)) if turns else x
    return keep_format(y.flip(-1) if reflected else y, x)


def keep_format(y: Tensor, x: Tensor) -> Tensor:
    """Return ``y`` in the memory format of ``x``: channels-last if ``x`` is a channels-last batch."""
    if x.ndim != 4 or x.is_contiguous():
        return y
    try:
        channels_last = x.is_contiguous(memory_format=torch.channels_last)
        return y.contiguous(memory_format=torch.channels_last) if channels_last else y
    except RuntimeError:  # vmap supports neither
        return y


def inverse(name: str) -> str:
    """Return the element that undoes ``name``."""
    reflected, turns = _element(name)
    return name if reflected else f"r{-turns % 4}"


def compose(outer: str, inner: str) -> str:
    """Return the element outer∘inner, in which ``inner`` acts first."""
    (outer_reflected, a), (inner_reflected, b) = _element(outer), _element(inner)
    turns = b - a if inner_reflected else a + b
    return f"{'m' if outer_reflected != inner_reflected else 'r'}{turns % 4}"


def generate(transforms: str | Iterable[str]) -> tuple[str, ...]:
    """Return the smallest group that contains ``transforms``, in the order of ``NAMES``."""
    generators = parse(transforms)
    group = {"r0"}
    while len(grown := group | {compose(g, t) for g in group for t in generators}) > len(group):
        group = grown
    return tuple(name for name in NAMES if name in group)


def swaps_sides(name: str) -> bool:
    """Return whether the element swaps height and width (r1 r3 m1 m3), and so needs square images."""
    return _element(name)[1] % 2 == 1


def _element(name: str) -> tuple[bool, int]:  # whether it reflects, and by how many quarter turns it rotates first
    if name not in NAMES:
        raise ModelError(f"unknown transform {name!r}; known are {' '.join(NAMES)}")
    return name[0] == "m", int(name[1])
