"""Accounts: the ε of the run as it is, and the findings on the run as it was claimed."""

import math

import pytest

from lipcert.core.claims import effective_multiplier
from lipcert.diagnostics import Level
from lipcert.errors import UsageError
from lipcert.privacy.account import Composition, Declaration, Divisor, account_for
from lipcert.privacy.accounting import Accountant, epsilon
from lipcert.privacy.noise import Group, Neighbouring, Reduction
from lipcert.privacy.plan import Sampling, TrainingPlan

ADD_REMOVE = Neighbouring.ADD_OR_REMOVE_ONE
REPLACE = Neighbouring.REPLACE_ONE


def plan(sampling=Sampling.POISSON, neighbours=ADD_REMOVE, delta=1e-5) -> TrainingPlan:
    batch = None if sampling is Sampling.FULL_BATCH else 50
    return TrainingPlan(1000, sampling, delta, batch, 100, neighbours=neighbours)


def codes(account) -> list[tuple[str, Level]]:
    return [(found.code, found.level) for found in account.diagnostics]


def test_a_correct_run_has_no_findings() -> None:
    account = account_for(plan(), 1.5)
    assert account.diagnostics == ()
    assert account.epsilon == epsilon(plan(), 1.5)
    assert account.accountant == Accountant.PLD.value
    assert list(account.estimates) == [way.value for way in Accountant]
    assert (account.claimed_epsilon, account.poisson_epsilon, account.zcdp) == (None, None, None)


def test_an_accountant_may_be_chosen() -> None:
    account = account_for(plan(), 1.5, Accountant.RDP)
    assert account.epsilon == epsilon(plan(), 1.5, Accountant.RDP)


def test_shuffled_batches_are_shown_beside_poisson() -> None:
    shuffled = plan(Sampling.SHUFFLE, REPLACE)
    account = account_for(shuffled, 1.5)
    assert account.epsilon == epsilon(shuffled, 1.5)
    assert account.poisson_epsilon == epsilon(plan(Sampling.POISSON, REPLACE), 1.5)
    assert account.poisson_epsilon < account.epsilon
    assert account.zcdp.epsilon > account.epsilon


def test_lc401_a_random_divisor_has_no_epsilon() -> None:
    random = Declaration(divisor=Divisor.BATCH_SIZE)
    account = account_for(plan(), 1.5, declaration=random)
    assert account.epsilon is None
    assert account.noise_multiplier is None
    assert codes(account) == [("LC401", Level.ERROR), ("LC407", Level.ERROR)]
    whole = account_for(plan(Sampling.FULL_BATCH), 1.5, declaration=random)
    assert whole.epsilon is None


@pytest.mark.parametrize("sampling", [Sampling.SHUFFLE, Sampling.FULL_BATCH])
def test_a_divisor_that_is_the_same_for_both_data_sets_tells_nothing(sampling) -> None:
    run = plan(sampling, REPLACE)
    account = account_for(run, 1.5, declaration=Declaration(divisor=Divisor.BATCH_SIZE))
    assert account.epsilon == epsilon(run, 1.5)
    assert account.diagnostics == ()


PLAIN, REPLACED, SHUFFLED = plan(), plan(neighbours=REPLACE), plan(Sampling.SHUFFLE, REPLACE)
ONCE, SEPARATE, MEAN = Composition.ONCE, Composition.SEPARATE, Reduction.MEAN
DECLARED = [
    (SHUFFLED, {"claimed_sampling": Sampling.POISSON}, "LC402 error", 1.5, REPLACED),
    (PLAIN, {"claimed_sampling": Sampling.POISSON}, "", 1.5, PLAIN),
    (PLAIN, {"groups": 4, "composition": ONCE}, "LC403 error", 0.75, PLAIN),
    (PLAIN, {"groups": 4, "composition": SEPARATE}, "LC403 error", 0.75, PLAIN.with_steps(400)),
    (REPLACED, {"sensitivity_for": ADD_REMOVE}, "LC404 error", 0.75, PLAIN),
    (SHUFFLED, {"sensitivity_for": ADD_REMOVE}, "LC404 error", 0.75, None),  # of no accountant
    (PLAIN, {"sensitivity_for": REPLACE}, "LC404 info", 3.0, REPLACED),
    (PLAIN, {"sensitivity_for": Neighbouring.ZERO_OUT}, "", 1.5, PLAIN),
    (PLAIN, {"sensitivity_of": MEAN}, "LC406 error", 0.03, PLAIN),
    (PLAIN, {"noise_on": MEAN}, "LC406 info", 75.0, PLAIN),
    (PLAIN, {"sensitivity_of": MEAN, "noise_on": MEAN}, "", 1.5, PLAIN),
]
"""run, what is declared, the finding, σ as it is, and the run that is claimed to have σ = 1.5"""


@pytest.mark.parametrize(("run", "declared", "finding", "sigma", "claimed"), DECLARED)
def test_what_is_declared_is_held_against_the_run(run, declared, finding, sigma, claimed) -> None:
    account = account_for(run, 1.5, declaration=Declaration(**declared))
    assert [f"{code} {level.value}" for code, level in codes(account)] == [finding] * bool(finding)
    assert account.noise_multiplier == pytest.approx(sigma, rel=1e-12)
    assert account.epsilon == epsilon(run, account.noise_multiplier)
    assert account.claimed_epsilon == (claimed and epsilon(claimed, 1.5))
    assert claimed is None or (account.claimed_epsilon < account.epsilon) == ("error" in finding)
    assert "LC402" not in finding or account.poisson_epsilon == account.claimed_epsilon


def test_groups_that_are_composed_jointly_have_the_joint_multiplier() -> None:
    account = account_for(plan(), 1.5, declaration=Declaration(groups=3))
    assert account.diagnostics == ()
    groups = [Group(str(k), 1, 0.1 * (k + 1)) for k in range(3)]
    moved = [group.sensitivity for group in groups]
    joint = effective_multiplier(moved, [1.5 * delta for delta in moved])
    assert account.noise_multiplier == pytest.approx(joint, rel=1e-14)
    assert account.noise_multiplier <= 1.5 / math.sqrt(3) * (1 + 1e-15)
    poisson = account_for(SHUFFLED, 1.5, declaration=Declaration(3, claimed_sampling="poisson"))
    assert poisson.claimed_epsilon == pytest.approx(epsilon(REPLACED, joint), rel=1e-9)


@pytest.mark.parametrize(("delta", "expected"), [(1e-3, True), (0.9e-3, False)])
def test_lc405_delta_is_to_be_below_one_in_n(delta, expected) -> None:
    found = codes(account_for(plan(delta=delta), 1.0))
    assert found == ([("LC405", Level.WARNING)] if expected else [])


def test_no_finite_epsilon_is_said() -> None:
    whole = TrainingPlan(1000, Sampling.FULL_BATCH, 1e-12, steps=1)  # RDP alone
    account = account_for(whole, 1e-200)
    assert account.epsilon is None
    assert codes(account) == [("LC407", Level.ERROR)]


def test_where_pld_overflows_rdp_answers() -> None:
    run = TrainingPlan(3932, Sampling.POISSON, 7e-6, 1915, 16510)
    account = account_for(run, 1.8)
    assert account.accountant == Accountant.RDP.value
    assert account.epsilon == epsilon(run, 1.8, Accountant.RDP) > 700.0
    assert account_for(run, 1.8, Accountant.PLD).epsilon is None


def test_a_number_of_groups_that_is_none_is_refused() -> None:
    with pytest.raises(UsageError, match="noised-groups"):
        Declaration(groups=0)
