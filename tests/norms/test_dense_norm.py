"""Norms of matrices against singular values, exact rational arithmetic and Arb."""

import math
from fractions import Fraction

import flint
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from lipcert.norms.dense import dense_norm
from lipcert.training.projection.eigenvalues import (
    estimate_largest,
    largest_eigenvalue,
    prove_below,
)
from lipcert.norms.linear_map import DenseMap
from lipcert.norms.operator_norm import Tier, operator_norm
from lipcert.operand import Operand
from tests.norms.operators import is_at_least_the_norm, is_semidefinite, true_norm


@pytest.mark.parametrize(
    "shape", [(1, 7), (7, 1), (2, 2), (10, 784), (300, 40), (33, 33), (129, 150), (400, 400)]
)
@pytest.mark.parametrize("tier", list(Tier))
def test_is_tight(shape: tuple[int, int], tier: Tier) -> None:
    matrix = np.random.default_rng(1).standard_normal(shape)
    bound = operator_norm(DenseMap(Operand(matrix)), tier)
    truth = true_norm(matrix)
    assert truth * (1 - 1e-13) <= bound.value.value <= truth * (1 + 1e-6)


@given(
    arrays(
        np.float64,
        array_shapes(min_dims=2, max_dims=2, max_side=5),
        elements=st.floats(-1e3, 1e3, allow_subnormal=True),
    ),
    st.integers(-1000, 900),
)
@settings(max_examples=150, deadline=None)
def test_is_sound_in_exact_arithmetic(matrix: np.ndarray, exponent: int) -> None:
    scaled = np.ldexp(matrix, exponent)
    bound = operator_norm(DenseMap(Operand(scaled)), Tier.FAST)
    assert is_at_least_the_norm(bound.value.value, scaled)


@pytest.mark.parametrize("exponent", [-1060, -1022, -600, 0, 500, 1010])
def test_scales_with_powers_of_two(exponent: int) -> None:
    matrix = np.array([[3.0, 1.0], [-1.0, 2.0]])
    value = dense_norm(np.ldexp(matrix, exponent)[None]).value
    assert is_at_least_the_norm(value, np.ldexp(matrix, exponent))
    assert value <= math.ldexp(true_norm(matrix) * (1 + 1e-6), exponent) + 2.0**-1073


def test_overflow_is_an_absent_bound_with_a_reason() -> None:
    bound = operator_norm(DenseMap(Operand(np.full((3, 3), 1.7e308))), Tier.FAST)
    assert not bound.is_finite
    assert "range" in bound.reason


def test_zero_and_rank_one() -> None:
    zero = operator_norm(DenseMap(Operand(np.zeros((3, 4)))), Tier.FAST)
    assert zero.value.value == 0.0
    rank_one = np.outer(np.arange(1.0, 5.0), np.ones(6))
    bound = operator_norm(DenseMap(Operand(rank_one)), Tier.FAST).value.value
    assert is_at_least_the_norm(bound, rank_one)
    assert bound <= math.sqrt(180.0) * (1 + 1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_against_arb(seed: int) -> None:
    """A ball of 200 bits around each eigenvalue of W Wᵀ."""
    matrix = np.random.default_rng(seed).standard_normal((12, 17))
    bound = dense_norm(matrix[None]).value
    precision = flint.ctx.prec
    flint.ctx.prec = 200
    try:
        exact = flint.arb_mat(matrix.tolist())
        gram = flint.acb_mat(exact * exact.transpose())
        largest = max((value.real for value in gram.eig()), key=lambda ball: float(ball.mid()))
        assert flint.arb(bound) ** 2 >= largest
        assert float((flint.arb(bound) / largest.sqrt()).mid()) <= 1 + 1e-6
    finally:
        flint.ctx.prec = precision


def test_a_vector_rounded_to_nearest_would_be_too_small() -> None:
    """The naive norm falls below the exact one about every second time; ours never does."""
    rng = np.random.default_rng(5)
    naive_failures = 0
    for _ in range(50):
        row = rng.standard_normal((1, 400))
        exact = sum(Fraction(float(entry)) ** 2 for entry in row[0])
        bound = operator_norm(DenseMap(Operand(row)), Tier.FAST).value.value
        assert Fraction(bound) ** 2 >= exact
        naive_failures += Fraction(float(np.linalg.norm(row))) ** 2 < exact
    assert naive_failures > 5


def test_a_shift_that_cholesky_accepts_is_not_yet_a_bound() -> None:
    """At the edge a factorisation succeeds although the shift is too small; the excess covers."""
    rng = np.random.default_rng(7)
    accepted_but_too_small = 0
    for _ in range(60):
        factor = rng.integers(-8, 9, size=(6, 6)).astype(float)
        gram = factor @ factor.T  # exact integers
        largest = float(np.linalg.eigvalsh(gram)[-1])
        for step in range(-6, 7):
            shift = largest * (1.0 + step * 2.0**-52)
            proved, excess = prove_below(gram[None], np.array([shift]))
            if proved[0]:
                exact = [[Fraction(int(entry)) for entry in row] for row in gram]
                assert _dominates(Fraction(shift) + Fraction(excess.value), exact)
                accepted_but_too_small += not _dominates(Fraction(shift), exact)
    assert accepted_but_too_small > 0


def test_a_shift_below_the_eigenvalue_is_refused() -> None:
    rng = np.random.default_rng(3)
    for size in (1, 2, 9, 40, 200):
        factor = rng.standard_normal((size, size))
        gram = factor @ factor.T
        largest = float(np.linalg.eigvalsh(gram)[-1])
        proved, _ = prove_below(gram[None], np.array([largest * (1 - 1e-9)]))
        assert not proved[0]
        proved, excess = prove_below(gram[None], np.array([largest * (1 + 1e-9)]))
        assert proved[0]
        assert excess.value <= 1e-9 * largest


def test_power_iteration_is_no_bound() -> None:
    matrix = np.random.default_rng(2).standard_normal((200, 200))
    vector = np.ones(200)
    for _ in range(50):
        vector = matrix.T @ (matrix @ vector)
        vector /= np.linalg.norm(vector)
    power = float(np.linalg.norm(matrix @ vector))
    assert power < true_norm(matrix) * (1 - 1e-6) < dense_norm(matrix[None]).value


def test_estimates_do_not_decide_soundness(monkeypatch: pytest.MonkeyPatch) -> None:
    """An estimator that returns nonsense only makes the bound looser."""
    matrix = np.random.default_rng(2).standard_normal((50, 60))
    truth = true_norm(matrix)
    for nonsense in (0.0, 1e-3, 0.99, 1.2, 50.0):
        monkeypatch.setattr(
            "lipcert.training.projection.eigenvalues.estimate_largest",
            lambda matrices, accuracy, factor=nonsense: (
                factor * np.linalg.eigvalsh(matrices)[:, -1]
            ),
        )
        assert dense_norm(matrix[None]).value >= truth


def test_lanczos_estimates_large_matrices() -> None:
    rng = np.random.default_rng(0)
    stack = rng.standard_normal((3, 60, 60)) + 1j * rng.standard_normal((3, 60, 60))
    hermitian = stack @ stack.conj().swapaxes(1, 2)
    truth = np.linalg.eigvalsh(hermitian)[:, -1]
    assert np.allclose(estimate_largest(hermitian, 1e-8), truth, rtol=1e-5)


def test_estimates_survive_an_exhausted_krylov_space() -> None:
    """Matrices of low rank and with null rows, larger than the direct method takes."""
    rng = np.random.default_rng(0)
    for rank in (1, 3, 12):
        factor = rng.standard_normal((80, rank))
        factor[::2] = 0.0
        truth = true_norm(factor)
        assert dense_norm(
            (factor @ rng.permutation(np.eye(rank)) @ np.eye(rank, 50))[None]
        ).value == pytest.approx(truth, rel=1e-6)
    assert dense_norm(np.eye(100)[None]).value == pytest.approx(1.0, rel=1e-6)


def test_a_stack_is_bounded_by_its_largest_member() -> None:
    rng = np.random.default_rng(0)
    stack = rng.standard_normal((5, 8, 3)) * 10.0 ** np.arange(-3, 2)[:, None, None]
    truth = max(true_norm(matrix) for matrix in stack)
    assert truth * (1 - 1e-13) <= dense_norm(stack).value <= truth * (1 + 1e-6)
    assert largest_eigenvalue(np.zeros((2, 3, 3))).value <= 1e-200


def _dominates(value: Fraction, gram: list[list[Fraction]]) -> bool:
    return is_semidefinite(
        [
            [(value if i == j else 0) - entry for j, entry in enumerate(row)]
            for i, row in enumerate(gram)
        ]
    )
