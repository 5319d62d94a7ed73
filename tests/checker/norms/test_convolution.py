from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lipcert.checker.norms.convolution import Convolution
from lipcert.checker.norms.float_engine import norm_at_most_float
from lipcert.checker.norms.integer_engine import norm_at_most_exact


@st.composite
def convolutions(draw):
    rank = draw(st.integers(1, 3))
    side = 7 if rank == 1 else 4 if rank == 2 else 3

    def numbers(low, high):
        return tuple(draw(st.integers(low, high)) for _ in range(rank))

    groups = draw(st.integers(1, 2))
    shape = (groups * draw(st.integers(1, 2)), draw(st.integers(1, 2)), *numbers(1, 3))
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    kernel = rng.standard_normal(shape)
    try:
        return Convolution(
            kernel,
            numbers(1, side),
            numbers(1, 3),
            numbers(1, 2),
            numbers(0, 3),
            numbers(0, 3),
            groups,
        )
    except ValueError:
        assume(False)


def applied(conv: Convolution, x):
    """The convolution by its definition, one number at a time."""
    outputs, inner = conv.kernel.shape[:2]
    y = np.zeros((outputs, *conv.outputs))
    for place in np.ndindex(*y.shape):
        group = place[0] // (outputs // conv.groups)
        for channel, *taps in np.ndindex(*conv.kernel.shape[1:]):
            at = [
                p * s + t * d - b
                for p, s, t, d, b in zip(
                    place[1:], conv.strides, taps, conv.dilations, conv.before, strict=True
                )
            ]
            if all(0 <= a < n for a, n in zip(at, conv.size, strict=True)):
                entry = x[(group * inner + channel, *at)]
                y[place] += conv.kernel[(place[0], channel, *taps)] * entry
    return y


@settings(max_examples=80, deadline=None)
@given(convolutions())
def test_the_matrix_is_the_convolution(conv):
    channels = conv.kernel.shape[1] * conv.groups
    x = np.random.default_rng(1).standard_normal((channels, *conv.size))
    assert np.allclose(conv.matrix() @ x.ravel(), applied(conv, x).ravel(), atol=1e-12)


@settings(max_examples=80, deadline=None)
@given(convolutions())
def test_overlap_is_the_largest_column_of_the_window_matrix(conv):
    ones = Convolution(
        np.ones((1, 1, *conv.kernel.shape[2:])),
        conv.size,
        conv.strides,
        conv.dilations,
        conv.before,
        conv.after,
    )
    assert conv.overlap() == max(int(ones.matrix().sum(axis=0).max()), 1)


@settings(max_examples=60, deadline=None)
@given(convolutions())
def test_claims_about_convolutions(conv):
    norm = float(np.linalg.norm(conv.matrix(), 2))
    for check in (norm_at_most_float, norm_at_most_exact):
        assert conv.norm_at_most(norm * (1.0 + 1e-8), check)
        assert norm == 0.0 or not conv.norm_at_most(norm * (1.0 - 1e-6), check)


def test_large_convolutions_are_bounded_by_their_windows():
    rng = np.random.default_rng(4)
    kernel = rng.standard_normal((32, 16, 3, 3))
    conv = Convolution(kernel, (56, 56), (1, 1), (1, 1), (1, 1), (1, 1))
    norm = float(np.linalg.norm(kernel.reshape(32, -1), 2))
    assert not conv.is_small
    assert conv.overlap() == 9
    assert conv.norm_at_most(3.0 * norm * (1.0 + 1e-8), norm_at_most_exact)
    assert not conv.norm_at_most(3.0 * norm * (1.0 - 1e-8), norm_at_most_exact)
    with pytest.raises(ValueError, match="not written out"):
        conv.matrix()


def test_a_convolution_that_reads_padding_alone_is_zero():
    conv = Convolution(np.ones((1, 1, 1)), (2,), (7,), (1,), (5,), (0,))
    assert conv.outputs == (1,)
    assert conv.norm_at_most(0.0, norm_at_most_exact)
    assert np.all(conv.matrix() == 0.0)


@pytest.mark.parametrize(
    "change",
    [
        {"size": (0,)},
        {"size": (-3,)},
        {"strides": (0,)},
        {"dilations": (0,)},
        {"before": (-1,)},
        {"after": (2**20,)},
        {"groups": 0},
        {"groups": 2},
        {"size": (2,)},
        {"size": (5, 5)},
        {"kernel": np.ones((3, 1, 3), dtype=np.float32)},
        {"kernel": np.ones((3, 3))},
        {"kernel": np.ones((3, 0, 3))},
    ],
)
def test_impossible_geometries(change):
    sound = {
        "kernel": np.ones((3, 1, 3)),
        "size": (5,),
        "strides": (1,),
        "dilations": (1,),
        "before": (0,),
        "after": (0,),
    }
    Convolution(**sound)
    with pytest.raises(ValueError, match=r"\w"):
        Convolution(**{**sound, **change})
