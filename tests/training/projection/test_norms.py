"""Proofs of positive definiteness, held against matrices whose norms are known exactly."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lipcert.training.projection import norms, on_device
from lipcert.training.projection.norms import product_margin


def on_a_device(grams: np.ndarray, shifts: np.ndarray) -> np.ndarray:
    """The proofs of weights on a GPU, here on the processor."""
    return on_device.below(torch.from_numpy(grams), torch.from_numpy(shifts)).numpy()


PROOFS = pytest.mark.parametrize("below", [norms.below, on_a_device], ids=["here", "there"])


def hadamard(order: int) -> np.ndarray:
    matrix = np.ones((1, 1))
    for _ in range(order):
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix


CASES = [
    (np.ones((5, 9)), 45),
    (np.ones((40, 70)) * 0.1, Fraction(0.1) ** 2 * 2800),
    (hadamard(5), 32),
    (np.diag([3.0, 1.0, 1e-9, 0.0]), 9),
]


@pytest.mark.parametrize(("matrix", "square"), CASES)
@pytest.mark.parametrize("power", range(2, 16))
@PROOFS
def test_what_is_proved_is_true(below, matrix: np.ndarray, square: Fraction, power: int) -> None:
    """Exactly: ‖M‖² ≤ (1 + ε)²q wherever q is proved; and everything clearly above is proved."""
    margin = Fraction(product_margin(*matrix.shape))
    for sign in (-1.0, 1.0):
        shift = float(square) * (1.0 + sign * 10.0**-power)
        for kind in (np.float64, np.complex128):
            gram = (matrix @ matrix.T).astype(kind)[None]
            (proved,) = below(gram, np.array([shift]))
            if proved:
                assert square <= (1 + margin) ** 2 * Fraction(shift)
            assert proved or not (sign > 0 and power <= 11)


@PROOFS
@given(st.integers(1, 12), st.integers(0, 2**32 - 1), st.floats(-1e-3, 1e-3))
def test_complex_matrices(below, side: int, seed: int, offset: float) -> None:
    random = np.random.default_rng(seed)
    matrix = random.standard_normal((side, 9)) + 1j * random.standard_normal((side, 9))
    gram = matrix @ matrix.conj().T
    square = np.linalg.norm(matrix, 2) ** 2
    (proved,) = below(gram[None], np.array([square * (1.0 + offset)]))
    assert proved == (offset > 0.0) or abs(offset) < 1e-9


@PROOFS
def test_each_matrix_of_a_stack_is_judged_by_itself(below) -> None:
    grams = np.stack([np.eye(4), 4.0 * np.eye(4), np.full((4, 4), np.nan), np.zeros((4, 4))])
    for stack in (grams, grams.astype(complex)):
        assert below(stack, np.full(4, 2.0)).tolist() == [True, False, False, True]
        alone = [bool(below(matrix[None], np.full(1, 2.0))[0]) for matrix in stack]
        assert alone == [True, False, False, True]


@PROOFS
@given(st.sampled_from([1, 2, 7, 31, 32, 33, 65, 130]), st.integers(0, 2**32 - 1))
def test_real_matrices_alone_and_together(below, side: int, seed: int) -> None:
    """What is proved of one matrix at a time, and of many: the same, and true."""
    matrix = np.random.default_rng(seed).standard_normal((side, side + 3))
    grams = np.repeat((matrix @ matrix.T)[None], 5, 0)
    offsets = np.array([-1e-3, -1e-8, 1e-8, 1e-3, -1.0])
    shifts = np.linalg.norm(matrix, 2) ** 2 * (1.0 + offsets)
    expected = [False, False, True, True, False]
    assert below(grams, shifts).tolist() == expected
    assert [bool(below(grams[:1], shift)[0]) for shift in shifts[:, None]] == expected


@PROOFS
def test_a_matrix_alone_is_left_as_it_was(below) -> None:
    gram = np.eye(40)[None] + 0.5
    before = gram.copy()
    assert below(gram, np.array([21.1])).all()
    assert np.array_equal(gram, before)


@pytest.mark.parametrize("factor", ["zero", "identity", "too small", "nan"])
@pytest.mark.parametrize("kind", [np.float64, np.complex128])
@PROOFS
def test_a_wrong_factor_proves_nothing(
    below, monkeypatch: pytest.MonkeyPatch, factor: str, kind: type
) -> None:
    """Whatever the factorisation returns, a matrix that is not below its shift is not proved."""
    wrong = {
        "zero": np.zeros((1, 6, 6)),
        "identity": np.eye(6)[None],
        "too small": 1e-3 * np.eye(6)[None],
        "nan": np.full((1, 6, 6), np.nan),
    }
    monkeypatch.setattr(
        norms, "_cholesky", lambda stack: np.repeat(wrong[factor], len(stack), 0).astype(kind)
    )
    monkeypatch.setattr(norms, "_upper_factor", lambda matrix: wrong[factor][0].copy())
    monkeypatch.setattr(
        torch.linalg,
        "cholesky_ex",
        lambda stack: (torch.from_numpy(np.repeat(wrong[factor], len(stack), 0).astype(kind)), 0),
    )
    for count in (1, 2, 3):
        grams = np.ones((count, 6, 6), dtype=kind)
        for shift in (1.0, 5.0, 5.999999):
            assert not below(grams, np.full(count, shift)).any()


def test_the_margin_stays_small_and_is_refused_where_it_is_not() -> None:
    assert product_margin(64, 128) < 2e-11
    assert product_margin(4096, 4096) < 1e-7
    with pytest.raises(ValueError, match="too large"):
        product_margin(2**25, 2**25)
