"""The discrete pair of one release is above the exact one, between the points of the grid too."""

import itertools
import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lipcert.core.accounting import poisson
from lipcert.core.accounting.account import epsilon_upper
from lipcert.core.accounting.allocated import allocated_epsilon
from lipcert.core.accounting.compose import convolution_power
from lipcert.core.accounting.curve import MOST_BITS, TAIL_ERROR, NormalTail
from lipcert.core.accounting.gaussian import gaussian_epsilon
from lipcert.core.accounting.pair import Grid, Losses
from lipcert.core.circle import pi
from lipcert.core.logarithm import logarithm
from tests.core.accounting.test_account import _added, _removed, _replaced


@pytest.mark.sample(2)
@pytest.mark.parametrize(("sigma", "rate"), [(1.0, "1/100"), (0.3, "1/1000"), (5.0, "3/4")])
@pytest.mark.parametrize("replaced", [False, True])
def test_dominates(sigma: float, rate: str, replaced: bool) -> None:
    q, shift = Fraction(rate), 1 / Fraction(sigma) / (2 if replaced else 1)
    grid = poisson._grid(float(shift), q, 10, Fraction("1e-4"), replaced, 4.0)
    assert grid is not None
    pairs = poisson._pairs(shift, q, grid, replaced=replaced)
    exactly = mpmath.mpf(shift.numerator) / shift.denominator
    curves = [_replaced(exactly, q)] if replaced else [_removed(exactly, q), _added(exactly, q)]
    assert len(pairs) == len(curves)
    spread = float(shift) * float(q)
    for losses, curve in zip(pairs, curves, strict=True):
        with mpmath.workprec(200):
            for at in (-2 * spread, -spread / 3, 1e-7, spread, 3 * spread, float(shift) ** 2 / 2):
                exact = curve(mpmath.exp(mpmath.mpf(at)))
                assert exact <= _of(losses, at) <= exact * (1 + 1e-3) + float(grid.gap)


def _of(losses: Losses, epsilon: float) -> mpmath.mpf:
    """infinite + Σ (1 − e^(ε − loss))₊·mass, in 200 bits."""
    step = mpmath.log(1 + mpmath.mpf(losses.gap.numerator) / losses.gap.denominator)
    total = mpmath.mpf(losses.infinite)
    for index, mass in zip(losses.indices, losses.masses, strict=True):
        if mass > 1e-30 and int(index) * step > epsilon:  # what is left out makes it smaller
            total += (1 - mpmath.exp(epsilon - int(index) * step)) * mpmath.mpf(float(mass))
    return total


@pytest.mark.parametrize(
    ("lowest", "highest", "fine"),
    [(0, 3, 1), (-100, 70, 20), (-5, 400, 20), (-40, 2, 3), (-1, 1, 0)],
)
def test_nodes(lowest: int, highest: int, fine: int) -> None:
    nodes = Grid(64, Fraction(1, 100), lowest, highest, fine).nodes()
    assert nodes == sorted(set(nodes))
    assert 0 in nodes
    assert nodes[0] <= lowest
    assert nodes[-1] >= highest


_BITS = (64, 200, 700)
_TAILS = {bits: NormalTail(bits) for bits in _BITS}


@pytest.mark.parametrize("bits", [64, 65, 300, MOST_BITS])
def test_pi(bits: int) -> None:
    with mpmath.workprec(bits + 80):
        assert abs(mpmath.pi * mpmath.mpf(2) ** bits - pi(bits)) < 1


@given(st.sampled_from(_BITS), st.integers(1, 1 << 1000))
def test_logarithm(bits: int, x: int) -> None:
    with mpmath.workprec(1200):
        exact = mpmath.log(mpmath.mpf(x) / mpmath.mpf(2) ** bits) * mpmath.mpf(2) ** bits
        assert abs(exact - logarithm(x, bits)) < 2


@given(st.sampled_from(_BITS), st.fractions(-45, 45))
def test_tail(bits: int, at: Fraction) -> None:
    x = int(at * (1 << bits))
    with mpmath.workprec(bits + 80):
        scale = mpmath.mpf(2) ** bits
        exact = mpmath.erfc(mpmath.mpf(x) / scale / mpmath.sqrt(2)) / 2 * scale
        assert abs(exact - _TAILS[bits](x)) < TAIL_ERROR


def test_tail_at_the_limits() -> None:
    tail = NormalTail(MOST_BITS)
    with mpmath.workprec(MOST_BITS + 80):
        for x in (0.03125, 30.9, 44.2, 44.5, 80.0):
            dyadic = mpmath.mpf(int(x * 2**20)) / 2**20
            exact = mpmath.erfc(dyadic / mpmath.sqrt(2)) / 2 * mpmath.mpf(2) ** MOST_BITS
            assert abs(exact - tail(int(x * 2**20) << MOST_BITS - 20)) < TAIL_ERROR
    with pytest.raises(ValueError, match="bits"):
        NormalTail(MOST_BITS + 1)


def _exact_power(measure: list[Fraction], times: int) -> list[Fraction]:
    size = len(measure)
    result = measure
    for _ in range(times - 1):
        result = [
            sum(result[j] * measure[(k - j) % size] for j in range(size)) for k in range(size)
        ]
    return result


@pytest.mark.parametrize(("size", "times"), [(1, 3), (2, 5), (8, 1), (8, 2), (16, 9), (32, 6)])
@pytest.mark.parametrize("spread", [0.0, 40.0])
def test_error_is_honest_and_small(size: int, times: int, spread: float) -> None:
    generator = np.random.default_rng(size * times)
    measure = np.exp(-spread * generator.random(size))
    measure /= measure.sum()
    power, error = convolution_power(measure, times)
    exact = _exact_power([Fraction(float(x)) for x in measure], times)
    found = [abs(Fraction(float(y)) - e) for y, e in zip(power, exact, strict=True)]
    assert max(found) <= Fraction(error)
    assert error < 1e-12


def test_long_measures_agree_with_numpy() -> None:
    measure = np.random.default_rng(0).random(1 << 14)
    measure /= measure.sum()
    power, error = convolution_power(measure, 1000)
    other = np.fft.ifft(np.fft.fft(measure) ** 1000).real
    assert float(np.max(np.abs(power - other))) < error < 1e-13


def _call(shift: mpmath.mpf, strike: mpmath.mpf) -> mpmath.mpf:
    """E(M − strike)₊ of a log-normal M of mean 1: the formula of Black and Scholes."""
    if strike <= 0:
        return 1 - strike
    at = -mpmath.log(strike) / shift
    return mpmath.ncdf(at + shift / 2) - strike * mpmath.ncdf(at - shift / 2)


def _deltas_of_two(sigma: float, epsilon: float) -> tuple[mpmath.mpf, mpmath.mpf]:
    """δ at ε of one epoch of two batches, both ways round: one of them by quadrature."""
    shift, ratio = 1 / mpmath.mpf(sigma), mpmath.exp(epsilon)

    def above(level: mpmath.mpf) -> mpmath.mpf:
        """E(R − level)₊, R = (M_1 + M_2)/2."""

        def inner(z: mpmath.mpf) -> mpmath.mpf:
            first = mpmath.exp(shift * z - shift**2 / 2)
            return mpmath.npdf(z) * _call(shift, 2 * level - first) / 2

        kink = (mpmath.log(2 * level) + shift**2 / 2) / shift
        return mpmath.quad(inner, sorted([-14, -5, 0, 5, 14 + shift, kink]))

    return above(ratio), 1 - ratio + ratio * above(1 / ratio)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("sigma", "delta"), [(1.0, "1e-5"), (0.6, "1e-3"), (3.0, "1e-6"), (20.0, "1e-4"), (2.0, "0.1")]
)
def test_an_epoch_of_two_batches(sigma: float, delta: str) -> None:
    """Never below the exact ε, and hardly above."""
    found = epsilon_upper("balls-in-bins", sigma, Fraction(1, 2), 1, Fraction(delta), "zero-out")
    assert found is not None
    with mpmath.workprec(80):
        goal = mpmath.mpf(delta)
        assert max(_deltas_of_two(sigma, found)) <= goal
        assert found == 0.0 or max(_deltas_of_two(sigma, found * 0.995 - 1e-4)) > goal


# Lower and upper ε by PLD_accounting 0.4.0 (Feldman and Shenfeld), at δ = 1e-5
@pytest.mark.parametrize(
    ("bins", "epochs", "sigma", "below", "above"),
    [
        (118, 10, 1.1, 1.2811539, 1.3101664),
        (11, 20, 3.9, 1.3330538, 1.3645678),
        (12, 20, 3.0, 1.7220970, 1.7587401),
        (2, 3, 1.0, 6.6041547, 6.6536760),
    ],
)
def test_between_the_bounds_of_another_accountant(
    bins: int, epochs: int, sigma: float, below: float, above: float
) -> None:
    found = allocated_epsilon(sigma, bins, epochs, Fraction(1, 100_000))
    assert found is not None
    assert below <= found <= above


def _losses(bins: int, sigma: float, *, present: bool) -> np.ndarray:
    """Simulated losses of an epoch, log of the ratio to the pair without the example."""
    normals = np.random.default_rng(5).standard_normal((200_000, bins))
    normals[:, 0] += present / sigma
    return np.log(np.exp(normals / sigma - 0.5 / sigma**2).mean(axis=1))


@pytest.mark.sample(1)
@pytest.mark.parametrize(("bins", "sigma"), [(5, 0.8), (30, 1.5), (300, 0.7)])
def test_no_simulated_run_exceeds_it(bins: int, sigma: float) -> None:
    found = allocated_epsilon(sigma, bins, 1, Fraction(1, 100))
    assert found is not None
    for losses in (_losses(bins, sigma, present=True), -_losses(bins, sigma, present=False)):
        terms = np.maximum(0.0, 1.0 - np.exp(found - losses))
        assert terms.mean() - 5.0 * terms.std() / math.sqrt(len(terms)) <= 0.01


@pytest.mark.nightly
def test_it_is_monotone_and_below_one_release_per_epoch() -> None:
    delta = Fraction(1, 10**6)
    for sigma in (0.3, 1.0, 300.0):
        alone = gaussian_epsilon(sigma, 4, delta)
        by_bins = [allocated_epsilon(sigma, bins, 4, delta) for bins in (1, 2, 50)]
        assert by_bins[0] == alone
        for more, fewer in itertools.pairwise(by_bins):
            assert fewer <= more
    by_epochs = [allocated_epsilon(2.0, 20, epochs, delta) for epochs in (1, 2, 50)]
    assert by_epochs == sorted(by_epochs, key=lambda epsilon: epsilon or 0.0)


def test_a_delta_below_all_floats_has_no_epsilon() -> None:
    for digits in (300, 5000):
        assert allocated_epsilon(1e3, 10, 5, Fraction(1, 10**digits)) is None


def test_more_bins_than_can_be_accounted_for_are_one_release_per_epoch() -> None:
    delta = Fraction(1, 10**5)
    for bins in ((1 << 32) + 1, 1 << 53):
        assert allocated_epsilon(1.0, bins, 3, delta) == gaussian_epsilon(1.0, 3, delta)


def test_what_has_no_proof_has_no_epsilon() -> None:
    assert (
        epsilon_upper("balls-in-bins", 1.0, Fraction(1, 9), 3, Fraction(1, 100), "replace-one")
        is None
    )
