"""Stated noise (LC311): whether it has the multiplier that was accounted for.

Statement: (Σ Δ_k²/s_k²)^(−1/2) ≥ σ, s_k the stated deviation on group k, Δ_k its sensitivity in the
units of what is noised. Where a run takes its bounds anew at every step (weight clipping), Δ_k is
that of the weights from which the step started; more noise is as it should be there, because a
bound may be taken for a neighbourhood of the weights and serve for several steps. Compared:
multipliers up to 2^-22, which rounding a standard deviation to float32 may take away.
False alarms: none. A step that falls short of σ at its own weights is first bounded again by the
tightest norms there are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from lipcert.audit.audited_weights import Settled
from lipcert.audit.bounds import Claims, are_made_anew, bounded_at
from lipcert.audit.checks.batches import group_stds, scale_of, stated_noise
from lipcert.audit.checks.subject import RecordedRun
from lipcert.audit.records import Check, CheckReport
from lipcert.audit.trace.records import Step
from lipcert.privacy.noise import Neighbouring, Reduction, effective_multiplier, sensitivity
from lipcert.upper import Lower, Upper

STORED: Final = 1.0 + 2.0**-22
"""what rounding a number to float32 may take away"""
_NAME: Final = "schedule"
_CHECK: Final = Check(
    "LC311", _NAME, "multiply the sensitivity of what is noised by the noise multiplier"
)


def noise_faults(
    run: RecordedRun, compared: list[str], not_done: list[str]
) -> Iterator[CheckReport]:
    """A report for the first statement of too little noise."""
    sigma = run.multiplier
    if sigma is None or not list(stated_noise(run)):
        not_done.append(
            f"{_NAME}: the noise multiplier is not claimed (--noise-multiplier), or the standard "
            "deviations are not recorded; use recorder.noise(…)"
        )
    elif are_made_anew(run.settings):
        yield from _at_each_step(run, sigma, compared, not_done)
    else:
        yield from _throughout(run, sigma, compared, not_done)


def _throughout(
    run: RecordedRun, sigma: float, compared: list[str], not_done: list[str]
) -> Iterator[CheckReport]:
    """Against sensitivities that hold for the whole run."""
    for where, step in stated_noise(run):
        found = _multiplier(run, run.claims, step, where)
        if isinstance(found, str):
            not_done.append(found)
            return
        if found is not None and _falls_short(found, sigma):
            yield _fault(where, found, sigma)
            return
    compared.append(f"noise of multiplier {sigma:.6g}")


def _at_each_step(
    run: RecordedRun, sigma: float, compared: list[str], not_done: list[str]
) -> Iterator[CheckReport]:
    """Against the sensitivities at the weights of every step."""
    multipliers: list[float] = []
    steps = {step.number: step for step in reversed(run.steps)}
    checked = 0
    for _, step in sorted(steps.items()):
        where = run.name(step)
        settled = None if step.weights_before is None else run.settled(where)
        if settled is None or not settled.admissible:
            continue
        found = _at_weights(run, settled, step, sigma)
        if isinstance(found, str):
            not_done.append(found)
            return
        if found is not None and _falls_short(found, sigma):
            yield _fault(f"{where}, at whose weights the sensitivity was taken,", found, sigma)
            return
        checked += 1
        multipliers += [] if found is None else [found.value]
    if checked < len(steps):
        not_done.append(
            f"{_NAME}: the noise of {len(steps) - checked} of {len(steps)} steps is held against "
            "no sensitivity, because their weights were not recorded or are outside their "
            "constraints; use every=1 of the recorder"
        )
    if multipliers:
        compared.append(
            f"noise of multiplier {min(multipliers):.6g} to {max(multipliers):.6g} for the "
            f"sensitivities at the weights of {checked} steps, where {sigma:.6g} suffices"
        )


def _at_weights(run: RecordedRun, settled: Settled, step: Step, sigma: float) -> Lower | str | None:
    """The multiplier at these weights, by the tightest norms if others do not suffice."""
    where = run.name(step)
    found = _multiplier(run, settled.claims, step, where)
    if not isinstance(found, Lower) or not _falls_short(found, sigma) or settled.weights is None:
        return found
    tightest = replace(run.settings, tier="tight")
    return _multiplier(run, bounded_at(settled.claims, settled.weights, tightest), step, where)


def _multiplier(
    run: RecordedRun, claims: Claims, step: Step | None, where: str
) -> Lower | str | None:
    """(Σ Δ_k²/s_k²)^(−1/2), None where nothing is sensitive; a sentence where it is not known."""
    if any(group.grad_norm is None for group in claims.groups):
        return f"{_NAME}: a group has no bound that its noise could be held against ({where})"
    stds = group_stds(run, step)
    silent = [group.name for group in claims.groups if group.name not in stds]
    if silent:
        return f"{_NAME}: the noise of group {silent[0]!r} is not stated at {where}"
    outer = _outer(run, step)
    if outer is None:
        return f"{_NAME}: the units of the noise at {where} are not recorded"
    deltas = [
        sensitivity(
            Upper(group.grad_norm or 0.0) * Upper(outer),
            Neighbouring(run.settings.neighbours),
            Reduction.SUM,
        )
        for group in claims.groups
    ]
    return effective_multiplier(deltas, [Upper(stds[group.name]) for group in claims.groups])


def _outer(run: RecordedRun, step: Step | None) -> float | None:
    """What multiplies the sum of what the mechanism leaves.

    That of the first batch with a scale: of the step, or else of the run, which has one divisor.
    """
    own = () if step is None else (step,)
    for candidate in (*own, *run.steps):
        for batch in candidate.batches:
            scale = scale_of(run, batch)
            if scale is not None:
                return scale.outer
    return None


def _falls_short(found: Lower, sigma: float) -> bool:
    return Lower(found.value * STORED).value < sigma


def _fault(where: str, found: Lower, sigma: float) -> CheckReport:
    return _CHECK.failed(
        f"the noise that {where} states has the multiplier {found.value:.6g}, and {sigma:.6g} was "
        "accounted for",
        where.partition(",")[0],
        (found.value, sigma),
    )
