"""zCDP: the concentrated-privacy statement of Gaussian releases that no sampling amplifies.

What enters: a plan and a noise multiplier. What leaves: ρ of one release and of the run, and the ε
that the simple conversion gives. It is always above the ε of the accountants, and is printed
because papers state it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

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
