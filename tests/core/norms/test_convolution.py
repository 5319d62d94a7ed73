from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from lipcert.core.norms.convolution import Convolution
from lipcert.core.norms.float_engine import norm_at_most_float
from lipcert.core.norms.integer_engine import norm_at_most_exact
from lipcert.core.program import Window

from .convolutions import applied, convolutions, window_of


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
        conv.window,
    )
    assert conv.overlap() == max(int(ones.matrix().sum(axis=0).max()), 1)


@settings(max_examples=60, deadline=None)
@given(convolutions())
def test_claims_about_convolutions(conv):
    norm = float(np.linalg.norm(conv.matrix(), 2))
    for check in (norm_at_most_float, norm_at_most_exact):
        assert conv.by_matrix(norm * (1.0 + 1e-8), check)
        assert norm == 0.0 or not conv.by_matrix(norm * (1.0 - 1e-6), check)
        assert norm == 0.0 or not conv.by_windows(norm * (1.0 - 1e-6), check)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("groups", [1, 2])
def test_claims_about_bands_of_many_panels(stride, groups):
    """Rows and columns in another order, and a Gram matrix of a band, have the same norm."""
    rng = np.random.default_rng(stride)
    kernel = rng.standard_normal((6, 6 // groups, 3, 3))
    window = window_of((3, 3), (3, 70), strides=(1, stride), before=(1, 1), after=(1, 1))
    conv = Convolution(kernel, (3, 70), window, groups)
    norm = float(np.linalg.norm(conv.matrix(), 2))
    for block in conv.bands():
        rows, columns = block.nonzero()
        assert np.abs(columns / block.shape[1] - rows / block.shape[0]).max() < 0.1
    assert conv.by_matrix(norm * (1.0 + 1e-8), norm_at_most_float)
    assert not conv.by_matrix(norm * (1.0 - 1e-8), norm_at_most_float)


def test_large_convolutions_are_bounded_by_their_windows():
    rng = np.random.default_rng(4)
    kernel = rng.standard_normal((32, 16, 3, 3))
    window = window_of((3, 3), (56, 56), before=(1, 1), after=(1, 1))
    conv = Convolution(kernel, (56, 56), window)
    norm = float(np.linalg.norm(kernel.reshape(32, -1), 2))
    assert not conv.is_small
    assert conv.overlap() == 9
    assert conv.by_windows(3.0 * norm * (1.0 + 1e-8), norm_at_most_exact)
    assert not conv.by_windows(3.0 * norm * (1.0 - 1e-8), norm_at_most_exact)
    assert not conv.by_matrix(1e9, norm_at_most_exact)
    with pytest.raises(ValueError, match="not written out"):
        conv.matrix()


def test_a_convolution_that_reads_padding_alone_is_zero():
    conv = Convolution(np.ones((1, 1, 1)), (2,), Window((1,), (7,), (1,), (5,), (1,)))
    assert conv.by_matrix(0.0, norm_at_most_exact)
    assert np.all(conv.matrix() == 0.0)


def test_outputs_beyond_the_input_read_nothing():
    conv = Convolution(np.ones((1, 1, 2)), (2,), Window((2,), (1,), (1,), (-1,), (3,)))
    assert np.array_equal(conv.matrix(), [[0.0, 1.0], [0.0, 0.0], [0.0, 0.0]])


def test_moved_entries_are_read_where_they_come_from():
    line = np.array([1, 0, -1, 1])
    conv = Convolution(np.array([[[1.0, 10.0]]]), (2,), window_of((2,), (4,)), moved=(line,))
    assert np.array_equal(conv.matrix(), [[10.0, 1.0], [1.0, 0.0], [0.0, 10.0]])
    assert conv.overlap() == 2


def test_a_window_that_reads_an_entry_twice_is_not_written_out():
    line = np.array([0, 0])
    conv = Convolution(np.ones((1, 1, 2)), (1,), window_of((2,), (2,)), moved=(line,))
    assert conv.overlap() == 2
    assert not conv.is_small
    assert conv.by_windows(2.0 * (1.0 + 1e-8), norm_at_most_exact)
    assert not conv.by_windows(2.0 * (1.0 - 1e-8), norm_at_most_exact)


@pytest.mark.parametrize(
    "change",
    [
        {"size": (0,)},
        {"size": (-3,)},
        {"window": Window((3,), (0,), (1,), (0,), (3,))},
        {"window": Window((3,), (1,), (0,), (0,), (3,))},
        {"window": Window((3,), (1,), (1,), (0,), (0,))},
        {"window": Window((3,), (1,), (1,), (-(2**20),), (3,))},
        {"window": Window((3,), (1,), (1,), (0,), (2**16,))} | {"kernel": np.ones((3, 1, 100))},
        {"window": Window((2,), (1,), (1,), (0,), (3,))},
        {"groups": 0},
        {"groups": 2},
        {"size": (5, 5)},
        {"moved": (np.array([5]),)},
        {"moved": (np.array([0]), np.array([0]))},
        {"moved": (np.zeros(0, dtype=np.int64),)},
        {"kernel": np.ones((3, 1, 3), dtype=np.float32)},
        {"kernel": np.ones((3, 3))},
        {"kernel": np.ones((3, 0, 3))},
    ],
)
def test_impossible_geometries(change):
    sound = {"kernel": np.ones((3, 1, 3)), "size": (5,), "window": window_of((3,), (5,))}
    Convolution(**sound)
    with pytest.raises(ValueError, match=r"\w"):
        Convolution(**{**sound, **change})
