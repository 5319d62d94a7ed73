from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lipcert.core.norms.stacks import norms_at_most_float, square_sums

sizes = st.tuples(st.integers(1, 4), st.integers(1, 9), st.integers(1, 9))


def complex_stack(shape, seed, scale=1.0, rank=None):
    rng = np.random.default_rng(seed)
    k, m, n = shape
    rank = min(m, n) if rank is None else rank

    def gaussian(*sides):
        return rng.standard_normal(sides) + 1j * rng.standard_normal(sides)

    return np.ascontiguousarray(gaussian(k, m, rank) @ gaussian(k, rank, n) * scale)


@given(sizes, st.integers(0, 10**6), st.sampled_from([1.0, 1e-300, 1e300, 2.0**-1040]))
def test_claims(shape, seed, scale):
    stack = complex_stack(shape, seed, scale)
    exact = np.linalg.norm(stack * 2.0**600 if scale < 1e-305 else stack, 2, axis=(1, 2)).max()
    norm = float(exact * 2.0**-600 if scale < 1e-305 else exact)
    slack = 1e-8 if scale >= 1e-300 else 1e-3
    assert norms_at_most_float(stack, norm * (1.0 + slack)).all()
    assert not norms_at_most_float(stack, norm * (1.0 - slack)).all()


@pytest.mark.parametrize("rank", [1, 2])
def test_low_rank(rank):
    stack = complex_stack((3, 40, 30), 5, rank=rank)
    norm = float(np.linalg.norm(stack, 2, axis=(1, 2)).max())
    assert norms_at_most_float(stack, norm * (1.0 + 1e-9)).all()
    assert not norms_at_most_float(stack, norm * (1.0 - 1e-9)).all()


@pytest.mark.parametrize("side", [3, 60])
def test_each_matrix_is_proved_by_itself(side):
    stack = np.zeros((5, side, side), dtype=np.complex128)
    stack[:, range(side), range(side)] = 1.0
    stack[3, 0, 0] = 1j * (1.0 + 1e-7)
    assert norms_at_most_float(stack, 1.0 + 5e-8).tolist() == [True, True, True, False, True]
    assert norms_at_most_float(stack, 1.0 + 1.01e-7).all()
    assert not norms_at_most_float(stack, 1.0 - 1e-7).any()


def test_a_matrix_whose_parts_alone_are_within_the_claim():
    stack = np.array([[[1.0, 1j], [-1j, 1.0]]])  # norm 2, real and imaginary part 1
    assert norms_at_most_float(stack, 2.0 + 1e-9).all()
    assert not norms_at_most_float(stack, 2.0 - 1e-9).any()
    assert not norms_at_most_float(stack.conj(), 1.5).any()


def test_zeros():
    assert norms_at_most_float(np.zeros((2, 3, 4), dtype=np.complex128), 0.0).all()
    assert not norms_at_most_float(np.full((1, 1, 1), 5e-324 + 0j), 0.0).any()
    assert len(norms_at_most_float(np.zeros((0, 3, 4), dtype=np.complex128), 0.0)) == 0


@pytest.mark.parametrize("claim", [-1.0, np.inf, np.nan])
def test_no_claims(claim):
    with pytest.raises(ValueError, match="finite"):
        norms_at_most_float(np.zeros((1, 1, 1), dtype=np.complex128), claim)


def test_numbers_that_are_not_finite():
    with pytest.raises(ValueError, match="finite"):
        norms_at_most_float(np.full((1, 2, 2), np.inf + 0j), 1.0)


@given(sizes, st.integers(0, 10**6), st.sampled_from([1.0, 1e-170, 1e100]))
def test_square_sums_are_above(shape, seed, scale):
    stack = complex_stack(shape, seed, scale)
    for matrix, bound in zip(stack, square_sums(stack), strict=True):
        exact = sum(Fraction(z.real) ** 2 + Fraction(z.imag) ** 2 for z in matrix.ravel().tolist())
        assert (
            exact
            <= Fraction(float(bound))
            <= exact * (1 + Fraction(1, 10**12)) + Fraction(1, 2**980)
        )
