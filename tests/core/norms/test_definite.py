"""λ_min(M) ≥ c, against matrices with known eigenvalues."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lipcert.core.norms.claim import Definite, room_for
from lipcert.core.norms.float_engine import definite_float
from lipcert.core.norms.integer_engine import definite_exact

BOTH = pytest.mark.parametrize("proof", [definite_float, definite_exact])


def with_eigenvalues(values: np.ndarray, seed: int) -> np.ndarray:
    """A symmetric matrix, whose eigenvalues are these up to about 1e-15."""
    rng = np.random.default_rng(seed)
    q, _ = np.linalg.qr(rng.standard_normal((len(values), len(values))))
    matrix = (q * values) @ q.T
    return 0.5 * (matrix + matrix.T)


@BOTH
@given(st.integers(1, 40), st.integers(0, 1000), st.floats(0.0, 1e-3), st.floats(-1e-6, 1e-6))
def test_a_threshold_is_found(proof: Definite, n: int, seed: int, least: float, gap: float) -> None:
    """Nothing above the lowest eigenvalue is proved, and everything with some room below it."""
    values = np.linspace(0.3, 0.45, n)
    values[0] = least + gap
    matrix = with_eigenvalues(values, seed)
    proved = proof(matrix, Fraction(least))
    if gap < -1e-14:
        assert not proved
    if gap > float(room_for(n)) + 1e-14:
        assert proved


@BOTH
def test_integer_matrices(proof: Definite) -> None:
    """[[2, −1], [−1, 2]]/8 has the lowest eigenvalue 1/8; singular matrices have no room."""
    matrix = np.array([[2.0, -1.0], [-1.0, 2.0]]) / 8
    assert proof(matrix, Fraction(1, 8) - Fraction(1, 1 << 36))
    assert not proof(matrix, Fraction(1, 8) + Fraction(1, 1 << 36))
    assert not proof(np.array([[0.25, 0.25], [0.25, 0.25]]), Fraction(0))


@BOTH
@pytest.mark.parametrize(
    "matrix",
    [
        np.array([[0.5, 0.1], [0.0, 0.5]]),
        np.array([[0.5, np.nan], [np.nan, 0.5]]),
        np.eye(2),
        np.array([[np.inf]]),
        -0.5 * np.eye(3),
        np.zeros((3, 3)),
    ],
)
def test_what_proves_nothing(proof: Definite, matrix: np.ndarray) -> None:
    """Asymmetric, too large, not finite, not definite."""
    assert not proof(matrix, Fraction(0))


@BOTH
def test_bands(proof: Definite) -> None:
    """A long banded matrix: panels of rows skip columns."""
    n = 700
    matrix = 0.4 * np.eye(n) + 0.2 * (np.eye(n, k=1) + np.eye(n, k=-1))
    lowest = 0.4 - 0.4 * np.cos(np.pi / (n + 1))
    assert proof(matrix, Fraction(lowest - 1e-8))
    assert not proof(matrix, Fraction(lowest + 1e-8))
