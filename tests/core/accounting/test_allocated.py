"""Balls in bins: ε against quadrature by mpmath, another accountant's brackets, and simulation."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest

from lipcert.core.accounting.account import epsilon_upper
from lipcert.core.accounting.allocated import allocated_epsilon
from lipcert.core.accounting.gaussian import gaussian_epsilon


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


def test_it_is_monotone_and_below_one_release_per_epoch() -> None:
    delta = Fraction(1, 10**6)
    for sigma in (0.3, 0.5, 1.0, 8.0, 300.0):
        alone = gaussian_epsilon(sigma, 4, delta)
        by_bins = [allocated_epsilon(sigma, bins, 4, delta) for bins in (1, 2, 10, 100)]
        assert alone is not None
        assert by_bins[0] == alone
        for more, fewer in itertools.pairwise(by_bins):
            assert more is not None
            assert fewer is not None
            assert fewer <= more
    by_epochs = [allocated_epsilon(2.0, 20, epochs, delta) for epochs in (1, 2, 7, 50)]
    assert by_epochs == sorted(by_epochs, key=lambda epsilon: epsilon or 0.0)


def test_a_delta_below_all_floats_has_no_epsilon() -> None:
    for digits in (300, 330, 5000):
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
