"""Targets are met by what was evaluated, within 0.1 %."""

import math

import pytest
from scipy.stats import norm

from lipcert.errors import NoVerdictError, UsageError
from lipcert.privacy import accounting
from lipcert.privacy.accounting import (
    Accountant,
    epsilon,
    epsilon_over_noise,
    epsilon_over_steps,
    noise_for_epsilon,
    steps_for_epsilon,
)
from lipcert.privacy.noise import Neighbouring
from lipcert.privacy.plan import Sampling, TrainingPlan

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
    [(POISSON, 0.3), (POISSON, 5.0), (WHOLE, 0.3), (SHUFFLED, 40.0), (FIXED, 2.0)],
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


@pytest.mark.parametrize("target", [0.0, -1.0, math.nan, math.inf])
def test_targets_that_are_none_are_refused(target) -> None:
    with pytest.raises(UsageError, match="target-epsilon"):
        noise_for_epsilon(POISSON, target)
    with pytest.raises(UsageError, match="target-epsilon"):
        steps_for_epsilon(POISSON, 1.0, target)


def test_a_target_that_never_binds_gets_the_least_noise_that_is_sought() -> None:
    assert noise_for_epsilon(WHOLE, 1e4, Accountant.RDP).noise_multiplier == 2.0**-4


def test_curves_end_at_the_plan_and_are_monotone() -> None:
    points = epsilon_over_steps(SHUFFLED, 4.0, 8)
    assert points[-1].steps == SHUFFLED.releases
    assert points[-1].epsilon == epsilon(SHUFFLED, 4.0)
    assert len(epsilon_over_steps(POISSON.with_steps(3), 4.0, 8)) == 3
    steps = [point.epsilon for point in epsilon_over_steps(POISSON, 4.0, 8)]
    assert steps == sorted(steps)
    noise = [point.epsilon for point in epsilon_over_noise(POISSON, [1.0, 2.0, 4.0])]
    assert noise == sorted(noise, reverse=True)
