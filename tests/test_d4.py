"""The laws of D4, and what its elements do to tensors of every kind."""

import doctest

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from transnet import d4

elements = st.sampled_from(d4.NAMES)
dtypes = st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.uint8, torch.int64, torch.bool])
shapes = st.lists(st.integers(1, 4), min_size=0, max_size=3).map(tuple)


def tensor(shape, dtype):
    return (torch.rand(shape) * 200).to(dtype)


@given(elements, elements, shapes, st.integers(1, 5), st.integers(1, 5), dtypes)
def test_composition_is_application_of_the_inner_then_the_outer(outer, inner, batch, h, w, dtype):
    x = tensor((*batch, h, w), dtype)
    assert torch.equal(d4.apply(outer, d4.apply(inner, x)), d4.apply(d4.compose(outer, inner), x))


@given(elements, shapes, st.integers(1, 5), dtypes)
def test_inverse_undoes(name, batch, side, dtype):
    x = tensor((*batch, side, side), dtype)
    assert torch.equal(d4.apply(d4.inverse(name), d4.apply(name, x)), x)
    assert d4.compose(name, d4.inverse(name)) == d4.compose(d4.inverse(name), name) == "r0"


@given(elements, elements, elements)
def test_composition_is_associative(a, b, c):
    assert d4.compose(d4.compose(a, b), c) == d4.compose(a, d4.compose(b, c))


@given(st.lists(elements, min_size=1, max_size=3))
def test_generate_gives_the_smallest_group(names):
    group = d4.generate(names)
    assert set(names) <= set(group)
    assert all(d4.compose(a, b) in group for a in group for b in group)
    assert all(d4.inverse(a) in group for a in group)
    assert 8 % len(group) == 0
    # Smallest: every element is a product of the given ones.
    products, last = {"r0"}, set()
    while products != last:
        last, products = products, products | {d4.compose(n, p) for n in names for p in products}
    assert set(group) == products


def test_the_eight_elements_are_distinct():
    x = torch.arange(9).view(3, 3)
    assert len({tuple(d4.apply(name, x).flatten().tolist()) for name in d4.NAMES}) == 8


def test_rotation_is_counter_clockwise_and_m_reflects_after_rotating():
    x = torch.tensor([[1, 2], [3, 4]])
    assert d4.apply("r1", x).tolist() == [[2, 4], [1, 3]] == np.rot90(x.numpy()).tolist()
    assert d4.apply("m0", x).tolist() == [[2, 1], [4, 3]]
    assert d4.apply("m1", x).tolist() == [[4, 2], [3, 1]]
    assert d4.apply("m2", x).tolist() == [[3, 4], [1, 2]]
    assert torch.equal(d4.apply("m3", x), x.T)


@pytest.mark.parametrize("name", d4.NAMES)
def test_channels_last_is_kept_and_changes_no_value(name):
    x = torch.randn(2, 3, 5, 5)
    y = d4.apply(name, x.to(memory_format=torch.channels_last))
    assert y.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(y, d4.apply(name, x))


@pytest.mark.parametrize("name", d4.NAMES)
def test_gradients_pass_through(name):
    x = torch.randn(1, 1, 3, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda v: d4.apply(name, v), (x,))


def test_only_odd_quarter_turns_swap_the_sides():
    swapping = [name for name in d4.NAMES if d4.apply(name, torch.zeros(2, 3)).shape == (3, 2)]
    assert swapping == ["r1", "r3", "m1", "m3"] == [name for name in d4.NAMES if d4.swaps_sides(name)]


def test_with_flips_each_natural_pair_is_one_task():
    """With left-right flips in the data, t and t∘m0 are one task: r0~m0, r1~m3, r2~m2, r3~m1."""
    assert [d4.compose(t, "m0") for t in ("r0", "r1", "r2", "r3")] == ["m0", "m3", "m2", "m1"]


def test_parse_reads_both_spellings_and_keeps_repetitions():
    assert d4.parse("r0, r1,") == ("r0", "r1") == d4.parse(["r0", "r1"])
    assert d4.parse("r0,r0") == ("r0", "r0")


@pytest.mark.parametrize("given", ["r5", "r0,R1", ["r0", "x"]])
def test_errors_for_unknown_names_list_the_known_ones(given):
    with pytest.raises(ValueError, match=r"unknown '(r5|R1|x)'; known are r0 r1 r2 r3 m0 m1 m2 m3"):
        d4.parse(given)


@pytest.mark.parametrize("given", ["", (), " , "])
def test_an_empty_set_is_an_error(given):
    with pytest.raises(ValueError, match="none given"):
        d4.parse(given)


def test_other_types_and_shapes_are_errors():
    with pytest.raises(TypeError, match="3 is not a name"):
        d4.parse([3])
    with pytest.raises(ValueError, match="unknown transform 'q'"):
        d4.apply("q", torch.zeros(2, 2))
    with pytest.raises(ValueError, match="last two dimensions"):
        d4.apply("r1", torch.zeros(2))


def test_the_examples_in_the_docstring_hold():
    assert doctest.testmod(d4).failed == 0
