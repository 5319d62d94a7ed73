"""ε against closed forms, against dp-accounting called by hand, and against attacks."""

import math
from dataclasses import replace

import dp_accounting as dp
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from scipy.optimize import brentq
from scipy.stats import norm

from lipcert.errors import UsageError
from lipcert.privacy.accounting import Accountant, accountants, epsilon
from lipcert.privacy.noise import Neighbouring
from lipcert.privacy.plan import Sampling, TrainingPlan

ADD_REMOVE = Neighbouring.ADD_OR_REMOVE_ONE
REPLACE = Neighbouring.REPLACE_ONE
ZERO_OUT = Neighbouring.ZERO_OUT
SUPPORTED = [
    (sampling, relation)
    for sampling in Sampling
    for relation in Neighbouring
    if relation is REPLACE
    or sampling is Sampling.FULL_BATCH
    or sampling is Sampling.POISSON
    or (sampling, relation) == (Sampling.SHUFFLE, ZERO_OUT)
    if sampling is not Sampling.BALLS_IN_BINS
]
"""by dp-accounting"""


def plan(sampling=Sampling.POISSON, neighbours=ADD_REMOVE, steps=50, delta=1e-5) -> TrainingPlan:
    batch = None if sampling is Sampling.FULL_BATCH else 20
    return TrainingPlan(1000, sampling, delta, batch, steps, neighbours=neighbours)


def gaussian_delta(sigma: float, eps: float) -> float:
    """Exact δ of one Gaussian release (Balle and Wang, 2018)."""
    below = norm.logcdf(-0.5 / sigma - eps * sigma)
    return float(norm.cdf(0.5 / sigma - eps * sigma) - np.exp(eps + below))


def gaussian_epsilon(sigma: float, delta: float) -> float:
    return brentq(lambda e: gaussian_delta(sigma, e) - delta, 0.0, 1e7)


@pytest.mark.parametrize("relation", list(Neighbouring))
@pytest.mark.parametrize(("sigma", "steps"), [(0.2, 1), (1.0, 1), (8.0, 30), (300.0, 1)])
def test_full_batches_are_the_analytic_gaussian_mechanism(relation, sigma, steps) -> None:
    run = plan(Sampling.FULL_BATCH, relation, steps)
    exact = gaussian_epsilon(sigma / math.sqrt(steps), run.delta)
    assert exact * (1 - 1e-9) <= epsilon(run, sigma) <= exact * (1 + 1e-4)
    assert epsilon(run, sigma, Accountant.RDP) >= exact


@pytest.mark.parametrize("relation", [REPLACE, ZERO_OUT])
def test_shuffled_batches_cost_one_release_per_epoch(relation) -> None:
    run = plan(Sampling.SHUFFLE, relation, steps=150)  # 50 batches in an epoch
    exact = gaussian_epsilon(4.0 / math.sqrt(3.0), run.delta)
    assert exact * (1 - 1e-9) <= epsilon(run, 4.0) <= exact * (1 + 1e-4)


def test_balls_in_bins_cost_less_than_poisson_samples_and_far_less_than_a_shuffle() -> None:
    by_bins = plan(Sampling.BALLS_IN_BINS, ZERO_OUT, steps=500)
    found = epsilon(by_bins, 0.9)
    assert found == epsilon(replace(by_bins, neighbours=ADD_REMOVE), 0.9)
    assert found < epsilon(plan(Sampling.POISSON, ZERO_OUT, steps=500), 0.9)
    assert 3.0 * found < epsilon(plan(Sampling.SHUFFLE, ZERO_OUT, steps=500), 0.9)
    assert accountants(by_bins) == (Accountant.PLD,)


def by_hand(run: TrainingPlan, sigma: float, accountant: Accountant) -> float:
    """The events written out: multipliers per gradient bound for PLD, per Δ for RDP."""
    relation = {
        ADD_REMOVE: dp.NeighboringRelation.ADD_OR_REMOVE_ONE,
        REPLACE: dp.NeighboringRelation.REPLACE_ONE,
        ZERO_OUT: dp.NeighboringRelation.REPLACE_SPECIAL,
    }[run.neighbours]
    doubled = run.neighbours is REPLACE and accountant is Accountant.PLD
    step = dp.GaussianDpEvent(2 * sigma if doubled else sigma)
    count = 50
    match run.sampling:
        case Sampling.POISSON:
            step = dp.PoissonSampledDpEvent(0.02, step)
        case Sampling.WITHOUT_REPLACEMENT:
            step = dp.SampledWithoutReplacementDpEvent(1000, 20, step)
        case Sampling.SHUFFLE:
            count = 1
    event = dp.SelfComposedDpEvent(step, count)
    if accountant is Accountant.RDP:
        return RdpAccountant(neighboring_relation=relation).compose(event).get_epsilon(run.delta)
    return PLDAccountant(relation, 5e-4).compose(event).get_epsilon(run.delta)


@pytest.mark.sample(5)
@pytest.mark.parametrize(("sampling", "relation"), SUPPORTED)
def test_epsilon_is_that_of_dp_accounting(sampling, relation) -> None:
    run = plan(sampling, relation)
    for accountant in accountants(run):
        expected = by_hand(run, 1.5, accountant)
        assert epsilon(run, 1.5, accountant) == pytest.approx(expected, rel=1e-3)


@pytest.mark.sample(5)
@pytest.mark.parametrize(("sampling", "relation"), SUPPORTED)
def test_pld_is_never_above_rdp(sampling, relation) -> None:
    run, sigma = plan(sampling, relation), 0.9
    found = [epsilon(run, sigma, accountant) for accountant in accountants(run)]
    assert found == sorted(found)
    assert epsilon(run, sigma) == found[0]


@pytest.mark.parametrize("accountant", list(Accountant))
def test_more_steps_more_noise_and_smaller_delta_go_the_right_way(accountant) -> None:
    base = epsilon(plan(), 1.0, accountant)
    assert epsilon(plan(steps=100), 1.0, accountant) > base
    assert epsilon(plan(), 1.1, accountant) < base
    assert epsilon(plan(delta=1e-6), 1.0, accountant) > base


def test_a_rate_of_one_is_a_full_batch() -> None:
    whole = TrainingPlan(1000, Sampling.POISSON, 1e-5, 1000, 3)
    assert epsilon(whole, 2.0) == epsilon(plan(Sampling.FULL_BATCH, steps=3), 2.0)


def divergence(alpha: float, a: float, b: float, rate: float, z: float) -> float:
    """Hockey-stick divergence of (1−q)N(0)+qN(a) from (1−q)N(0)+qN(b)."""
    x = np.linspace(-2 - 9 * z, 2 + 9 * z, 40_001)

    def mixture(shift: float):
        return (1 - rate) * norm.pdf(x, 0.0, z) + rate * norm.pdf(x, shift, z)

    return np.maximum(0.0, mixture(a) - alpha * mixture(b)).sum() * (x[1] - x[0])


@pytest.mark.parametrize(
    ("sampling", "relation", "means"),
    [
        (Sampling.POISSON, ADD_REMOVE, (1.0, 0.0)),
        (Sampling.POISSON, REPLACE, (1.0, -1.0)),
        # all others have gradient −1: the sample moves by 2 if the one with +1 is in it
        (Sampling.WITHOUT_REPLACEMENT, REPLACE, (2.0, 0.0)),
        (Sampling.WITHOUT_REPLACEMENT, REPLACE, (1.0, -1.0)),
    ],
)
def test_one_step_is_never_below_an_attack(sampling, relation, means) -> None:
    """Means in units of G; the noise is σ·Δ, with Δ = 2 for a replacement."""
    sigma, delta = 0.6, 1e-4
    z = 2 * sigma if relation is REPLACE else sigma
    run = plan(sampling, relation, steps=1, delta=delta)
    found = epsilon(run, sigma)
    attained = divergence(math.exp(found), *means, 0.02, z)
    assert attained <= delta * (1 + 1e-4)
    if sampling is Sampling.POISSON:  # and the attack is the worst case
        assert divergence(math.exp(0.999 * found), *means, 0.02, z) >= delta


def test_samples_of_fixed_size_cost_at_least_what_an_attack_gains_over_many_steps() -> None:
    fixed = plan(Sampling.WITHOUT_REPLACEMENT, REPLACE, steps=500)
    attack = plan(Sampling.POISSON, ADD_REMOVE, steps=500)  # the pair of means 2 and 0 above
    assert epsilon(fixed, 0.8) >= epsilon(attack, 0.8)


def test_tiny_noise_gives_large_or_no_epsilon_and_no_crash() -> None:
    assert epsilon(plan(Sampling.FULL_BATCH, steps=1), 0.02) > 1250.0
    assert epsilon(plan(steps=5), 0.05) > 100.0
    assert epsilon(plan(steps=5), 1e-200, Accountant.RDP) > 1e10


@pytest.mark.parametrize("sigma", [0.0, -1.0, math.nan, math.inf])
def test_a_multiplier_that_is_none_is_refused(sigma) -> None:
    with pytest.raises(UsageError, match="noise-multiplier"):
        epsilon(plan(), sigma)


def test_an_unsound_accountant_is_refused() -> None:
    with pytest.raises(UsageError, match="use pld"):
        epsilon(plan(Sampling.POISSON, REPLACE), 1.0, Accountant.RDP)
    with pytest.raises(UsageError, match="use rdp"):
        epsilon(plan(Sampling.WITHOUT_REPLACEMENT, REPLACE), 1.0, Accountant.PLD)
    with pytest.raises(UsageError, match="use rdp"):
        epsilon(plan(delta=1e-12), 1.0, Accountant.PLD)
    with pytest.raises(UsageError, match="no accountant"):
        epsilon(plan(Sampling.POISSON, REPLACE, delta=1e-12), 1.0)
    with pytest.raises(UsageError, match="accountant"):  # 4e-5 too small there, for rounding
        epsilon(plan(delta=1e-10), 1.0, Accountant.PLD)
    assert epsilon(plan(delta=1e-12), 1.0) == epsilon(plan(delta=1e-12), 1.0, Accountant.RDP)


def test_orders_with_rounding_errors_do_not_make_epsilon_zero(monkeypatch) -> None:
    """dp-accounting reads a negative divergence as perfect privacy."""

    class Flawed(RdpAccountant):
        @property
        def rdp(self):
            found = super().rdp.copy()
            found[3], found[4] = -1e-18, math.nan
            return found

    monkeypatch.setattr("dp_accounting.rdp.RdpAccountant", Flawed)
    assert epsilon(plan(), 1.0, Accountant.RDP) > 0.1


def test_the_library_stays_quiet(capfd) -> None:
    epsilon(TrainingPlan(1000, Sampling.POISSON, 1e-5, 500, 100), 1.0, Accountant.RDP)
    assert capfd.readouterr() == ("", "")
