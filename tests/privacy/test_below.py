"""ε from below: never above the truth, which other computations give, and close to it."""

import math
from fractions import Fraction

import dp_accounting as dp
import mpmath
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant

from lipcert.core.accounting.account import epsilon_upper
from lipcert.privacy.below import allocated_epsilon, gaussian_epsilon, poisson_epsilon


def of_gaussian(mu: float, epsilon: float) -> mpmath.mpf:
    mu, e = mpmath.mpf(mu), mpmath.mpf(epsilon)
    return mpmath.ncdf(mu / 2 - e / mu) - mpmath.exp(e) * mpmath.ncdf(-mu / 2 - e / mu)


@pytest.mark.parametrize("mu", [1e-3, 0.1, 1.0, 5.0, 60.0])
@pytest.mark.parametrize("delta", [1e-2, 1e-5, 1e-12])
def test_gaussian_releases_are_met(mu: float, delta: float) -> None:
    found = gaussian_epsilon(np.array([0.6 * mu, 0.8 * mu]), delta)
    assert of_gaussian(mu, found) > delta or found == 0.0
    assert of_gaussian(mu, found * (1 + 1e-7) + 1e-12) < delta


def test_nothing_and_everything() -> None:
    for shifts in (np.zeros(3), np.zeros(0)):
        assert gaussian_epsilon(shifts, 1e-5) == 0.0
        assert poisson_epsilon(shifts, 0.1, 1e-5) == 0.0
        assert allocated_epsilon([shifts], 4, 1e-5) == 0.0
    assert gaussian_epsilon(np.array([math.inf]), 1e-5) == math.inf
    for found in (
        poisson_epsilon(np.array([1e6]), 0.1, 1e-5),
        allocated_epsilon([np.full(4, 1e6)], 4, 1e-5),
    ):
        assert 5.0 < found < math.inf


def of_one_sample(shift: float, rate: float, epsilon: float) -> mpmath.mpf:
    """δ of one release that may have the example, from the set where the density is larger."""
    a, q, e = mpmath.mpf(shift), mpmath.mpf(rate), mpmath.exp(epsilon)
    at = (mpmath.log((e - 1 + q) / q) + a * a / 2) / a
    present = (1 - q) * mpmath.ncdf(-at) + q * mpmath.ncdf(a - at)
    return present - e * mpmath.ncdf(-at)


@pytest.mark.parametrize("shift", [0.05, 0.5, 2.0, 8.0])
@pytest.mark.parametrize("rate", [0.001, 0.1, 0.9])
@pytest.mark.parametrize("delta", [1e-3, 1e-6])
def test_one_poisson_sample(shift: float, rate: float, delta: float) -> None:
    found = poisson_epsilon(np.array([shift]), rate, delta)
    assert of_one_sample(shift, rate, found) > delta or found == 0.0
    assert of_one_sample(shift, rate, found + 0.02) < delta


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("shift", "rate", "steps", "delta"),
    [(0.9, 0.0085, 1172, 1e-5), (1.0, 0.09, 225, 1e-5), (0.2, 0.5, 50, 1e-6), (2.0, 0.01, 10, 1e-8),
     (1.4, 0.001, 10_000, 1e-6)],
)  # fmt: skip
def test_many_poisson_samples_are_near_what_another_package_gives(
    shift: float, rate: float, steps: int, delta: float
) -> None:
    """That is an upper bound."""
    accountant = PLDAccountant(value_discretization_interval=1e-4)
    event = dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(1.0 / shift))
    accountant.compose(event, steps)
    above = accountant.get_epsilon(delta)
    found = poisson_epsilon(np.full(steps, shift), rate, delta)
    assert 0.96 * above - 0.01 < found < above


def test_different_shifts_against_a_simulation() -> None:
    """E_P(1 − e^(ε − ΣL))₊, from two million runs."""
    random, shifts, rate, delta = np.random.default_rng(0), np.linspace(0.3, 1.5, 9), 0.2, 0.02
    found = poisson_epsilon(shifts, rate, delta)
    losses = np.zeros(2_000_000)
    for a in shifts:
        x = random.standard_normal(len(losses)) + a * (random.random(len(losses)) < rate)
        losses += np.log(1.0 - rate + rate * np.exp(a * x - a * a / 2.0))
    for epsilon, sign in ((found, 1.0), (1.04 * found + 0.01, -1.0)):
        hidden = np.maximum(-np.expm1(epsilon - losses), 0.0)
        error = hidden.std() / math.sqrt(len(losses))
        assert sign * (hidden.mean() - delta) > -4.0 * error


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("bins", "epochs", "shift", "delta"),
    [(2, 1, 1.0, 1e-5), (12, 20, 0.25, 1e-5), (12, 20, 1.0, 1e-5), (100, 3, 2.0, 1e-6)],
)
def test_balls_in_bins_are_near_their_upper_bound(
    bins: int, epochs: int, shift: float, delta: float
) -> None:
    above = epsilon_upper(
        "balls-in-bins", 1.0 / shift, Fraction(1, bins), epochs, Fraction(delta), "add-remove"
    )
    found = allocated_epsilon([np.full(bins, shift)] * epochs, bins, delta)
    assert 0.94 * above - 0.02 < found < above


def test_bins_of_different_shifts_against_a_simulation() -> None:
    """Three epochs, of which the last is not finished."""
    random, bins, delta = np.random.default_rng(1), 4, 0.02
    epochs = [np.array([0.2, 0.9, 1.4, 0.9]), np.full(4, 1.0), np.array([1.5, 1.0])]
    found = allocated_epsilon(epochs, bins, delta)
    runs = 1_000_000
    losses = np.zeros(runs)
    for shifts in epochs:
        a = np.pad(shifts, (0, bins - len(shifts)))
        own = random.integers(bins, size=runs)
        x = random.standard_normal((runs, bins)) + a * (own[:, np.newaxis] == np.arange(bins))
        losses += np.log(np.mean(np.exp(a * x - a * a / 2.0), axis=1))
    hidden = np.maximum(-np.expm1(found - losses), 0.0)
    assert hidden.mean() > delta - 4.0 * hidden.std() / math.sqrt(runs)
    assert np.maximum(-np.expm1(found * 1.15 - losses), 0.0).mean() < delta


def test_one_bin_is_every_step() -> None:
    found = allocated_epsilon([np.array([0.8])] * 5, 1, 1e-5)
    assert found == pytest.approx(gaussian_epsilon(np.full(5, 0.8), 1e-5), abs=0.02)
    assert found <= gaussian_epsilon(np.full(5, 0.8), 1e-5)


def test_more_releases_and_larger_shifts_cost_more() -> None:
    costs = [poisson_epsilon(np.full(n, a), 0.1, 1e-5) for n, a in ((5, 1.0), (9, 1.0), (9, 1.2))]
    assert costs == sorted(costs)
