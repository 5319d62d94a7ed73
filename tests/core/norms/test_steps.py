import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lipcert.core.lines.norms import norm_holds
from lipcert.core.membership import frobenius_at_most
from lipcert.core.norms.claim import NormWitness
from lipcert.core.norms.convolution import Convolution
from lipcert.core.norms.float_engine import norm_at_most_float
from lipcert.core.norms.integer_engine import norm_at_most_exact
from lipcert.core.program import Dense, Operand, Step
from lipcert.core.window_kinds import Conv, Window
from tests.core.rules.cases import exactly

from .convolutions import convolutions, window_of

METHODS = [NormWitness(method) for method in ("dense", "windows", "absolute", "explicit")]
engines = pytest.mark.parametrize("check", [norm_at_most_float, norm_at_most_exact])


def shapes(conv):
    channels = conv.kernel.shape[1] * conv.groups
    return (1, channels, *conv.size), (1, len(conv.kernel), *conv.window.outputs)


def holds(op, below, above, claim, witness, check):
    step = Step(op, ("x",), "y", above, 0)
    return norm_holds((step,), {"x": below}, claim, witness, check)


@engines
@given(convolutions(), st.booleans())
def test_claims_about_steps(check, conv, transposed):
    op = Conv(exactly(conv.kernel), None, conv.window, conv.groups, transposed)
    below, above = reversed(shapes(conv)) if transposed else shapes(conv)
    norm = float(np.linalg.norm(conv.matrix(), 2))
    assert holds(op, below, above, norm * (1.0 + 1e-8), METHODS[3], check)
    frobenius = math.sqrt(conv.overlap()) * np.linalg.norm(conv.kernel)
    assert holds(op, below, above, frobenius * (1.0 + 1e-8), METHODS[1], check)
    for witness in METHODS if norm > 0.0 else []:
        assert not holds(op, below, above, norm * (1.0 - 1e-6), witness, check)


@engines
@pytest.mark.parametrize("rows", [1, 3, 9])
def test_matrices(check, rows):
    W = np.random.default_rng(rows).standard_normal((rows, 5))
    norm = float(np.linalg.norm(W, 2))
    for witness in (METHODS[0], METHODS[1], METHODS[3], NormWitness("torus")):
        step = (Dense(exactly(W), None), (1, 7, 5), (1, 7, rows))
        assert holds(*step, norm * (1.0 + 1e-8), witness, check)
        assert not holds(*step, norm * (1.0 - 1e-6), witness, check)


@given(convolutions(), st.floats(0.0, 0.1), st.integers(0, 10**6))
def test_an_interval_operand_costs_its_radius(conv, width, seed):
    rng = np.random.default_rng(seed)
    radius = width * rng.random(conv.kernel.shape)
    lo, hi = conv.kernel - radius, conv.kernel + radius
    op = Conv(Operand(lo, hi), None, conv.window, conv.groups, False)
    inside = Convolution(rng.uniform(lo, hi), conv.size, conv.window, conv.groups)
    norm = float(np.linalg.norm(inside.matrix(), 2))
    assert norm == 0.0 or not holds(
        op, *shapes(conv), norm * (1.0 - 1e-6), METHODS[3], norm_at_most_float
    )
    centre = float(np.linalg.norm(conv.matrix(), 2))
    error = math.sqrt(conv.overlap()) * float(np.linalg.norm(radius))
    claim = (centre + error) * (1.0 + 1e-7) + 1e-12
    assert holds(op, *shapes(conv), claim, METHODS[3], norm_at_most_float)


def test_an_unknown_entry_proves_nothing():
    op = Dense(Operand(np.array([[-np.inf]]), np.array([[np.inf]])), None)
    assert not holds(op, (1, 1), (1, 1), 1e300, METHODS[0], norm_at_most_float)


@pytest.mark.parametrize("claim", [-1.0, -0.5, np.nan, np.inf])
def test_claims_that_are_none(claim):
    op = Dense(exactly(np.zeros((1, 1))), None)
    assert not holds(op, (1, 1), (1, 1), claim, METHODS[0], norm_at_most_float)


@pytest.mark.parametrize("method", ["", "identity", None])
def test_unknown_methods(method):
    op = Dense(exactly(np.zeros((1, 1))), None)
    assert not holds(op, (1, 1), (1, 1), 1.0, NormWitness(method), norm_at_most_float)


def test_zero_is_proved():
    op = Dense(exactly(np.zeros((2, 2))), None)
    assert holds(op, (1, 2), (1, 2), 0.0, METHODS[0], norm_at_most_exact)


@pytest.mark.parametrize(
    ("below", "above"),
    [
        ((1, 2, 6), (1, 2, 4)),
        ((1, 1, 6), (1, 3, 4)),
        ((1, 1, 6), (1, 2, 5)),
        ((2, 1, 6), (2, 2, 4)),
    ],
)
def test_steps_that_do_not_fit_their_shapes(below, above):
    op = Conv(exactly(np.ones((2, 1, 3))), None, window_of((3,), (6,)), 1, False)
    assert holds(op, (1, 1, 6), (1, 2, 4), 99.0, METHODS[3], norm_at_most_float)
    assert not holds(op, below, above, 99.0, METHODS[3], norm_at_most_float)


def test_matrices_that_do_not_fit_their_shapes():
    op = Dense(exactly(np.ones((2, 3))), None)
    for below, above in (((1, 3), (1, 3)), ((1, 2), (1, 2)), ((4, 3), (1, 2))):
        assert not holds(op, below, above, 99.0, METHODS[0], norm_at_most_float)


def test_a_torus_through_a_step():
    rng = np.random.default_rng(3)
    kernel = rng.standard_normal((4, 4, 3, 3))
    window = Window((3, 3), (1, 1), (1, 1), (1, 1), (9, 9))
    op = Conv(exactly(kernel), None, window, 1, False)
    step = (op, (1, 4, 9, 9), (1, 4, 9, 9))
    K = np.fft.fft2(kernel, (10, 10)).transpose(2, 3, 0, 1)
    norm = float(np.linalg.norm(K, 2, axis=(2, 3)).max())
    witness = NormWitness("torus", (0, 0), (10, 10))
    for check in (norm_at_most_float, norm_at_most_exact):
        assert holds(*step, norm * (1.0 + 1e-8), witness, check)
        assert not holds(*step, norm * (1.0 - 1e-8), witness, check)


def test_membership_in_a_ball():
    assert frobenius_at_most(np.array([3.0, 4.0]), 5.0 * (1.0 + 1e-14))
    assert not frobenius_at_most(np.array([3.0, 4.0]), 5.0 * (1.0 - 1e-14))
    assert not frobenius_at_most(np.array([np.inf]), 1e300)
    assert frobenius_at_most(np.zeros(2), 0.0)
