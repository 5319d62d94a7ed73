"""Accounting: the ε of a planned run, by the dp-accounting library; for balls in bins by the core.

The noise multiplier of one release is σ = s/Δ, where Δ is the sensitivity under the neighbouring
relation *of the plan* (G for add-remove and zero-out, 2G for replace-one). Invariant: this is the
only place that turns σ into an event of dp-accounting. The library measures a Gaussian event in two
ways, see `_event`.

If a σ or a number of steps is returned for a target ε, its own ε was evaluated and found to be at
most the target. Nothing is interpolated, including curves of ε.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, Decimal
from enum import Enum
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np

from lipcert.core.accounting.account import epsilon_upper
from lipcert.errors import NoVerdictError, UsageError
from lipcert.privacy.noise import Neighbouring
from lipcert.privacy.plan import Sampling, TrainingPlan
from lipcert.privacy.selection import Law, selected_epsilon
from lipcert.settings.values import check_positive
from lipcert.text.numbers import finite

if TYPE_CHECKING:
    from dp_accounting import DpEvent, NeighboringRelation
    from dp_accounting.pld import PLDAccountant

_LEAST_DELTA: Final = 1e-8
_COARSEST: Final = 1e-3
_REMEMBERED: Final = 1000
_GRID: Final = 2e5
_TAIL: Final = 10.0  # e^-50, the mass that dp-accounting cuts off, lies 9.9 deviations out
_TOLERANCE: Final = 1e-3
_LEAST_NOISE: Final = 2.0**-4
_MOST_NOISE: Final = 2.0**40
_MOST_STEPS: Final = 2**40
_PROFILE: Final = 28


class Accountant(Enum):
    """How privacy loss is tracked over the run."""

    PLD = "pld"
    """Privacy loss distributions on a grid, rounded pessimistically."""
    RDP = "rdp"
    """Rényi divergences at a set of orders."""


def accountant_named(name: str | None) -> Accountant | None:
    """Return the accountant of that name; None (the tightest sound one) for "auto" or no name."""
    return None if name in {None, "auto"} else Accountant(name)


def accountants(plan: TrainingPlan) -> tuple[Accountant, ...]:
    """Return the accountants that are sound for a plan, the tightest first.

    Below δ = 1e-8 the rounding of the Fourier transforms inside PLD (1e-13 and less of
    probability) is no longer small compared with δ. dp-accounting has no PLD for samples of fixed
    size, and no RDP for Poisson samples under replace-one. Balls in bins have the discrete pairs of
    the core, for every δ.
    """
    if plan.sampling is Sampling.BALLS_IN_BINS:
        return (Accountant.PLD,)
    supported = []
    if plan.sampling is not Sampling.WITHOUT_REPLACEMENT and plan.delta >= _LEAST_DELTA:
        supported.append(Accountant.PLD)
    if (plan.sampling, plan.neighbours) != (Sampling.POISSON, Neighbouring.REPLACE_ONE):
        supported.append(Accountant.RDP)
    return tuple(supported)


def choose(plan: TrainingPlan, wanted: Accountant | None = None) -> Accountant:
    """Return the wanted accountant, or the tightest sound one; UsageError if there is none."""
    supported = accountants(plan)
    if not supported:
        raise UsageError(
            f"delta: no accountant is sound for {plan.sampling.value} sampling under "
            f"{plan.neighbours.value} at δ = {plan.delta:g}; use δ ≥ {_LEAST_DELTA:g}"
        )
    if wanted is not None and wanted not in supported:
        raise UsageError(
            f"accountant: {wanted.value} has no sound answer for {plan.sampling.value} sampling "
            f"under {plan.neighbours.value} at δ = {plan.delta:g}; use {supported[0].value}"
        )
    return wanted or supported[0]


@lru_cache(maxsize=_REMEMBERED)  # a plan of one target is asked for more than once
def epsilon(
    plan: TrainingPlan, noise_multiplier: float, accountant: Accountant | None = None
) -> float:
    """Return ε such that the run is (ε, δ)-DP under the relation of the plan; inf: none is known.

    Hypotheses: noise N(0, s²I) with s ≥ σΔ on every release, of which one example moves the noised
    sum by at most Δ under the plan's relation (groups with own noise: their joint multiplier); the
    batches are drawn as the plan says and stay secret; the noise is exact.
    Proof: each release is a Gaussian mechanism on a sample. Poisson and full batches: dominated by
    the pair of `_event`, and domination composes adaptively (Zhu, Dong and Wang, Optimal
    accounting of differential privacy via characteristic function, AISTATS 2022, theorem 10).
    Without replacement: theorem 27 of Wang, Balle and Kasiviswanathan (Subsampled Rényi
    differential privacy and analytical moments accountant, AISTATS 2019). Shuffle: for every fixed
    split of the positions into batches the example enters `participations` releases, each a
    Gaussian mechanism of multiplier σ given the earlier ones, the rest depends on it through them
    alone; ε does not grow by mixing over splits that are the same for both data sets
    (convexity). No amplification is claimed. Balls in bins: `allocated_epsilon`. K trials are one
    run of K times as many releases: each may depend on all before it, and all may be published.
    """
    check_positive("noise-multiplier", noise_multiplier)
    chosen = choose(plan, accountant)
    if plan.sampling is Sampling.BALLS_IN_BINS:
        return _core_epsilon(plan, noise_multiplier)
    event = _event(plan, noise_multiplier, chosen)
    with _quiet():
        if chosen is Accountant.PLD:
            return _pld_epsilon(plan, event, _interval(plan, noise_multiplier))
        return _rdp_epsilon(plan, event)


def _event(plan: TrainingPlan, noise_multiplier: float, accountant: Accountant) -> DpEvent:
    """Return the run in the terms of dp-accounting 0.6.

    Its PLD of a Gaussian event of multiplier z compares, under replace-one, the means −1 and +1
    at standard deviation z: z is the noise per *bound of one gradient*, s/G = 2s/Δ = 2σ. Its RDP
    is α/(2z²) under every relation: there z is s/Δ = σ. Under add-remove and zero-out Δ = G, and
    both read σ. (Tests compare all of them with closed forms.)

    Poisson samples under replace-one, PLD: the pair (1−q)N(0)+qN(−1), (1−q)N(0)+qN(+1) at
    deviation z dominates every pair with means a, b, ‖a‖, ‖b‖ ≤ 1 in any dimension.
    Proof: given the rest of the sample, which is independent of the example, the release is, up to
    a common shift, (1−q)N(0)+qN(a) against (1−q)N(0)+qN(b) with identity covariance z². For α ≥ 1
    the hockey-stick divergence is q·E[(1 − w·e^X − v·e^Y)₊] with w = α, v = (1−q)(α−1)/q and
    e^X, e^Y the likelihood ratios of N(b) and N(0) to N(a): log-normal of mean 1, with
    Var X = ‖b−a‖²/z², Var Y = ‖a‖²/z², Cov = ⟨b−a, −a⟩/z². t ↦ (1−t)₊ is convex, so by Kahane's
    inequality the expectation grows with every entry of the covariance; these are at most 4/z²,
    1/z² and 2/z², attained together at b = −a, ‖a‖ = 1. For α < 1 swap the pair.
    """
    import dp_accounting as dp  # noqa: PLC0415  takes a second to import

    replace = plan.neighbours is Neighbouring.REPLACE_ONE and accountant is Accountant.PLD
    step: DpEvent = dp.GaussianDpEvent(2.0 * noise_multiplier if replace else noise_multiplier)
    rate = plan.sampling_rate
    if plan.sampling is Sampling.POISSON and rate < 1.0:
        step = dp.PoissonSampledDpEvent(rate, step)
    elif plan.sampling is Sampling.WITHOUT_REPLACEMENT:
        step = dp.SampledWithoutReplacementDpEvent(plan.dataset_size, plan.batch, step)
    return dp.SelfComposedDpEvent(step, plan.trials * plan.participations)


def _relation(plan: TrainingPlan) -> NeighboringRelation:
    """Return the library's relation; it calls zero-out replacing by a special example."""
    from dp_accounting import NeighboringRelation  # noqa: PLC0415

    return {
        Neighbouring.ADD_OR_REMOVE_ONE: NeighboringRelation.ADD_OR_REMOVE_ONE,
        Neighbouring.REPLACE_ONE: NeighboringRelation.REPLACE_ONE,
        Neighbouring.ZERO_OUT: NeighboringRelation.REPLACE_SPECIAL,
    }[plan.neighbours]


def _core_epsilon(plan: TrainingPlan, noise_multiplier: float) -> float:
    found = epsilon_upper(
        plan.sampling.value,
        noise_multiplier,
        Fraction(plan.batch, plan.dataset_size),
        plan.trials * plan.participations,
        Fraction(plan.delta),
        plan.neighbours.value,
    )
    return math.inf if found is None else found


def _pld_epsilon(plan: TrainingPlan, event: DpEvent, interval: float) -> float:
    try:
        found = float(_composed(_relation(plan), event, interval).get_epsilon(plan.delta))
    except (ArithmeticError, MemoryError):  # a loss beyond float64: nothing is promised
        return math.inf
    return math.inf if math.isnan(found) else found


@lru_cache(maxsize=_REMEMBERED)
def selection_epsilon(plan: TrainingPlan, noise_multiplier: float, law: Law) -> float | None:
    """Return ε of a search that publishes only the best of K trials; None: none is found.

    K is drawn from the law with the mean `plan.trials`, see `selected_epsilon`, whose hypotheses
    hold. For one trial it uses ε at `_PROFILE` values of δ, by the tightest accountant for each.
    """
    least = plan.delta / (64.0 * plan.trials)
    chosen = [plan.delta, *np.linspace(0.1, 0.95, 12), *np.geomspace(least, 0.1, _PROFILE)]
    runs = [replace(plan, trials=1, delta=float(delta)) for delta in sorted(chosen)]
    profile = [(epsilon(run, noise_multiplier), run.delta) for run in runs if accountants(run)]
    return selected_epsilon(profile, law, plan.trials, plan.delta)


@lru_cache(maxsize=1)  # of one run at several δ
def _composed(relation: NeighboringRelation, event: DpEvent, interval: float) -> PLDAccountant:
    from dp_accounting.pld import PLDAccountant  # noqa: PLC0415

    accountant = PLDAccountant(relation, interval)
    accountant.compose(event)
    return accountant


def _rdp_epsilon(plan: TrainingPlan, event: DpEvent) -> float:
    """Return ε by RDP, without orders whose divergence came out negative or undefined.

    The library reads a negative one as "no privacy loss", but it is a rounding error.
    """
    from dp_accounting.rdp import RdpAccountant, compute_epsilon  # noqa: PLC0415

    accountant = RdpAccountant(neighboring_relation=_relation(plan))
    try:
        accountant.compose(event)
    except (ArithmeticError, ValueError):
        return math.inf
    usable = [
        (order, divergence)
        for order, divergence in zip(accountant.orders, accountant.rdp, strict=True)
        if divergence >= 0.0
    ]
    if not usable:
        return math.inf
    orders, divergences = zip(*usable, strict=True)
    return float(compute_epsilon(orders, divergences, plan.delta)[0])


def _interval(plan: TrainingPlan, noise_multiplier: float) -> float:
    """Return the grid of PLD: fine compared with the loss of one step, with about `_GRID` points.

    This affects only tightness and time: PLD rounds losses up on every grid.
    """
    rate = plan.sampling_rate if plan.sampling is Sampling.POISSON else 1.0
    deviation = 1.0 / noise_multiplier
    reach = _TAIL * deviation
    if rate < 1.0:
        largest = deviation * deviation / 2.0 + reach
        reach = largest + math.log(rate + (1.0 - rate) * math.exp(-largest))
        deviation = min(deviation, rate * math.sqrt(math.expm1(min(deviation**2, 700.0))))
    total = 2.0 * _TAIL * math.sqrt(plan.trials * plan.participations) * deviation
    return max(min(_COARSEST, deviation / 100.0), max(reach, total) / _GRID)


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the library's notes about orders it leaves out and numbers that overflow."""
    logger = logging.getLogger("absl")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with np.errstate(all="ignore"):
            yield
    finally:
        logger.setLevel(before)


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """ε of a run of `steps` steps at `noise_multiplier`; None: no finite one."""

    noise_multiplier: float
    steps: int
    epsilon: float | None


def noise_for_epsilon(
    plan: TrainingPlan, target: float, accountant: Accountant | None = None
) -> CurvePoint:
    """Return a σ with ε(σ) ≤ target, and ε(σ) ≥ 0.999·target if the target binds.

    Proof: the upper end of the bracket is always a σ that was evaluated and found to meet the
    target. ε falls continuously in σ, so the search ends within 0.1 %; no σ below 1/16 is tried.
    """
    check_positive("target-epsilon", target)
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
    """Return the next number of six significant digits, which people copy from a report."""
    exact = Decimal(noise_multiplier)
    step = Decimal(1).scaleb(exact.adjusted() - 5)
    return float(exact.quantize(step, rounding=ROUND_CEILING))


def steps_for_epsilon(
    plan: TrainingPlan,
    noise_multiplier: float,
    target: float,
    accountant: Accountant | None = None,
) -> CurvePoint:
    """Return the largest number of steps T with ε(T) ≤ target; the plan's own is not used.

    Proof: ε grows with T (more is released), and ε(T) was evaluated. No T above 2^40 is tried.
    """
    check_positive("target-epsilon", target)
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
) -> Iterator[CurvePoint]:
    """Yield ε(t) at `points` numbers of steps, evenly spaced up to the plan itself."""
    last = plan.releases
    earlier = sorted({max(1, round(last * k / points)) for k in range(1, points)} - {last})
    runs = [*(plan.with_steps(t) for t in earlier), plan]
    return (_point(run, noise_multiplier, accountant) for run in runs)


def epsilon_over_noise(
    plan: TrainingPlan,
    noise_multiplier: float,
    points: int,
    accountant: Accountant | None = None,
) -> Iterator[CurvePoint]:
    """Yield ε(σ) at `points` + 1 multipliers from half to twice the given one, on a log scale."""
    sigmas = (noise_multiplier * 2.0 ** ((2 * k - points) / points) for k in range(points + 1))
    return (_point(plan, sigma, accountant) for sigma in sigmas)


CURVES: Final = {"steps": epsilon_over_steps, "noise-multiplier": epsilon_over_noise}
"""Curves of ε, by what varies."""


def _point(plan: TrainingPlan, sigma: float, accountant: Accountant | None) -> CurvePoint:
    return CurvePoint(sigma, plan.releases, finite(epsilon(plan, sigma, accountant)))


def _part(above: float, below: float, target: float) -> float:
    """Return where to divide a bracket of σ on a log scale: where a power law meets the target.

    It is always strictly inside, so that the bracket shrinks.
    """
    if not (math.isfinite(above) and below > 0.0):
        return 0.5
    aim = (1.0 - _TOLERANCE / 2.0) * target
    return min(max(math.log(above / aim) / math.log(above / below), 0.1), 0.9)
