"""Both engines against exact rational arithmetic, singular values and each other."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from lipcert.core.norms import ENGINES as NAMED
from lipcert.core.norms import float_engine
from lipcert.core.norms.claim import MAX_SHORT_SIDE, Definite, room_for
from lipcert.core.norms.float_engine import definite_float, norm_at_most_float
from lipcert.core.norms.integer_engine import definite_exact, norm_at_most_exact

ENGINES = pytest.mark.parametrize("check", [norm_at_most_float, norm_at_most_exact])


def norm_is_at_most(matrix, claim: float) -> bool:
    """The truth, by elimination of claim²·I − WᵀW in rational numbers (positive semidefinite?)."""
    W = [[Fraction(float(value)) for value in row] for row in matrix]
    n = matrix.shape[1]
    rest = [[-sum(row[i] * row[j] for row in W) for j in range(n)] for i in range(n)]
    for i in range(n):
        rest[i][i] += Fraction(claim) ** 2
    for k in range(n):
        pivot = rest[k][k]
        if pivot < 0 or (pivot == 0 and any(rest[k][j] for j in range(k, n))):
            return False
        for i in range(k + 1, n) if pivot else ():
            factor = rest[i][k] / pivot
            for j in range(k, n):
                rest[i][j] -= factor * rest[k][j]
    return True


SMALL = hnp.arrays(
    np.float64,
    hnp.array_shapes(min_dims=2, max_dims=2, max_side=4),
    elements=st.one_of(
        st.sampled_from([0.0, 1.0, -1.0, 0.5, 3.0]),
        st.floats(-1e3, 1e3),
        st.floats(allow_nan=False, allow_infinity=False),
    ),
)


@given(SMALL, st.sampled_from([-1e-3, -1e-6, -1e-9, -1e-12, -1e-15, 0.0, 1e-12, 1e-8, 1e-6]))
def test_proved_claims_are_true(matrix, slack):
    with np.errstate(all="ignore"):
        scale = float(np.abs(matrix).max()) or 1.0
        guess = float(np.linalg.norm(matrix / scale, 2)) * scale * (1.0 + slack)
    if not math.isfinite(guess):
        return
    proved = [norm_at_most_float(matrix, guess), norm_at_most_exact(matrix, guess)]
    with pytest.MonkeyPatch.context() as patch:  # in parts of the rows
        patch.setattr(float_engine, "_PART", 3)
        proved.append(norm_at_most_float(matrix, guess))
    truth = norm_is_at_most(matrix, guess)
    assert truth or not any(proved)
    if slack >= 1e-8 and scale > 1e-300:
        assert truth
        assert all(proved)


def matrices():
    rng = np.random.default_rng(7)
    orthogonal = np.linalg.qr(rng.standard_normal((60, 60)))[0]
    yield "tall", rng.standard_normal((150, 40))
    yield "wide", rng.standard_normal((40, 150))
    yield "row", rng.standard_normal((1, 300))
    yield "column", rng.standard_normal((300, 1))
    yield "one", np.array([[-3.0]])
    yield "orthogonal", orthogonal
    yield "permutation", np.eye(50)[rng.permutation(50)]
    yield "ones", np.ones((70, 90))
    yield "rank one", np.outer(rng.standard_normal(64), rng.standard_normal(32))
    yield "graded", rng.standard_normal((40, 40)) * 10.0 ** -np.arange(40.0)
    yield "float32", rng.standard_normal((64, 64)).astype(np.float32).astype(np.float64)
    yield "thousands of rows", rng.standard_normal((5000, 12))
    yield "scales apart", np.diag([1e150, 1.0, 1e-150, 5e-324])


@ENGINES
@pytest.mark.parametrize("matrix", [pytest.param(matrix, id=name) for name, matrix in matrices()])
@pytest.mark.parametrize("power", [0, 1, -30, 480, -480])
def test_between_what_is_true_and_what_is_not(check, matrix, power):
    norm = float(np.linalg.norm(matrix, 2))
    scaled, norm = np.ldexp(matrix, power), math.ldexp(norm, power)
    assert check(scaled, norm * (1.0 + 1e-8))
    assert check(scaled, norm * 1e5)
    assert not check(scaled, norm * (1.0 - 1e-6))
    assert not check(scaled, norm * (1.0 - 1e-12))
    assert not check(scaled, norm * 0.01)
    assert check(-scaled.T, norm * (1.0 + 1e-8))


@ENGINES
def test_nothing_has_norm_zero(check):
    for shape in ((3, 4), (0, 3), (3, 0), (0, 0), (1, 1)):
        assert all(check(np.zeros(shape), claim) for claim in (0.0, 5e-324))
    assert not check(np.array([[5e-324]]), 0.0)
    assert float_engine.unexplained(np.zeros((3, 3))) is None  # what a claim leaves of the identity


@ENGINES
def test_smallest_and_largest_numbers(check):
    tiny = np.full((8, 8), 5e-324)
    assert check(tiny, 9 * 5e-324)
    assert not check(tiny, 7 * 5e-324)
    huge = np.full((8, 8), 1e307)
    assert check(huge, 8.0001e307)
    assert not check(huge, 7.9999e307)
    assert check(np.full((2, 2), 1.4e-45), 2.9e-45)  # the smallest float32: squares underflow


@pytest.mark.nightly
def test_a_thousand_columns():
    rng = np.random.default_rng(3)
    matrix = rng.standard_normal((1024, 1024)) / 32.0
    norm = float(np.linalg.norm(matrix, 2))
    assert norm_at_most_float(matrix, norm * (1.0 + 1e-9))
    assert not norm_at_most_float(matrix, norm * (1.0 - 1e-6))
    assert norm_at_most_exact(matrix, norm * (1.0 + 1e-8))
    assert not norm_at_most_exact(matrix, norm * (1.0 - 1e-6))


@ENGINES
@pytest.mark.parametrize(
    "factor",
    [
        np.zeros_like,
        np.transpose,
        lambda L: L * 1.001,
        lambda L: L * np.nan,
        lambda L: np.where(L == 0.0, 0.0, np.inf),
        lambda L: L + 1e-4,
        lambda L: L[::-1],
        lambda L: L * 1e300,
    ],
)
def test_a_wrong_factor_proves_nothing(check, factor, monkeypatch):
    matrix = np.random.default_rng(5).standard_normal((30, 30))
    norm = float(np.linalg.norm(matrix, 2))
    right = np.linalg.cholesky
    assert check(matrix, norm * (1.0 + 1e-6))
    monkeypatch.setattr(np.linalg, "cholesky", lambda B: factor(right(B)))
    assert not check(matrix, norm * (1.0 + 1e-6))
    monkeypatch.setattr(np.linalg, "cholesky", lambda B: factor(right(B + np.eye(len(B)))))
    assert not check(matrix, norm * (1.0 - 1e-6))


@ENGINES
def test_what_is_no_claim_about_a_matrix(check):
    one = np.ones((2, 2))
    for claim in (-1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="not a bound"):
            check(one, claim)
    for bad in (np.nan, np.inf, -np.inf):
        with pytest.raises(ValueError, match="not defined"):
            check(np.array([[1.0, bad]]), 5.0)
    for array in (np.ones(3), np.ones((2, 2, 2)), np.ones((2, 2), dtype=np.float32)):
        with pytest.raises(ValueError, match="float64 matrix"):
            check(array, 5.0)
    side = MAX_SHORT_SIDE + 1
    with pytest.raises(ValueError, match="beyond"):
        check(np.broadcast_to(1.0, (side, side)), 5.0)


@pytest.mark.parametrize("seed", range(4))
def test_matrices_that_are_mostly_zero(seed):
    """Blocks by chance, in a band or anywhere, whole panels empty: neither more nor less."""
    rng = np.random.default_rng(seed)
    matrix = np.zeros((700, 600))
    for _ in range(rng.integers(1, 12)):
        row, column = rng.integers(0, 650), rng.integers(0, 550)
        row = column if seed % 2 else row
        matrix[row : row + 50, column : column + 50] += rng.standard_normal((50, 50))
    norm = float(np.linalg.norm(matrix, 2))
    for which in (matrix, matrix.T, matrix[::-1]):
        assert norm_at_most_float(which, norm * (1.0 + 1e-8))
        assert not norm_at_most_float(which, norm * (1.0 - 1e-8))


def test_the_routes_recognise_the_arithmetic_by_its_function() -> None:
    """`explicit`, `symbol` and `torus` do in float64 what only the float engine admits."""
    assert NAMED["float"].norms is norm_at_most_float
    assert NAMED["exact"].norms is norm_at_most_exact


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
