"""Schedule (LC311): whether the recorded run is the one that was accounted for.

Statement: the run takes no more steps than the account, states what the claims state, draws its
batches in the way and at the rate that the account assumes, divides by one public constant, and
states noise of at least the multiplier σ that was accounted for: (Σ Δ_k²/s_k²)^(−1/2) ≥ σ, s_k the
stated deviation on group k, Δ_k its sensitivity in the units of what is noised. If a run computes
its bounds anew at every step (weight clipping), Δ_k is that of the weights from which the step
started; more noise is correct there, because a bound may hold for a neighbourhood of the weights
and be used for several steps. A step that falls short of σ at its own weights is first bounded
again by the tightest norms available. Compared: recorded words and counts, exactly; rates up to
2^-40; multipliers up to 2^-22, the most by which rounding to float32 can reduce a standard
deviation. If a step omits what other steps of its rank record, this is inconclusive, because a
fault may hide there; what is recorded "with detail" may be omitted as a whole. What the batches
themselves show about the sampler is checked in `sampling`.
False alarms: none.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from lipcert.audit.bounds import Claims, are_made_anew, bounded_at
from lipcert.audit.checks.run_check import (
    Finding,
    claimed_divisor,
    decays_inside,
    group_stds,
    run_check,
    scale_of,
    stated_noise,
)
from lipcert.audit.checks.sampling import sampled, stated_sampling
from lipcert.audit.recorded import RecordedRun
from lipcert.audit.records import Check, CheckReport, Verdict
from lipcert.audit.trace.records import Batch, Reduction, Step
from lipcert.audit.weight_norms import ReplayWeights
from lipcert.core.arithmetic import multiply_up
from lipcert.core.claims import effective_multiplier, sensitivity_up
from lipcert.privacy.plan import Sampling

_CHECK: Final = Check("LC311", "schedule")
_STORED: Final = 1.0 + 2.0**-22
"""The most by which rounding a number to float32 can reduce it."""
_RATE: Final = 1.0 + 2.0**-40


@run_check(_CHECK)
def schedule(run: RecordedRun) -> Iterator[Finding]:
    """Report each deviation, or one pass that says what was compared."""
    compared: list[str] = []
    for part in (_length, left_out, _statements, _sampler, sampled, _divisor, _stated_noise):
        for finding in part(run):
            if isinstance(finding, CheckReport) and finding.verdict is Verdict.PASS:
                compared.append(finding.message)
            else:
                yield finding
    if compared:
        message = f"the recorded run is the one that was accounted for: {', '.join(compared)}"
        yield _CHECK.passed(message)


def _length(run: RecordedRun) -> Iterator[Finding]:
    """Check that there are no more steps than were accounted for."""
    taken = 1 + max(step.number for step in run.steps)
    planned = run.plan.releases if run.plan is not None else run.settings.steps
    limits = {"were accounted for": planned, "are declared": run.declared.steps}
    for what, limit in limits.items():
        if limit is not None and taken > limit:
            yield _CHECK.failed(
                f"{taken} steps were recorded, but {limit} {what}",
                "",
                (taken, limit),
                remedy="account for all steps, also for those after a restart",
            )
    if any(limit is not None for limit in limits.values()):
        yield _CHECK.passed(f"{taken} steps")
    else:
        yield "neither the claims nor the run state a number of steps"


def left_out(run: RecordedRun) -> Iterator[CheckReport]:
    """Report each thing that some steps of a rank record, and others do not."""
    for rank in run.trace.ranks:
        steps = [(run.name(step), _has(step)) for step in run.steps if step.rank == rank]
        for what in dict.fromkeys(name for _, has in steps for name in has):
            lacking = [name for name, has in steps if has.get(what) is False]
            if lacking and any(has.get(what) for _, has in steps):
                text = f"{lacking[0]} does not record {what}, and other steps do"
                yield _CHECK.failed(text, lacking[0], verdict=Verdict.INCONCLUSIVE)


def _has(step: Step) -> Mapping[str, bool]:
    """Return whether a step records each thing that steps record; an empty batch need not."""
    found = {"its batch": bool(step.batches)}
    if filled := step.filled:
        found["the members of its batch"] = all(b.index is not None or b.tags for b in filled)
        for name in ("sampler", "rate", "divisor"):
            found[f"the {name} of its batch"] = all(getattr(b, name) is not None for b in filled)
    found["the generator of its noise"] = bool(step.noise and step.noise.generator)
    if step.optimizer is not None or step.has_detail:
        kinds = zip(("clean", "noised", "applied"), step.gradients.each, strict=True)
        found |= {f"its {kind} gradient": blob is not None for kind, blob in kinds}
    return found


def _statements(run: RecordedRun) -> Iterator[Finding]:
    """Compare what the run declares with what the claims depend on."""
    settings, declared = run.settings, run.declared
    sampling = None if declared.sampling is None else declared.sampling.value
    pairs = [
        ("the size of the data set", settings.dataset_size, declared.dataset_size),
        ("the sampling", settings.sampling, sampling),
    ]
    for what, claimed, stated in pairs:
        if claimed is not None and stated is not None and claimed != stated:
            yield _CHECK.failed(
                f"{what} is {stated} in the run, but {claimed} in the account",
                "the declaration",
                remedy="account for the run as it was",
            )
    sigma, radius = run.multiplier or 0.0, settings.clip_norm or math.inf
    declared_sigma = sigma if declared.noise_multiplier is None else declared.noise_multiplier
    declared_radius = math.hypot(*declared.clip_norms.values())
    for what, number, accounted, is_wrong in (
        ("the noise multiplier", declared_sigma, sigma, declared_sigma * _STORED < sigma),
        ("that it clips gradients to", declared_radius, radius, declared_radius > radius * _STORED),
    ):
        if is_wrong:
            text = f"the run declares {what} {number:.9g}, but the account has {accounted:.9g}"
            yield _CHECK.failed(text, "the declaration", (number, accounted))
    if declared.weight_decay and not decays_inside(settings):
        yield _CHECK.failed(
            f"the run clips gradients together with the decay {declared.weight_decay:g}·θ, but "
            "the claims are about gradients alone",
            "the declaration",
            remedy="state it (--decay inside), or let the optimizer decay the weights after the "
            "noise",
        )


def _sampler(run: RecordedRun) -> Iterator[Finding]:
    """Check that every batch is drawn as accounted for, and not at a higher rate."""
    expected = stated_sampling(run)
    rate = run.plan.sampling_rate if run.plan is not None else run.declared.sampling_rate
    stated = [(step, batch) for step in run.steps for batch in step.batches if batch.sampler]
    if expected is None or not stated:
        yield "how batches are drawn is not recorded, or not accounted for"
        return
    for step, batch in stated:
        if batch.sampler is not expected and batch.sampler is not None:
            yield _CHECK.failed(
                f"the batch of {run.name(step)} was drawn by {batch.sampler.value} sampling, but "
                f"{expected.value} sampling was accounted for (LC402)",
                run.name(step),
                remedy=f"draw {expected.value} batches, or state the ε of {batch.sampler.value}",
            )
            return
        is_random = expected is Sampling.POISSON and batch.rate is not None
        if is_random and rate is not None and (batch.rate or 0.0) > rate * _RATE:
            yield _CHECK.failed(
                f"the batch of {run.name(step)} was drawn at the rate {batch.rate:.9g}, but "
                f"{rate:.9g} was accounted for",
                run.name(step),
                (batch.rate or 0.0, rate),
                remedy="account for the rate that was used",
            )
            return
    yield _CHECK.passed(f"{expected.value} sampling")


def _divisor(run: RecordedRun) -> Iterator[Finding]:
    """Check that all batches have one divisor, and not a smaller one than is claimed."""
    found: dict[float, tuple[Step, Batch]] = {}
    for step in run.steps:
        for batch in step.filled:
            scale = scale_of(run, batch)
            if scale is not None:
                found.setdefault(round(scale.divisor, 9), (step, batch))
    if not found:
        yield (
            "the divisor of the gradients is not recorded; use recorder.wrap_loss or "
            "recorder.batch(divisor=…)"
        )
        return
    smallest, largest = min(found), max(found)
    if smallest < largest:
        step, batch = found[smallest]
        is_mean = batch.reduction is Reduction.MEAN and batch.divisor is None
        why = ", the size of the current batch" if is_mean else ""
        yield _CHECK.failed(
            f"gradients are divided by {smallest:g} at {run.name(step)} and by {largest:g} at "
            f"{run.name(found[largest][0])}{why}: a divisor must be one public constant (LC401)",
            run.name(step),
            (smallest, largest),
            remedy="sum the losses and divide by the expected batch size",
        )
        return
    claimed = claimed_divisor(run.settings)
    states_noise = any(True for _ in stated_noise(run))
    if smallest < claimed / _RATE and not states_noise:
        yield _CHECK.failed(
            f"gradients are divided by {smallest:g}, but the sensitivity is claimed for "
            f"{claimed:g}",
            "",
            (smallest, claimed),
            remedy="divide by the constant that is claimed, or compute the sensitivity of the sum",
        )
        return
    yield _CHECK.passed(f"the divisor {smallest:g}")


def _stated_noise(run: RecordedRun) -> Iterator[Finding]:
    """Report the first statement of too little noise."""
    sigma, anew = run.multiplier, are_made_anew(run.settings)
    if sigma is None or not list(stated_noise(run)):
        yield (
            "the noise multiplier is not claimed (--noise-multiplier), or the standard deviations "
            "are not recorded; use recorder.noise(…)"
        )
        return
    multipliers, checked = [], 0
    for where, step, at in _places(run, anew):
        found = _multiplier(run, run.claims if at is None else at.claims, step, where)
        falls_short = isinstance(found, float) and found * _STORED < sigma
        if falls_short and at is not None and at.weights is not None:  # by the tightest norms
            tightest = bounded_at(at.claims, at.weights, replace(run.settings, tier="tight"))
            found = _multiplier(run, tightest, step, where)
        if isinstance(found, str):
            yield found
            return
        if found is not None and found * _STORED < sigma:
            place = where if at is None else f"{where}, at whose weights the sensitivity was taken,"
            yield _CHECK.failed(
                f"the noise that {place} states has the multiplier {found:.6g}, but {sigma:.6g} "
                "was accounted for",
                where,
                (found, sigma),
                remedy="multiply the sensitivity of what is noised by the noise multiplier",
            )
            return
        checked += 1
        multipliers += [] if found is None else [found]
    steps = len({step.number for step in run.steps})
    if anew and checked < steps:
        yield (
            f"the noise of {steps - checked} of {steps} steps is not compared with any "
            "sensitivity, because their weights were not recorded or are outside their "
            "constraints; use every=1 of the recorder"
        )
    if multipliers or not anew:
        least, most = (end(multipliers, default=sigma) for end in (min, max))
        shown = f"noise of multiplier {least:.6g} to {most:.6g}"
        yield _CHECK.passed(f"{shown}, where {sigma:.6g} suffices")


_Place = tuple[str, Step | None, ReplayWeights | None]
"""Where noise is stated, by which step, and with which weights and claims of its own."""


def _places(run: RecordedRun, anew: bool) -> Iterator[_Place]:
    """Yield each different statement or, if sensitivities are those of each step's weights, the
    steps whose weights they apply to."""
    if not anew:
        yield from ((where, step, None) for where, step in stated_noise(run))
        return
    steps = {step.number: step for step in reversed(run.steps)}
    for _, step in sorted(steps.items()):
        at = None if step.weights_before is None else run.replay_weights(run.name(step))
        if at is not None and at.admissible:
            yield run.name(step), step, at


def _multiplier(
    run: RecordedRun, claims: Claims, step: Step | None, where: str
) -> float | str | None:
    """Return (Σ Δ_k²/s_k²)^(−1/2); None if nothing is sensitive; a sentence if it is not known."""
    if any(math.isinf(group.grad_norm) for group in claims.groups):
        return f"a group has no bound that its noise could be compared with ({where})"
    stds = group_stds(run, step)
    silent = [group.name for group in claims.groups if group.name not in stds]
    if silent:
        return f"the noise of group {silent[0]!r} is not stated at {where}"
    outer = _outer(run, step)
    if outer is None:
        return f"the units of the noise at {where} are not recorded"
    bounds = (multiply_up(group.grad_norm, outer) for group in claims.groups)
    deltas = [sensitivity_up(bound, None, run.settings.neighbours) for bound in bounds]
    found = effective_multiplier(deltas, [stds[group.name] for group in claims.groups])
    return found if found < math.inf else None


def _outer(run: RecordedRun, step: Step | None) -> float | None:
    """Return the factor of the sum of what the mechanism leaves.

    It is that of the first batch with a scale: of the step, or else of the run, which has one
    divisor.
    """
    own = () if step is None else (step,)
    for candidate in (*own, *run.steps):
        for batch in candidate.batches:
            scale = scale_of(run, batch)
            if scale is not None:
                return scale.outer
    return None
