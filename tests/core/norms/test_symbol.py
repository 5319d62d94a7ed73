from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lipcert.core.norms.float_engine import norm_at_most_float
from lipcert.core.norms.symbol import GramSymbol, Symbol, symbol_of

shapes = st.tuples(
    st.lists(st.integers(2, 3), max_size=2), st.integers(1, 2), st.integers(1, 4), st.integers(1, 4)
)
QUARTERS = [(1, 0), (0, 1), (-1, 0), (0, -1)]  # powers of i


def random_kernel(lengths, groups, outputs, inputs, seed):
    shape = (int(np.prod(lengths, dtype=int)), groups, outputs, inputs)
    kernel = np.random.default_rng(seed).standard_normal(shape)
    return np.ldexp(kernel, -np.frexp(np.abs(kernel).max())[1])


def powers_at(symbol, turns):
    """exp(iπ/2·Σ_a j_a·turns_a), exact in float64."""
    quarters = [QUARTERS[int(e @ turns) % 4] for e in symbol.exponents]
    return np.array([[complex(*quarter) for quarter in quarters]])


def exact_symbol(kernel, lengths, turns):
    """P at quarter turns: its real and imaginary parts as rational numbers, group by group."""
    parts = []
    for j, taps in zip(itertools.product(*map(range, lengths)), kernel, strict=True):
        quarter = QUARTERS[int(np.dot(j, turns)) % 4]
        exact = np.vectorize(Fraction, otypes=[object])(taps)
        parts.append([exact * part for part in quarter])
    return sum(real for real, _ in parts), sum(imaginary for _, imaginary in parts)


@given(shapes, st.tuples(st.integers(0, 3), st.integers(0, 3)), st.integers(0, 10**6))
def test_gram_matrices_are_within_their_error(shape, quarters, seed):
    lengths, groups, outputs, inputs = shape
    kernel = random_kernel(lengths, groups, outputs, inputs, seed)
    turns = np.array(quarters[: len(lengths)], dtype=np.int64)
    symbol = GramSymbol.of(Symbol(kernel, tuple(lengths)))
    computed = symbol.matrices(powers_at(symbol, turns))
    real, imaginary = exact_symbol(kernel, lengths, turns)
    if outputs > inputs:
        real, imaginary = real.swapaxes(1, 2), imaginary.swapaxes(1, 2)
    for H, X, Y in zip(computed, real, imaginary, strict=True):
        even, odd = X @ X.T + Y @ Y.T, Y @ X.T - X @ Y.T
        pairs = [(H.real, even), (H.imag, odd)]
        apart = [Fraction(a) - b for A, B in pairs for a, b in zip(A.flat, B.flat, strict=True)]
        assert sum(each**2 for each in apart) <= symbol.error**2
        assert np.trace(even) <= symbol.square
    assert symbol.error <= 1e-12 * symbol.square


def by_coefficients(kernel, lengths):
    return GramSymbol.of(Symbol(kernel, lengths))


@pytest.mark.parametrize("form", [Symbol, by_coefficients])
@given(shapes, st.integers(0, 10**6), st.floats(0.0, 6.28))
def test_norms_at_frequencies(form, shape, seed, angle):
    lengths, groups, outputs, inputs = shape
    kernel = random_kernel(lengths, groups, outputs, inputs, seed)
    symbol = form(kernel, tuple(lengths))
    angles = angle * np.arange(1, 1 + len(lengths))
    powers = np.exp(1j * (symbol.exponents @ angles))[None]
    shifts = np.array(list(itertools.product(*map(range, lengths)))).reshape(len(kernel), -1)
    matrices = np.tensordot(np.exp(1j * (shifts @ angles)), kernel, 1)
    norms = np.linalg.norm(matrices, 2, axis=(1, 2))
    for norm in norms:
        above = symbol.at_most(
            powers, Fraction(norm) * (1 + Fraction(1, 10**8)), norm_at_most_float
        )
        below = symbol.at_most(
            powers, Fraction(norm) * (1 - Fraction(1, 10**6)), norm_at_most_float
        )
        assert (above >= (norms <= norm)).all()
        assert not below[norms >= norm].any()
    assert symbol.at_most(powers, Fraction(10) ** 400, norm_at_most_float).all()
    assert not symbol.at_most(powers, Fraction(-1), norm_at_most_float).any()


@pytest.mark.parametrize(
    ("lengths", "sides", "points", "quicker"),
    [((3, 3), (64, 64), 5000, True), ((3, 3), (64, 64), 5, False), ((31, 31), (1, 1), 500, False)],
)
def test_the_quicker_form(lengths, sides, points, quicker):
    kernel = np.full((int(np.prod(lengths)), 1, *sides), 0.5)
    assert isinstance(symbol_of(kernel, lengths, points), GramSymbol) is quicker
