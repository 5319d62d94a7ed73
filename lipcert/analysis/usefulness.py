"""Usefulness: compare the noise of a release with gradient clipping, and with the gradients.

The verdict, a class of a ratio, says first how usable a bound is.
"""

import math
from collections.abc import Mapping
from typing import Final, Literal

from lipcert.analysis.records import Analysis, GroupUsefulness, Usefulness, VerdictName
from lipcert.analysis.release import Release, planned_sensitivity
from lipcert.gradient_stats.measure import Observed, signal_words
from lipcert.privacy.noise import Reduction
from lipcert.privacy.plan import TrainingPlan
from lipcert.settings.gates import (
    NO_BOUND,
    NO_EPSILON,
    NO_RUN,
)
from lipcert.settings.settings import Settings
from lipcert.text.numbers import finite, times

USEFUL: Final = 2.0
"""The largest relative cost that is useful. In the runs of docs/suggest.md (Does the prediction
hold?), up to 1.25 left at least 95 % of what clipping gains over chance, and 2.5 left 80 %."""
COSTLY: Final = 6.0
"""The largest relative cost that is costly: the limit that best separates those runs that kept half
of that gain from the others."""
DROWNED: Final = 3.0
"""A run whose noise is more than this multiple of its signal, over all steps, hardly learns."""
_RIVAL: Final = "--mechanism gradient-clipping --clip-norm 1"
_NOTHING: Final[tuple[VerdictName, str]] = (
    "nothing trained",
    "Nothing is trained under these settings: no gradient is released, and no noise is needed; "
    "select the trained parameters with --trainable or --freeze.",
)
_SUGGEST: Final = "`lipcert suggest MODEL`"


def usefulness_of(
    released: Release,
    settings: Settings,
    plan: TrainingPlan | None = None,
    observed: Observed | None = None,
    unknown: str = "",
) -> Usefulness:
    """Return what the noise of a release costs. observed: gradients under the settings' mechanism.

    unknown: why it is not known what is trained, if it is not.
    """
    noise = None if released.energy is None else math.sqrt(released.energy)
    unit = planned_sensitivity(1.0, settings)
    dimension = sum(group.dimension for group in released.groups)
    clipping = released.multiplier * unit * math.sqrt(dimension)
    longer = _sum_over_mean(settings, plan)
    own = None if observed is None else _ratio(noise, observed.signal)
    rival = None if observed is None else _ratio(clipping, observed.clipped_signal)
    ratio = 0.0 if noise == 0.0 else _ratio(noise, clipping)
    cost = ratio if own is None or rival is None else _ratio(own, rival)
    steps = None if plan is None else math.sqrt(plan.releases)
    found, clipped = _ratio(own, longer), _ratio(rival, longer)
    found_of_run, clipped_of_run = _ratio(found, steps), _ratio(clipped, steps)
    seen = observed if own is not None and rival is not None else None
    verdict, sentence = _NOTHING
    if released.groups:
        verdict, sentence = _verdict(cost, settings, seen, unknown)
    sentence += _run_remark(cost, found_of_run, clipped_of_run, seen)
    total = released.total_sensitivity
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
        slack=None if observed is None else _ratio(_ratio(total, unit), observed.grad_norm_max),
        groups=_groups(released, observed, longer),
        observed=observed,
    )


def gated_numbers(analysis: Analysis) -> Mapping[str, float | str]:
    """Return the numbers of an analysis that gates limit, or why they are unknown."""
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
    slack = None if use is None else use.slack
    return {
        "max_grad_norm": NO_BOUND if bound is None else bound,
        "max_sensitivity": NO_BOUND if moved is None else moved,
        "max_epsilon": unspent if epsilon is None else epsilon,
        "max_slack": reason if slack is None else slack,
        "max_noise_to_signal": _gated_noise(use, reason),
    }


def _gated_noise(use: Usefulness | None, reason: str) -> float | str:
    """Return noise over signal as a gate uses it, if the mean gradient was measured.

    For drawn examples, whose labels are random, only a lower bound is known.
    """
    if use is None or use.noise_to_signal is None or use.observed is None:
        return reason
    if use.observed.of_norms:
        least = times(use.noise_to_signal)
        return f"it is at least {least}, and of random labels no mean is known; give --data"
    return use.noise_to_signal


def _sum_over_mean(settings: Settings, plan: TrainingPlan | None) -> float | None:
    """Return the released gradient over the mean; None if the batch size is unknown."""
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
        noise = finite(group.noise_std * math.sqrt(group.dimension))
        over = _ratio(_ratio(noise, signals.get(group.name)), longer)
        found.append(GroupUsefulness(group.name, noise, over))
    return tuple(found)


def _verdict(
    cost: float | None, settings: Settings, seen: Observed | None, unknown: str
) -> tuple[VerdictName, str]:
    """Return the verdict, and the sentence that begins with it."""
    if cost is None and unknown:
        return "unknown", f"Unknown: G has no number because {unknown}."
    return _class(cost), _sentence(cost, settings, seen)


def _class(cost: float | None) -> Literal["useful", "costly", "not usable"]:
    if cost is None or cost > COSTLY:
        return "not usable"
    return "useful" if cost <= USEFUL else "costly"


def _sentence(cost: float | None, settings: Settings, seen: Observed | None) -> str:
    clips = settings.enforced.clips_gradients
    other = "clip at a smaller norm" if clips else f"use gradient clipping ({_RIVAL})"
    if cost is None:
        return f"Not usable: no noise makes this private; {other}, or see {_SUGGEST}."
    against = "" if seen is None else f"against {seen.words}, "
    verdict = _class(cost)
    rest = {
        "useful": "",
        "costly": f"; {_SUGGEST} lists cheaper ways",
        "not usable": f"; {other}, or see {_SUGGEST}",
    }
    return (
        f"{verdict.capitalize()}: {against}the noise is {times(cost)} times what clipping "
        f"gradients at C = 1 needs{rest[verdict]}."
    )


def _run_remark(
    cost: float | None, own: float | None, rival: float | None, seen: Observed | None
) -> str:
    """Return what a verdict relative to clipping omits: noise may drown both."""
    is_rival_drowned = rival is not None and rival > DROWNED
    if own is None or own <= DROWNED or (_class(cost) == "not usable" and not is_rival_drowned):
        return ""
    what = signal_words(of_norms=seen is not None and seen.of_norms)
    said = f" Over the whole run, noise is {times(own)} times {what}: little is learned"
    if not is_rival_drowned:
        return f"{said}."
    return f"{said}, and by clipping, too; ask for more examples or epochs, a larger batch, or ε."


def _ratio(above: float | None, below: float | None) -> float | None:
    """Return a quotient, if both numbers are known and it is finite."""
    if above is None or not below:
        return None
    return finite(above / below)
