"""Calibration: which σ, or how many steps, a target ε allows; and curves of ε.

What enters: a plan and a target. What leaves: a σ or a number of steps whose own ε was evaluated
and found at most the target. Invariant: nothing is returned by interpolation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal
from typing import Final, final

from lipcert.errors import NoVerdictError, UsageError
from lipcert.privacy.accounting import Accountant, epsilon
from lipcert.privacy.plan import TrainingPlan

_TOLERANCE: Final = 1e-3
_LEAST_NOISE: Final = 2.0**-4
_MOST_NOISE: Final = 2.0**40
_MOST_STEPS: Final = 2**40


@final
@dataclass(frozen=True, slots=True)
class CurvePoint:
    """ε of a run of `steps` steps at `noise_multiplier`."""

    noise_multiplier: float
    steps: int
    epsilon: float


def noise_for_epsilon(
    plan: TrainingPlan, target: float, accountant: Accountant | None = None
) -> CurvePoint:
    """Returns a σ with ε(σ) ≤ target, and ε(σ) ≥ 0.999·target where the target binds.

    Proof: the upper end of the bracket is always a σ that was evaluated and found to meet the
    target. ε falls continuously in σ, so the search ends within 0.1 %; σ is not sought below 1/16.
    """
    _check_target(target)
    high = 1.0
    found = epsilon(plan, high, accountant)
    while found > target:
        high *= 2.0
        if high > _MOST_NOISE:
            raise NoVerdictError(
                f"target-epsilon: no noise multiplier up to 2^40 gives ε = {target:g}; "
                "the accountant is too coarse there; give a larger ε or δ"
            )
        found = epsilon(plan, high, accountant)
    low = high / 2.0
    while (above := epsilon(plan, low, accountant)) <= target:
        high, found, low = low, above, low / 2.0
        if low < _LEAST_NOISE:
            return CurvePoint(high, plan.releases, found)
    while found < (1.0 - _TOLERANCE) * target and high > low * (1.0 + 1e-9):
        part = _part(above, found, target)
        middle = low ** (1.0 - part) * high**part
        there = epsilon(plan, middle, accountant)
        if there <= target:
            high, found = middle, there
        else:
            low, above = middle, there
    written = _written(high)
    there = epsilon(plan, written, accountant)
    if there <= target:
        high, found = written, there
    return CurvePoint(high, plan.releases, found)


def _written(noise_multiplier: float) -> float:
    """The next number of six significant digits: what people copy from a report."""
    exact = Decimal(noise_multiplier)
    step = Decimal(1).scaleb(exact.adjusted() - 5)
    return float(exact.quantize(step, rounding=ROUND_CEILING))


def steps_for_epsilon(
    plan: TrainingPlan,
    noise_multiplier: float,
    target: float,
    accountant: Accountant | None = None,
) -> CurvePoint:
    """Returns the largest number of steps T with ε(T) ≤ target; the plan's own is not used.

    Proof: ε grows with T (more is released), and ε(T) was evaluated. T is not sought above 2^40.
    """
    _check_target(target)
    low, found = 0, 0.0
    high = 1
    while (there := epsilon(plan.with_steps(high), noise_multiplier, accountant)) <= target:
        low, found, high = high, there, 2 * high
        if high > _MOST_STEPS:
            return CurvePoint(noise_multiplier, low, found)
    while high - low > 1:
        middle = (low + high) // 2
        there = epsilon(plan.with_steps(middle), noise_multiplier, accountant)
        if there <= target:
            low, found = middle, there
        else:
            high = middle
    if low == 0:
        raise NoVerdictError(
            f"target-epsilon: one step at noise multiplier {noise_multiplier:g} already costs "
            f"more than ε = {target:g}; add noise or sample less"
        )
    return CurvePoint(noise_multiplier, low, found)


def epsilon_over_steps(
    plan: TrainingPlan,
    noise_multiplier: float,
    points: int,
    accountant: Accountant | None = None,
) -> tuple[CurvePoint, ...]:
    """ε(t) at `points` numbers of steps, evenly up to the plan itself."""
    last = plan.releases
    earlier = sorted({max(1, round(last * k / points)) for k in range(1, points)} - {last})
    runs = [*(plan.with_steps(t) for t in earlier), plan]
    return tuple(
        CurvePoint(noise_multiplier, run.releases, epsilon(run, noise_multiplier, accountant))
        for run in runs
    )


def epsilon_over_noise(
    plan: TrainingPlan, noise_multipliers: Sequence[float], accountant: Accountant | None = None
) -> tuple[CurvePoint, ...]:
    """ε(σ) at the given multipliers."""
    return tuple(
        CurvePoint(sigma, plan.releases, epsilon(plan, sigma, accountant))
        for sigma in noise_multipliers
    )


def _part(above: float, below: float, target: float) -> float:
    """Where to divide a bracket of σ on a log scale: where a power law would meet the target.

    Always a proper part of it, so that the bracket shrinks.
    """
    if not (math.isfinite(above) and below > 0.0):
        return 0.5
    aim = (1.0 - _TOLERANCE / 2.0) * target
    return min(max(math.log(above / aim) / math.log(above / below), 0.1), 0.9)


def _check_target(target: float) -> None:
    if not (math.isfinite(target) and target > 0.0):
        raise UsageError(f"target-epsilon: {target!r} is not a positive finite number")
