"""Recompute an upper bound of the ε of a run, whichever accountant a certificate names.

Input: the noise multiplier σ = s/Δ of one release, with Δ for the given relation (G for add-remove
and zero-out, 2G for replace-one), and how batches are drawn. Output: an ε, or None if none is
recomputed. A run is accounted as `releases` Gaussian releases:

1. no amplification (full batches; disjoint batches, where `releases` counts those that one example
   can enter): one Gaussian release of shift √T/σ, exactly;
2. Poisson samples: discrete pairs and their convolution, or RDP if that fails;
3. balls in bins (`releases` counts epochs): discrete pairs, one for each epoch;
4. samples of fixed size under replace-one: RDP.

Each method is in its own file, which is loaded only when needed.
"""

import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Final

from lipcert.core.certificate import PrivacyClaim
from lipcert.core.ledger.run import Run

_RELATIONS: Final = frozenset({"add-remove", "zero-out", "replace-one"})
_UNAMPLIFIED: Final = frozenset({"shuffle", "full-batch"})
_SAMPLED: Final = frozenset({"poisson", "without-replacement"})
_REFUSED: Final = frozenset(
    {
        ("shuffle", "add-remove"),
        ("balls-in-bins", "replace-one"),
        ("without-replacement", "add-remove"),
        ("without-replacement", "zero-out"),
    }
)
_MOST_RELEASES: Final = 1 << 28
_LEAST_MULTIPLIER: Final = 2.0**-64


def epsilon_upper(  # noqa: PLR0917
    sampling: str, multiplier: float, rate: Fraction, releases: int, delta: Fraction, relation: str
) -> float | None:
    """Return ε such that the run is (ε, δ)-DP under the relation; None if it is not recomputed.

    Hypotheses: `multiplier` is at most σ; batches are drawn as stated and are secret; releases may
    depend on earlier ones.
    """
    known = relation in _RELATIONS and 0 < rate <= 1 and 0 < delta < 1
    if not (known and multiplier >= _LEAST_MULTIPLIER and 1 <= releases <= _MOST_RELEASES):
        return None
    if multiplier == math.inf:
        return 0.0
    if (sampling, relation) in _REFUSED:
        return None
    if sampling in _UNAMPLIFIED or (sampling in _SAMPLED and rate == 1):
        from lipcert.core.accounting.gaussian import gaussian_epsilon  # noqa: PLC0415

        return gaussian_epsilon(multiplier, releases, delta)
    if sampling == "balls-in-bins":
        from lipcert.core.accounting.allocated import allocated_epsilon  # noqa: PLC0415

        return allocated_epsilon(multiplier, math.ceil(1 / rate), releases, delta)
    if sampling == "without-replacement":
        from lipcert.core.accounting.renyi import without_replacement_epsilon  # noqa: PLC0415

        return without_replacement_epsilon(multiplier, rate, releases, delta)
    if sampling != "poisson":
        return None
    from lipcert.core.accounting.poisson import poisson_epsilon  # noqa: PLC0415

    replaced = relation == "replace-one"
    found = poisson_epsilon(multiplier, rate, releases, delta, replaced=replaced)
    if found is not None or replaced:
        return found
    from lipcert.core.accounting.renyi import poisson_renyi_epsilon  # noqa: PLC0415

    return poisson_renyi_epsilon(multiplier, rate, releases, delta)


def derived_epsilon(claim: PrivacyClaim, run: Run, multiplier: float, relation: str) -> float:
    """Return an upper bound of the ε of the run; inf if none is derived.

    `multiplier` is at most that of every release. The groups of a step are released from one
    sample, as one Gaussian mechanism. If an example enters one batch of an epoch, its
    participations are counted instead of steps.
    """
    releases = run.participations if run.is_by_epoch else run.steps
    rate = Fraction(run.batch_size, run.dataset_size)
    found = epsilon_upper(run.scheme, multiplier, rate, releases, claim.delta, relation)
    return math.inf if found is None else found


def epsilon_faults(
    claim: PrivacyClaim, run: Run, multiplier: float, relation: str
) -> Iterator[str]:
    """Yield what is wrong with the claimed ε of a run of releases with this noise multiplier."""
    if not 0 < claim.delta < 1 or claim.status not in {"recomputed", "declared"}:
        yield "delta is not between 0 and 1, or the status of epsilon is not known"
        return
    derived = derived_epsilon(claim, run, multiplier, relation)
    if claim.status == "recomputed" and not claim.epsilon >= derived:
        yield f"epsilon is claimed to be {claim.epsilon!r}, {derived!r} is derived"
