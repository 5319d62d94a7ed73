"""ε against closed forms, dp-accounting by hand, attacks, published faults; and targets."""

import importlib.util
import math
import sys
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import dp_accounting as dp
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from scipy.optimize import brentq
from scipy.stats import norm

from lipcert.errors import NoVerdictError, UsageError
from lipcert.privacy import accounting
from lipcert.privacy.account import Declaration, account_for, zero_concentrated
from lipcert.privacy.accounting import (
    Accountant,
    accountants,
    epsilon,
    epsilon_over_noise,
    epsilon_over_steps,
    noise_for_epsilon,
    steps_for_epsilon,
)
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


NONE = (0.0, -1.0, math.nan, math.inf)
RDP, PLD = Accountant.RDP, Accountant.PLD
FIXED_SIZE, COARSE = plan(Sampling.WITHOUT_REPLACEMENT, REPLACE), plan(delta=1e-12)
REFUSED = [
    *((epsilon, (plan(), sigma), "noise-multiplier") for sigma in NONE),
    *((noise_for_epsilon, (plan(), target), "target-epsilon") for target in NONE),
    *((steps_for_epsilon, (plan(), 1.0, target), "target-epsilon") for target in NONE),
    (epsilon, (plan(Sampling.POISSON, REPLACE), 1.0, RDP), "use pld"),
    (epsilon, (FIXED_SIZE, 1.0, PLD), "use rdp"),
    (epsilon, (COARSE, 1.0, PLD), "use rdp"),
    (epsilon, (plan(Sampling.POISSON, REPLACE, delta=1e-12), 1.0), "no accountant"),
    (epsilon, (plan(delta=1e-10), 1.0, PLD), "accountant"),  # 4e-5 too small, for rounding
]
"""numbers that are none, and accountants that would be unsound"""


@pytest.mark.parametrize(("function", "given", "says"), REFUSED)
def test_what_has_no_sound_answer_is_refused(function, given, says) -> None:
    with pytest.raises(UsageError, match=says):
        function(*given)


def test_where_one_accountant_is_unsound_the_other_answers() -> None:
    assert epsilon(COARSE, 1.0) == epsilon(COARSE, 1.0, RDP)


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


SCRIPT = Path(__file__).parents[2] / "examples" / "accounting_faults.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("accounting_faults", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


EXPECTED = [  # claimed, true, code
    (1.83, 4.48, "LC403"),
    (1.83, 13.36, "LC403"),
    (1.83, 41.40, "LC403"),
    (1.57, 7.47, "LC403"),
    (3.24, 10.00, "LC402"),
    (1.83, math.inf, "LC401"),
    (1.83, 1195.8, "LC406"),
    (1.83, 2.844, "LC404"),
    (10.0, 10.39, ""),
]


@pytest.mark.nightly
def test_every_row_is_reproduced(script) -> None:
    rows = list(script.rows())
    assert len(rows) == len(EXPECTED)
    for row, (claimed, true, code) in zip(rows, EXPECTED, strict=True):
        assert row.code == code, row.name
        assert row.claimed == pytest.approx(claimed, abs=0.006), row.name
        assert row.true == pytest.approx(true, rel=2e-3), row.name
        assert row.claimed < row.true


@pytest.mark.sample(1)
@pytest.mark.parametrize(("sigma", "batches"), [(0.8, 100), (0.5, 1000)])
def test_an_attack_on_shuffled_batches_lies_between_poisson_and_the_account(
    script, sigma, batches
) -> None:
    run = TrainingPlan(
        50 * batches, Sampling.SHUFFLE, 1e-5, 50, epochs=1, neighbours=Neighbouring.ZERO_OUT
    )
    claim = Declaration(claimed_sampling=Sampling.POISSON)
    account = account_for(run, sigma, declaration=claim)
    reached = script.shuffle_attack(sigma, batches, 1e-5)
    assert account.claimed_epsilon < reached <= account.epsilon
    assert reached > 0.95 * account.epsilon


def test_the_classical_formula_misses_its_delta_at_large_epsilon(script) -> None:
    from scipy.stats import norm

    sigma = script.classical_sigma(10.0, 1e-5)
    delta = norm.cdf(0.5 / sigma - 10 * sigma) - math.exp(10) * norm.cdf(-0.5 / sigma - 10 * sigma)
    assert delta == pytest.approx(2.27e-5, rel=1e-2)


POISSON = TrainingPlan(1000, Sampling.POISSON, 1e-5, 20, 100)
OFTEN = TrainingPlan(1000, Sampling.POISSON, 1e-5, 200, 1)
WHOLE = TrainingPlan(1000, Sampling.FULL_BATCH, 1e-5, steps=10)
FIXED = TrainingPlan(
    1000, Sampling.WITHOUT_REPLACEMENT, 1e-5, 20, 100, neighbours=Neighbouring.REPLACE_ONE
)
SHUFFLED = TrainingPlan(
    1000, Sampling.SHUFFLE, 1e-5, 30, epochs=4, neighbours=Neighbouring.REPLACE_ONE
)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("plan", "target"),
    [
        (POISSON, 0.3),
        (replace(POISSON, trials=5), 5.0),
        (WHOLE, 0.3),
        (SHUFFLED, 40.0),
        (FIXED, 2.0),
    ],
)
def test_the_noise_found_meets_the_target_within_a_thousandth(plan, target) -> None:
    found = noise_for_epsilon(plan, target)
    assert epsilon(plan, found.noise_multiplier) == found.epsilon
    assert 0.999 * target <= found.epsilon <= target


def test_the_noise_of_one_release_is_that_of_the_analytic_gaussian_mechanism() -> None:
    plan = WHOLE.with_steps(1)
    sigma = noise_for_epsilon(plan, 1.0).noise_multiplier
    below = math.e * norm.cdf(-0.5 / sigma - sigma)
    delta = norm.cdf(0.5 / sigma - sigma) - below
    assert 0.98 * plan.delta <= delta <= plan.delta
    assert sigma == pytest.approx(3.7304, rel=1e-3)  # Balle and Wang, 2018


def test_an_accountant_may_be_chosen() -> None:
    found = noise_for_epsilon(WHOLE, 2.0, Accountant.RDP)
    assert found.noise_multiplier > noise_for_epsilon(WHOLE, 2.0).noise_multiplier
    assert epsilon(WHOLE, found.noise_multiplier, Accountant.RDP) <= 2.0


@pytest.mark.parametrize("plan", [OFTEN, WHOLE, SHUFFLED])
def test_one_step_more_would_miss_the_target(plan) -> None:
    found = steps_for_epsilon(plan, 2.0, 2.9)
    assert epsilon(plan.with_steps(found.steps), 2.0) == found.epsilon <= 2.9
    assert epsilon(plan.with_steps(found.steps + 1), 2.0) > 2.9


def test_steps_do_not_depend_on_those_of_the_plan() -> None:
    found = steps_for_epsilon(WHOLE.with_steps(1), 5.0, 2.0)
    assert found == steps_for_epsilon(WHOLE.with_steps(77), 5.0, 2.0)


def test_targets_out_of_reach_have_no_answer(monkeypatch) -> None:
    with pytest.raises(NoVerdictError, match="one step"):
        steps_for_epsilon(WHOLE, 0.5, 1.0)
    monkeypatch.setattr(accounting, "_MOST_NOISE", 4.0)
    with pytest.raises(NoVerdictError, match="too coarse"):
        noise_for_epsilon(WHOLE, 1e-9)


def test_a_target_that_never_binds_gets_the_least_noise_that_is_sought() -> None:
    assert noise_for_epsilon(WHOLE, 1e4, Accountant.RDP).noise_multiplier == 2.0**-4


def test_curves_end_at_the_plan_and_are_monotone() -> None:
    points = list(epsilon_over_steps(SHUFFLED, 4.0, 8))
    assert points[-1].steps == SHUFFLED.releases
    assert points[-1].epsilon == epsilon(SHUFFLED, 4.0)
    assert len(list(epsilon_over_steps(POISSON.with_steps(3), 4.0, 8))) == 3
    steps = [point.epsilon for point in epsilon_over_steps(POISSON, 4.0, 8)]
    assert steps == sorted(steps)
    noise = [point.epsilon for point in epsilon_over_noise(POISSON, 2.0, 2)]
    assert noise == sorted(noise, reverse=True)


@pytest.mark.parametrize("sigma", [0.3, 1.0, 7.7])
def test_rho_adds_up_over_epochs_and_converts(sigma) -> None:
    found = zero_concentrated(SHUFFLED, sigma)
    assert Fraction(found.rho_per_release) >= Fraction(1, 2) / Fraction(sigma) ** 2
    assert Fraction(found.rho) >= 4 * Fraction(1, 2) / Fraction(sigma) ** 2
    rho = 2.0 / sigma**2
    assert found.rho == pytest.approx(rho)
    assert found.epsilon == pytest.approx(rho + 2 * math.sqrt(rho * math.log(1e5)))
    assert zero_concentrated(replace(SHUFFLED, trials=3), sigma).rho == pytest.approx(3 * rho)


@pytest.mark.parametrize("sigma", [0.3, 1.0, 7.7])
def test_the_simple_conversion_is_above_the_accountant(sigma) -> None:
    assert zero_concentrated(SHUFFLED, sigma).epsilon >= epsilon(SHUFFLED, sigma)


def test_sampling_anew_has_no_such_statement() -> None:
    assert zero_concentrated(TrainingPlan(1000, Sampling.POISSON, 1e-5, 10, 5), 1.0) is None
