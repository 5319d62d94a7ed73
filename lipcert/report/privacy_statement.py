"""Privacy in words: what is promised, under which assumptions, as pairs (topic, sentence).

What enters: an account. What leaves: plain sentences, shared by the text report and JSON. A
displayed ε is never below the ε.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from lipcert.privacy.account import Account
from lipcert.privacy.accounting import Accountant
from lipcert.privacy.declaration import Divisor
from lipcert.privacy.noise import Neighbouring
from lipcert.privacy.plan import Sampling, SizeSource
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
_SIZE: Final = {
    SizeSource.DECLARED: "declared and public, as the rate and the number of steps are",
    SizeSource.DATA: "counted in the private data set",
}
_SAMPLING: Final = {
    Sampling.POISSON: "Poisson: every example alone with probability {batch} of {size}, anew for "
    "every step",
    Sampling.WITHOUT_REPLACEMENT: "a uniform subset of exactly {batch} of {size} examples, anew "
    "for every step",
    Sampling.SHUFFLE: "disjoint batches of {batch} in every epoch, shuffled or in fixed order: an "
    "example enters one release per epoch, and no sampling amplifies",
    Sampling.FULL_BATCH: "none: every step sees all examples",
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
    divisor = f"a mean divides by the public constant {plan.batch}; a sum by nothing"
    if account.declaration.divisor is Divisor.BATCH_SIZE:
        divisor = "a mean divides by the size of the batch at hand"
    steps = f"{plan.releases} steps"
    if plan.sampling is Sampling.SHUFFLE:
        steps += f"; one example takes part in {plan.participations} of them at most"
    secret = plan.sampling in {Sampling.POISSON, Sampling.WITHOUT_REPLACEMENT}
    return [
        ("unit", f"one of N = {plan.dataset_size} examples, {_SIZE[plan.dataset_size_from]}"),
        ("neighbours", f"one example is {_CHANGE[plan.neighbours]} ({plan.neighbours.value})"),
        ("sampling", _SAMPLING[plan.sampling].format(batch=plan.batch, size=plan.dataset_size)),
        ("divisor", divisor),
        ("noise", _noise_text(account)),
        ("releases", steps),
        ("accountant", f"{_ACCOUNTANT[account.accountant]}, by dp-accounting"),
        (
            "assumed",
            "every release has sensitivity Δ or less; noise is drawn exactly and independently; "
            f"{'batches stay secret; ' if secret else ''}"
            "nothing else about the data is published (selection of hyperparameters included)",
        ),
    ]


def comparison_rows(account: Account) -> list[tuple[str, str]]:
    """ε by other means, the claim included."""
    return list(_other_means(account))


def _other_means(account: Account) -> Iterator[tuple[str, str]]:
    for estimate in account.estimates:
        if estimate.accountant is not account.accountant and estimate.epsilon is not None:
            yield f"ε by {_ACCOUNTANT[estimate.accountant]}", at_most(estimate.epsilon)
    if account.poisson_epsilon is not None:
        yield (
            "ε if batches were Poisson samples",
            f"{at_most(account.poisson_epsilon)}, which this run may not claim: its batches are "
            f"drawn by {account.plan.sampling.value}",
        )
    if account.zcdp is not None:
        once, rho, epsilon = (
            at_most(up.value)
            for up in (account.zcdp.rho_per_release, account.zcdp.rho, account.zcdp.epsilon)
        )
        text = f"ρ = {once} per release, {rho} in all; by simple conversion ε = {epsilon}"
        yield "zCDP", text
    if account.claimed_epsilon is not None:
        yield "ε as claimed", at_most(account.claimed_epsilon)


def _noise_text(account: Account) -> str:
    sigma = account.noise_multiplier
    if sigma is None:
        return "no multiplier describes it"
    delta = "2G" if account.plan.neighbours is Neighbouring.REPLACE_ONE else "G"
    return (
        f"Gaussian, joint multiplier σ = {sigma:.12g}: deviation σ·Δ on a release of "
        f"sensitivity Δ = {delta} (sum) for gradients of norm G"
    )
