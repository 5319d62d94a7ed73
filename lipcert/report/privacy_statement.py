"""Privacy in words: what is promised, under which assumptions, as pairs (topic, sentence).

What enters: an account. What leaves: plain sentences, shared by the text report and JSON. A
displayed ε is never below the ε.
"""

from __future__ import annotations

from typing import Final

from lipcert.privacy.account import Account
from lipcert.privacy.accounting import Accountant
from lipcert.privacy.declaration import Divisor
from lipcert.privacy.noise import Neighbouring
from lipcert.privacy.plan import Sampling, SizeSource, TrainingPlan
from lipcert.report.numbers import at_most

_CHANGE: Final = {
    Neighbouring.ADD_OR_REMOVE_ONE: "added or removed",
    Neighbouring.REPLACE_ONE: "replaced by any other",
    Neighbouring.ZERO_OUT: "left out, its place in the batches kept empty",
}
_ACCOUNTANT: Final = {
    Accountant.PLD: "privacy loss distributions",
    Accountant.RDP: "Rényi divergences",
}


def privacy_promise(account: Account) -> str:
    """The answer in one sentence."""
    if account.epsilon is None:
        return "No finite ε: the findings say why."
    return (
        f"The run is (ε, δ)-differentially private with ε = {at_most(account.epsilon)} and "
        f"δ = {account.plan.delta:g}, if the assumptions hold."
    )


def statement_rows(account: Account) -> list[tuple[str, str]]:
    """Everything the ε is conditional on."""
    plan = account.plan
    sigma = account.noise_multiplier
    noise = "no multiplier describes it" if sigma is None else _noise_text(account, sigma)
    return [
        ("unit", _unit_text(plan)),
        ("neighbours", f"one example is {_CHANGE[plan.neighbours]} ({plan.neighbours.value})"),
        ("sampling", _sampling_text(account)),
        ("divisor", _divisor_text(account)),
        ("noise", noise),
        ("releases", _length_text(account)),
        ("accountant", f"{_ACCOUNTANT[account.accountant]}, by dp-accounting"),
        (
            "assumed",
            "every release has sensitivity Δ or less; noise is drawn exactly and independently; "
            + (
                "batches stay secret; "
                if plan.sampling in {Sampling.POISSON, Sampling.WITHOUT_REPLACEMENT}
                else ""
            )
            + "nothing else about the data is published (selection of hyperparameters included)",
        ),
    ]


def comparison_rows(account: Account) -> list[tuple[str, str]]:
    """ε by other means, the claim included."""
    rows = [
        (f"ε by {_ACCOUNTANT[estimate.accountant]}", at_most(estimate.epsilon))
        for estimate in account.estimates
        if estimate.accountant is not account.accountant and estimate.epsilon is not None
    ]
    if account.poisson_epsilon is not None:
        rows.append(
            (
                "ε if batches were Poisson samples",
                f"{at_most(account.poisson_epsilon)}, which this run may not claim: its batches "
                f"are drawn by {account.plan.sampling.value}",
            )
        )
    if account.zcdp is not None:
        rows.append(
            (
                "zCDP",
                f"ρ = {at_most(account.zcdp.rho_per_release.value)} per release, "
                f"{at_most(account.zcdp.rho.value)} in all; by simple conversion "
                f"ε = {at_most(account.zcdp.epsilon.value)}",
            )
        )
    if account.claimed_epsilon is not None:
        rows.append(("ε as claimed", at_most(account.claimed_epsilon)))
    return rows


def _noise_text(account: Account, sigma: float) -> str:
    delta = "2G" if account.plan.neighbours is Neighbouring.REPLACE_ONE else "G"
    return (
        f"Gaussian, joint multiplier σ = {sigma:.12g}: deviation σ·Δ on a release of "
        f"sensitivity Δ = {delta} (sum) for gradients of norm G"
    )


def _unit_text(plan: TrainingPlan) -> str:
    where = {
        SizeSource.DECLARED: "declared and public, as the rate and the number of steps are",
        SizeSource.DATA: "counted in the private data set",
    }
    return f"one of N = {plan.dataset_size} examples, {where[plan.dataset_size_from]}"


def _divisor_text(account: Account) -> str:
    if account.declaration.divisor is Divisor.BATCH_SIZE:
        return "a mean divides by the size of the batch at hand"
    return f"a mean divides by the public constant {account.plan.batch}; a sum by nothing"


def _sampling_text(account: Account) -> str:
    plan = account.plan
    rate = f"{plan.batch} of {plan.dataset_size}"
    match plan.sampling:
        case Sampling.POISSON:
            return f"Poisson: every example alone with probability {rate}, anew for every step"
        case Sampling.WITHOUT_REPLACEMENT:
            return f"a uniform subset of exactly {rate} examples, anew for every step"
        case Sampling.SHUFFLE:
            return (
                f"disjoint batches of {plan.batch} in every epoch, shuffled or in fixed order: an "
                "example enters one release per epoch, and no sampling amplifies"
            )
        case Sampling.FULL_BATCH:
            return "none: every step sees all examples"


def _length_text(account: Account) -> str:
    plan = account.plan
    steps = f"{plan.releases} steps"
    if plan.sampling is Sampling.SHUFFLE:
        return f"{steps}; one example takes part in {plan.participations} of them at most"
    return steps
