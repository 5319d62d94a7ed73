"""Spending: the ε of the run that a certificate describes, by the checker's own accounting."""

from __future__ import annotations

import math
from fractions import Fraction

from lipcert.core.accounting.account import epsilon_upper
from lipcert.core.certificate import PrivacyClaim
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
