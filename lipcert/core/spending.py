"""Spending: the ε of the run that a certificate describes, by the checker's own accounting."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction

from lipcert.core.accounting.account import epsilon_upper
from lipcert.core.certificate import GroupClaim, PrivacyClaim
from lipcert.core.claims import joint_multiplier
from lipcert.core.ledger.premises import Premises
from lipcert.core.ledger.run import Run


def derived_epsilon(claim: PrivacyClaim, run: Run, multiplier: float, relation: str) -> float:
    """≥ the ε of a run of releases with this noise multiplier at most; inf: none is derived.

    The groups of a step are released from one sample, as one Gaussian mechanism. Where an example
    enters one batch of an epoch, its participations are what counts.
    """
    releases = run.participations if run.is_by_epoch else run.steps
    rate = Fraction(run.batch_size, run.dataset_size)
    found = epsilon_upper(run.scheme, multiplier, rate, releases, claim.delta, relation)
    return math.inf if found is None else found


def epsilon_faults(
    claim: PrivacyClaim, run: Run, premises: Premises, groups: tuple[GroupClaim, ...]
) -> Iterator[str]:
    """What is wrong with the ε that is claimed of a run that releases these groups."""
    if not 0 < claim.delta < 1 or claim.status not in {"recomputed", "declared"}:
        yield "delta is not between 0 and 1, or the status of epsilon is not known"
        return
    multiplier = joint_multiplier(groups)
    if premises.stepwise is not None:
        multiplier = min(multiplier, premises.stepwise)
    derived = derived_epsilon(claim, run, multiplier, premises.relation)
    if claim.status == "recomputed" and not claim.epsilon >= derived:
        yield f"epsilon is claimed to be {claim.epsilon!r}, {derived!r} is derived"
