import numpy as np
import pytest
from hypothesis import given

from lipcert.core.norms.convolution import Convolution
from lipcert.core.norms.explicit import explicit_at_most, strips_of
from lipcert.core.norms.float_engine import norm_at_most_float
from lipcert.core.norms.integer_engine import norm_at_most_exact
from lipcert.core.window_kinds import Window

from .convolutions import applied, convolutions, window_of


@given(convolutions())
def test_the_matrix_is_the_convolution(conv):
    channels = conv.kernel.shape[1] * conv.groups
    x = np.random.default_rng(1).standard_normal((channels, *conv.size))
    assert np.allclose(conv.matrix() @ x.ravel(), applied(conv, x).ravel(), atol=1e-12)


@given(convolutions())
def test_overlap_is_the_largest_column_of_the_window_matrix(conv):
    ones = Convolution(np.ones((1, 1, *conv.kernel.shape[2:])), conv.size, conv.window)
    assert conv.overlap() == max(int(ones.matrix().sum(axis=0).max()), 1)


@given(convolutions())
def test_claims_about_convolutions(conv):
    norm = float(np.linalg.norm(conv.matrix(), 2))
    for check in (norm_at_most_float, norm_at_most_exact):
        assert explicit_at_most(conv, norm * (1.0 + 1e-8), check)
        assert norm == 0.0 or not explicit_at_most(conv, norm * (1.0 - 1e-6), check)
        assert norm == 0.0 or not conv.by_windows(norm * (1.0 - 1e-6), check)


@given(convolutions())
def test_strips_are_the_matrix_in_another_order(conv):
    """Row by row and column by column the same numbers, but for rows of zeros."""
    whole = conv.matrix()
    stood = np.zeros((0, 0))
    for strips, columns in strips_of(conv):
        block = written(strips, columns)
        right, left = np.zeros((len(stood), columns)), np.zeros((len(block), stood.shape[1]))
        stood = np.block([[stood, right], [left, block]])
    gram, other = stood.T @ stood, whole.T @ whole
    if len(gram) != len(other):
        other = whole @ whole.T
    assert np.allclose(np.linalg.eigvalsh(gram), np.linalg.eigvalsh(other), atol=1e-12)
    assert np.allclose(np.sort(stood[stood != 0.0]), np.sort(whole[whole != 0.0]), atol=0.0)


def written(strips, columns):
    """The matrix of strips, row upon row."""
    rows = [np.zeros((0, columns))]
    for strip in strips:
        rest = columns - strip.rows.shape[1]
        rows += [np.pad(strip.rows, ((0, 0), (at, rest - at))) for at in strip.starts]
    return np.concatenate(rows)


LONG = [
    # channels, size, taps, stride, groups, moved: many panels, and one; along either axis
    ((6, 6), (3, 70), (3, 3), 1, 1, False),
    ((6, 6), (3, 70), (3, 3), 2, 2, False),
    ((6, 3), (70, 3), (2, 3), 1, 1, False),
    ((3, 8), (70, 3), (3, 1), 1, 1, False),
    ((2, 3), (400,), (9,), 1, 1, False),
    ((1, 1), (700,), (2,), 1, 1, False),
    ((2, 2), (1, 150), (1, 3), 1, 1, True),
]


@pytest.mark.parametrize(("channels", "size", "taps", "stride", "groups", "moved"), LONG)
def test_claims_about_strips_of_many_panels(channels, size, taps, stride, groups, moved):
    """Of the norm that the matrix has, to eight digits; circular lines are no band."""
    rng = np.random.default_rng(stride)
    kernel = rng.standard_normal((channels[0], channels[1] // groups, *taps))
    lines, padding = (), tuple(n // 2 for n in taps)
    if moved:
        lines = tuple(np.arange(-p, n + p) % n for n, p in zip(size, padding, strict=True))
        padding = (0,) * len(size)
    seen = tuple(map(len, lines)) if moved else size
    strides = (*(1 for _ in size[1:]), stride)
    window = window_of(taps, seen, strides=strides, before=padding, after=padding)
    conv = Convolution(kernel, size, window, groups, lines)
    norm = float(np.linalg.norm(conv.matrix(), 2))
    assert explicit_at_most(conv, norm * (1.0 + 1e-8), norm_at_most_float)
    below = (1.0 - 1e-8, 0.5, 1e-3)
    assert not any(explicit_at_most(conv, norm * share, norm_at_most_float) for share in below)


@pytest.mark.parametrize("scale", [1e-300, 1e-160, 1e160, 1e300])
def test_claims_about_strips_of_any_magnitude(scale):
    kernel = scale * np.random.default_rng(0).standard_normal((2, 2, 3))
    conv = Convolution(kernel, (200,), window_of((3,), (200,), before=(1,), after=(1,)))
    norm = float(np.linalg.norm(conv.matrix() / scale, 2)) * scale
    assert explicit_at_most(conv, norm * (1.0 + 1e-8), norm_at_most_float)
    assert not explicit_at_most(conv, norm * (1.0 - 1e-8), norm_at_most_float)


def test_strips_of_what_is_no_number():
    conv = Convolution(np.full((1, 1, 2), np.nan), (4,), window_of((2,), (4,)))
    with pytest.raises(ValueError, match="NaN"):
        explicit_at_most(conv, 1.0, norm_at_most_float)


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
    assert not explicit_at_most(conv, 1e9, norm_at_most_exact)
    with pytest.raises(ValueError, match="not written out"):
        conv.matrix()


def test_a_convolution_that_reads_padding_alone_is_zero():
    conv = Convolution(np.ones((1, 1, 1)), (2,), Window((1,), (7,), (1,), (5,), (1,)))
    assert explicit_at_most(conv, 0.0, norm_at_most_exact)
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
