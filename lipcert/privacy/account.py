"""Account: the privacy of a planned run as one record, from which every report is printed.

What enters: a plan, a noise multiplier, how the noise is really set. What leaves: the ε of the run
with what it is to be compared with, and all findings. Invariant: `epsilon` is that of the run as it
is, never of the run as it was claimed to be; None always has an LC407. The
concentrated-privacy statement (zCDP) of releases that no sampling amplifies, ρ of one release and
of the run, gives an ε by the simple conversion that is always above that of the accountants; it is
printed because papers state it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import final

from lipcert.diagnostics import Diagnostic, Level
from lipcert.privacy.accounting import Accountant, accountants, choose, epsilon
from lipcert.privacy.declaration import Declaration, lints
from lipcert.privacy.plan import Sampling, TrainingPlan
from lipcert.upper import Lower, Upper


@final
@dataclass(frozen=True, slots=True)
class ZeroConcentrated:
    """ρ of one release, ρ of the run, and the ε it converts to at the δ of the plan."""

    rho_per_release: Upper
    rho: Upper
    epsilon: Upper


def zero_concentrated(plan: TrainingPlan, noise_multiplier: float) -> ZeroConcentrated | None:
    """Returns ρ-zCDP of the run and ε = ρ + 2√(ρ ln(1/δ)); None where batches are drawn
    anew for every step, or where ε overflows.

    Hypotheses: those of `accounting.epsilon`.
    Proof: a Gaussian release of multiplier σ is 1/(2σ²)-zCDP; K groups with noise σ_k·Δ_k are
    Σ 1/(2σ_k²) = 1/(2σ²) for the joint σ; the releases that one example enters add up, the
    others, on disjoint batches, cost nothing (parallel composition). Conversion: Bun and Steinke,
    Concentrated differential privacy, TCC 2016, propositions 1.3 and 1.6. −ln δ is the
    library's value, which is within one unit in the last place, raised by 2^−52 of itself.
    """
    if plan.sampling not in {Sampling.SHUFFLE, Sampling.FULL_BATCH}:
        return None
    sigma = Lower(noise_multiplier)
    each = Upper(0.5).over(sigma * sigma)
    rho = Upper(float(plan.participations)) * each
    surprise = Upper(-math.log(plan.delta)) * Upper(1.0 + 2.0**-52)
    converted = rho + Upper(2.0) * (rho * surprise).sqrt()
    return ZeroConcentrated(each, rho, converted) if converted.is_finite else None


@final
@dataclass(frozen=True, slots=True)
class Estimate:
    """The ε that one accountant gives; None: no finite one."""

    accountant: Accountant
    epsilon: float | None


@final
@dataclass(frozen=True, slots=True)
class Account:
    """The run is (epsilon, plan.delta)-DP.

    noise_multiplier: the joint one, of the whole release under the plan's relation; None where
        the noise hides nothing.
    estimates: by every sound accountant, the tightest first.
    poisson_epsilon: for comparison, what the same noise would cost with Poisson batches, where the
        batches are of another kind.
    claimed_epsilon: what the declared accounting would say.
    """

    plan: TrainingPlan
    declaration: Declaration
    noise_multiplier: float | None
    accountant: Accountant
    epsilon: float | None
    estimates: tuple[Estimate, ...]
    poisson_epsilon: float | None
    zcdp: ZeroConcentrated | None
    claimed_epsilon: float | None
    diagnostics: tuple[Diagnostic, ...]


def account_for(
    plan: TrainingPlan,
    noise_multiplier: float,
    accountant: Accountant | None = None,
    declaration: Declaration | None = None,
) -> Account:
    """The account of a run whose noise is set by `noise_multiplier` as declared.

    Where no accountant is asked for, the first with a finite answer is taken: e^ε overflows in
    PLD above ε = 700.
    """
    declared = declaration or Declaration()
    chosen = choose(plan, accountant)
    effective = declared.effective_multiplier(plan, noise_multiplier)
    sigma = effective.value if effective is not None and effective.value > 0.0 else None
    estimates = tuple(
        Estimate(way, None if sigma is None else _finite(epsilon(plan, sigma, way)))
        for way in accountants(plan)
    )
    best = next(
        (
            estimate
            for estimate in estimates
            if estimate.epsilon is not None and accountant in {None, estimate.accountant}
        ),
        Estimate(chosen, None),
    )
    return Account(
        plan=plan,
        declaration=declared,
        noise_multiplier=sigma,
        accountant=best.accountant,
        epsilon=best.epsilon,
        estimates=estimates,
        poisson_epsilon=None if sigma is None else _poisson_epsilon(plan, sigma),
        zcdp=None if sigma is None else zero_concentrated(plan, sigma),
        claimed_epsilon=_finite(declared.claimed_epsilon(plan, noise_multiplier)),
        diagnostics=(*lints(plan, declared), *_unbounded(best.epsilon)),
    )


def _poisson_epsilon(plan: TrainingPlan, sigma: float) -> float | None:
    """The same number of steps with Poisson batches, by the tightest accountant."""
    if plan.sampling in {Sampling.POISSON, Sampling.FULL_BATCH}:
        return None
    poisson = replace(plan.with_steps(plan.releases), sampling=Sampling.POISSON)
    return _finite(epsilon(poisson, sigma)) if accountants(poisson) else None


def _unbounded(found: float | None) -> tuple[Diagnostic, ...]:
    if found is not None:
        return ()
    return (
        Diagnostic(
            "LC407",
            Level.ERROR,
            "",
            "the run has no finite ε at this δ",
            "repair what the other findings name, or raise the noise multiplier",
        ),
    )


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
