"""Estimates against singular values, in the cases that trouble iterations."""

import numpy as np
import pytest

from lipcert.core.norms.convolution import Convolution
from lipcert.core.norms.explicit import strips_of
from lipcert.search.eigenvalues import (
    eigenvalues,
    estimated_squares,
    largest_eigenvalue,
    spectral_norm,
    strips_norm,
)
from tests.core.norms.convolutions import window_of

SHAPES = [(1, 7), (7, 1), (5, 5), (40, 90), (400, 350), (350, 700), (330, 1100)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("exponent", [-1040, 0, 1015])
def test_norms_of_every_magnitude(shape, exponent):
    matrix = np.random.default_rng(1).standard_normal(shape)
    scaled = np.ldexp(matrix, exponent)
    truth = np.linalg.norm(np.ldexp(scaled, -exponent), 2)
    assert np.ldexp(spectral_norm(scaled), -exponent) == pytest.approx(truth, rel=1e-8, abs=0.0)


@pytest.mark.parametrize("dense", [True, False])
def test_complex_and_sparse_matrices(dense):
    rng = np.random.default_rng(2)
    matrix = rng.standard_normal((500, 380)) + 1j * rng.standard_normal((500, 380))
    if not dense:
        matrix[rng.random(matrix.shape) < 0.95] = 0.0
    truth = np.linalg.norm(matrix, 2)
    assert spectral_norm(matrix) == pytest.approx(truth, rel=1e-8)
    assert spectral_norm(matrix.real) == pytest.approx(np.linalg.norm(matrix.real, 2), rel=1e-8)


@pytest.mark.parametrize("size", [1, 2, 30, 500])
def test_operators_of_every_spectrum(size):
    """Many equal values at the top, a gap, nearly the same values, zero."""
    line = np.linspace(0.0, 1.0, size)
    for values in (np.ones(size), np.minimum(line, 0.9), np.maximum(line, 0.3), 0.0 * line):
        found = largest_eigenvalue(lambda vector, values=values: values * vector, size)
        assert found == pytest.approx(values.max(), rel=1e-8, abs=0.0)


def test_a_crowded_spectrum():
    """Of a long path: the top values differ by a part in 10^5."""
    found = largest_eigenvalue(lambda v: 2.0 * v - np.roll(v, 1) - np.roll(v, -1), 1000)
    assert 4.0 * (1.0 - 1e-5) < found < 4.0 * (1.0 + 1e-12)


@pytest.mark.parametrize("exponent", [-500, 0, 500])
@pytest.mark.parametrize("groups", [1, 2])
def test_norms_of_strips(exponent, groups):
    kernel = np.random.default_rng(5).standard_normal((4, 6 // groups, 3, 2))
    window = window_of((3, 2), (30, 7), strides=(1, 2), before=(1, 0), after=(0, 1))
    conv = Convolution(np.ldexp(kernel, exponent), (30, 7), window, groups)
    found = max(strips_norm(*block) for block in strips_of(conv))
    truth = np.linalg.norm(np.ldexp(conv.matrix(), -exponent), 2)
    assert np.ldexp(found, -exponent) == pytest.approx(truth, rel=1e-9)
    assert strips_norm((), 3) == 0.0


def test_zero_and_not_finite():
    assert spectral_norm(np.zeros((3, 4))) == 0.0
    assert spectral_norm(np.full((2, 2), np.inf)) == np.inf


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
@pytest.mark.parametrize("shape", [(5, 3, 4), (6, 64, 64), (3, 60, 200), (3, 200, 60)])
def test_stacks(dtype, shape):
    """Wide, tall and clustered spectra; never above the truth by more than rounding."""
    rng = np.random.default_rng(4)
    stack = (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype)
    truth = np.linalg.norm(stack.astype(np.complex128), 2, axis=(1, 2)) ** 2
    found = estimated_squares(stack, 1e-3)
    assert (found <= truth * (1.0 + 1e-5)).all()
    assert (found >= truth * (1.0 - 1e-2)).all()


def test_a_krylov_space_that_is_exhausted():
    vector = np.random.default_rng(5).standard_normal((2, 40))
    stack = vector[:, :, None] * vector[:, None, :] + 0j
    truth = (vector**2).sum(axis=1) ** 2
    np.testing.assert_allclose(estimated_squares(stack, 1e-6), truth, rtol=1e-9)
    np.testing.assert_array_equal(estimated_squares(0.0 * stack, 1e-6), 0.0)


def test_what_overflowed_is_infinite():
    broken = np.array([[np.inf, np.nan], [np.nan, 1.0]])
    assert (eigenvalues(broken) == np.inf).all()
    assert eigenvalues(np.stack([np.eye(2), broken])).shape == (2, 2)
    matrix = np.full((400, 400), 1e305)
    with np.errstate(all="ignore"):
        assert largest_eigenvalue(lambda vector: matrix @ (1e5 * vector), 400) == np.inf
