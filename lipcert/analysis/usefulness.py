"""Usefulness: the noise of a release against its rival, and against the gradients it hides.

What enters: the noise of a release, the settings, and gradients of examples where they were
measured. What leaves: a `Usefulness`, whose verdict says first what a bound is good for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from lipcert.analysis.records import Analysis, GroupUsefulness, Usefulness, VerdictName
from lipcert.analysis.release import Release, planned_sensitivity
from lipcert.decimals import decimal_text, rounded
from lipcert.gates import (
    MAX_EPSILON,
    MAX_GRAD_NORM,
    MAX_NOISE_TO_SIGNAL,
    MAX_SENSITIVITY,
    MAX_SLACK,
    NO_BOUND,
    NO_EPSILON,
    NO_RUN,
)
from lipcert.privacy.noise import Reduction
from lipcert.privacy.plan import TrainingPlan
from lipcert.settings import Settings
from lipcert.signal.measure import Observed
from lipcert.upper import Upper

USEFUL: Final = 2.0
"""the largest relative cost of what is useful: up to 1.25 at least 95 % of what clipping gains over
chance was left, at 2.5 80 %, in the runs of docs/suggest.md (Does the prediction hold?)"""
COSTLY: Final = 6.0
"""the largest relative cost of what is costly: the limit that best parts what kept half of that
gain in these runs from what did not"""
DROWNED: Final = 3.0
"""a run whose noise is more times its signal, over all its steps, hardly learns"""
_RIVAL: Final = "--mechanism gradient-clipping --clip-norm 1"
_SUGGEST: Final = "`lipcert suggest MODEL`"


def usefulness_of(
    released: Release,
    settings: Settings,
    plan: TrainingPlan | None = None,
    observed: Observed | None = None,
) -> Usefulness:
    """What the noise of a release costs. observed: gradients of the mechanism of the settings."""
    allocated = released.allocated[released.chosen]
    noise = None if allocated is None else math.sqrt(allocated.energy.value)
    unit = planned_sensitivity(Upper(1.0), settings).value
    dimension = sum(group.dimension for group in released.groups)
    clipping = released.multiplier * unit * math.sqrt(dimension)
    longer = _longer(settings, plan)
    own = _over(noise, observed and observed.signal)
    rival = _over(clipping, observed and observed.clipped_signal)
    ratio = 0.0 if noise == 0.0 else _over(noise, clipping)
    cost = ratio if own is None or rival is None else _over(own, rival)
    steps = None if plan is None else math.sqrt(plan.releases)
    found, clipped = _over(own, longer), _over(rival, longer)
    found_of_run, clipped_of_run = _over(found, steps), _over(clipped, steps)
    verdict = _verdict(cost)
    measured = own is not None and rival is not None
    sentence = _sentence(verdict, cost, settings, measured=measured)
    sentence += _of_run(verdict, found_of_run, clipped_of_run)
    total = released.total_sensitivity.value
    return Usefulness(
        verdict=verdict,
        sentence=sentence,
        noise=noise,
        clipping_noise=clipping,
        noise_ratio=ratio,
        noise_to_signal=found,
        clipping_noise_to_signal=clipped,
        noise_to_signal_of_run=found_of_run,
        clipping_noise_to_signal_of_run=clipped_of_run,
        relative_cost=cost,
        slack=_over(_over(total, unit), observed and observed.grad_norm_max),
        groups=_groups(released, observed, longer),
        observed=observed,
    )


def gated_numbers(analysis: Analysis) -> Mapping[str, float | str]:
    """What gates limit of an analysis, or why that is not known."""
    bound, use = analysis.network.grad_norm, analysis.usefulness
    moved, account = analysis.network.sensitivity, analysis.privacy
    observed = None if use is None else use.observed
    reason = "no gradient of an example was measured; give --data"
    if observed is not None:
        reason = "every gradient is 0, or their mean"
    if observed is not None and observed.signal > 0.0:
        reason = "the size of a batch is not known; give --batch-size"
    unspent = NO_RUN if account is None else NO_EPSILON
    if bound is None:
        reason = unspent = NO_BOUND
    epsilon = None if account is None or bound is None else account.epsilon
    slack, noise = (None, None) if use is None else (use.slack, use.noise_to_signal)
    return {
        MAX_GRAD_NORM: NO_BOUND if bound is None else bound,
        MAX_SENSITIVITY: NO_BOUND if moved is None else moved,
        MAX_EPSILON: unspent if epsilon is None else epsilon,
        MAX_SLACK: reason if slack is None else slack,
        MAX_NOISE_TO_SIGNAL: reason if noise is None else noise,
    }


def _longer(settings: Settings, plan: TrainingPlan | None) -> float | None:
    """By what the released gradient is longer than the mean; None: for an unknown batch."""
    if settings.reduction == Reduction.MEAN.value:
        return 1.0
    batch = settings.batch_size if plan is None else plan.batch
    return None if batch is None else float(batch)


def _groups(
    released: Release, observed: Observed | None, longer: float | None
) -> tuple[GroupUsefulness, ...]:
    signals: Mapping[str, float] = {}
    if observed is not None:
        signals = {group.name: group.signal for group in observed.groups}
    found = []
    for group in released.groups:
        std = released.noise(group.name)
        noise = None if std is None else std.noise_std.value * math.sqrt(group.dimension)
        over = _over(_over(noise, signals.get(group.name)), longer)
        found.append(GroupUsefulness(group.name, noise, over))
    return tuple(found)


def _verdict(cost: float | None) -> VerdictName:
    if cost is None or cost > COSTLY:
        return "not usable"
    return "useful" if cost <= USEFUL else "costly"


def _sentence(
    verdict: VerdictName, cost: float | None, settings: Settings, *, measured: bool
) -> str:
    clips = settings.mechanism == "gradient-clipping"
    other = "clip at a smaller norm" if clips else f"use gradient clipping ({_RIVAL})"
    if cost is None:
        return f"Not usable: no noise makes this private; {other}, or see {_SUGGEST}."
    needed = "what clipping gradients at C = 1 needs"
    said = f"the noise is {times(cost)} times {needed}"
    if measured:
        said = f"against the mean gradient, {said}"
    match verdict:
        case "useful":
            return f"Useful: {said}."
        case "costly":
            return f"Costly: {said}; {_SUGGEST} lists cheaper ways."
    return f"Not usable: {said}; {other}, or see {_SUGGEST}."


def _of_run(verdict: VerdictName, own: float | None, rival: float | None) -> str:
    """What the verdict, which is relative to clipping, leaves unsaid: noise may drown both."""
    is_rival_drowned = rival is not None and rival > DROWNED
    if own is None or own <= DROWNED or (verdict == "not usable" and not is_rival_drowned):
        return ""
    said = f" Over the whole run, noise is {times(own)} times the mean gradient: little is learned"
    if not is_rival_drowned:
        return f"{said}."
    return f"{said}, and by clipping, too; ask for more examples or epochs, a larger batch, or ε."


def times(ratio: float) -> str:
    """A measured ratio in two digits: `0.052`, `12`, `340`, `3.1·10²²`."""
    return decimal_text(rounded(ratio, 2))


def _over(above: float | None, below: float | None) -> float | None:
    """A quotient, where both are known and it is a number."""
    if above is None or not below:
        return None
    found = above / below
    return found if math.isfinite(found) else None
