"""Schedule (LC311): whether the recorded run is the one that was accounted for.

Statement: the run takes no more steps than the account, states what the claims state, draws its
batches in the way and at the rate that the account assumes, divides by one public constant, and
states noise of at least the multiplier that was accounted for. Compared: recorded words and counts,
exactly; rates up to 2^-40; multipliers up to 2^-22, which rounding a standard deviation to float32
may take away. What the batches themselves show of the sampler stands in `sampling`, the noise in
`stated_noise`.
False alarms: none.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from lipcert.audit.checks.batches import claimed_divisor, decays_inside, scale_of, stated_noise
from lipcert.audit.checks.sampling import sampling_faults
from lipcert.audit.checks.stated_noise import STORED, noise_faults
from lipcert.audit.checks.subject import Checked, RecordedRun
from lipcert.audit.records import Check, CheckReport
from lipcert.audit.trace.records import Batch, Reduction, Step
from lipcert.privacy.plan import Sampling

_NAME: Final = "schedule"
_CHECK: Final = Check("LC311", _NAME)
_RATE: Final = 1.0 + 2.0**-40


def schedule(run: RecordedRun) -> Checked:
    """A report for each deviation, or one pass that says what was compared."""
    if not run.steps:
        return Checked(not_done=(f"{_NAME}: the trace has no steps",))
    compared: list[str] = []
    not_done: list[str] = []
    faults = [
        *_length(run, compared, not_done),
        *_statements(run),
        *_sampler(run, compared, not_done),
        *sampling_faults(run, compared, not_done),
        *_divisor(run, compared, not_done),
        *noise_faults(run, compared, not_done),
    ]
    if not faults and compared:
        message = f"the recorded run is the one that was accounted for: {', '.join(compared)}"
        faults = [_CHECK.passed(message)]
    return Checked(tuple(faults), tuple(not_done))


def _length(run: RecordedRun, compared: list[str], not_done: list[str]) -> Iterator[CheckReport]:
    """No more steps than were accounted for."""
    taken = 1 + max(step.number for step in run.steps)
    planned = run.plan.releases if run.plan is not None else run.settings.steps
    limits = {"were accounted for": planned, "are declared": run.declared.steps}
    for what, limit in limits.items():
        if limit is not None and taken > limit:
            yield _CHECK.failed(
                f"{taken} steps were recorded, and {limit} {what}",
                "",
                (taken, limit),
                remedy="account for all steps, also for those after a restart",
            )
    if any(limit is not None for limit in limits.values()):
        compared.append(f"{taken} steps")
    else:
        not_done.append(f"{_NAME}: neither the claims nor the run state a number of steps")


def _statements(run: RecordedRun) -> Iterator[CheckReport]:
    """What the run says of itself against what the claims are conditional on."""
    settings, declared = run.settings, run.declared
    sampling = None if declared.sampling is None else declared.sampling.value
    pairs = [
        ("the size of the data set", settings.dataset_size, declared.dataset_size),
        ("the sampling", settings.sampling, sampling),
    ]
    for what, claimed, said in pairs:
        if claimed is not None and said is not None and claimed != said:
            yield _CHECK.failed(
                f"{what} is {said} in the run and {claimed} in the account",
                "the declaration",
                remedy="account for the run as it was",
            )
    sigma, said_sigma = run.multiplier, declared.noise_multiplier
    if sigma is not None and said_sigma is not None and said_sigma * STORED < sigma:
        yield _CHECK.failed(
            f"the run declares the noise multiplier {said_sigma:.9g}, the account has {sigma:.9g}",
            "the declaration",
            (said_sigma, sigma),
            remedy="account for the multiplier that was used",
        )
    radius, said_radius = settings.clip_norm, math.hypot(*declared.clip_norms.values())
    if radius is not None and said_radius > radius * STORED:
        yield _CHECK.failed(
            f"the run declares that it clips gradients to {said_radius:.9g}, the account has "
            f"{radius:.9g}",
            "the declaration",
            (said_radius, radius),
            remedy="account for the radius that was used",
        )
    if declared.weight_decay and not decays_inside(settings):
        yield _CHECK.failed(
            f"the run clips gradients together with the decay {declared.weight_decay:g}·θ, and "
            "the claims are of gradients alone",
            "the declaration",
            remedy="state it (--decay inside), or let the optimizer decay the weights after the "
            "noise",
        )


def _sampler(run: RecordedRun, compared: list[str], not_done: list[str]) -> Iterator[CheckReport]:
    """Every batch is drawn as accounted for, and not at a higher rate."""
    expected = _expected_sampling(run)
    rate = run.plan.sampling_rate.value if run.plan is not None else run.declared.sampling_rate
    stated = [(step, batch) for step in run.steps for batch in step.batches if batch.sampler]
    if expected is None or not stated:
        not_done.append(f"{_NAME}: how batches are drawn is not recorded, or not accounted for")
        return
    for step, batch in stated:
        if batch.sampler is not expected and batch.sampler is not None:
            yield _CHECK.failed(
                f"the batch of {run.name(step)} was drawn by {batch.sampler.value} sampling, and "
                f"{expected.value} sampling was accounted for (LC402)",
                run.name(step),
                remedy=f"draw {expected.value} batches, or state the ε of {batch.sampler.value}",
            )
            return
        is_random = expected is Sampling.POISSON and batch.rate is not None
        if is_random and rate is not None and (batch.rate or 0.0) > rate * _RATE:
            yield _CHECK.failed(
                f"the batch of {run.name(step)} was drawn at the rate {batch.rate:.9g}, and "
                f"{rate:.9g} was accounted for",
                run.name(step),
                (batch.rate or 0.0, rate),
                remedy="account for the rate that was used",
            )
            return
    compared.append(f"{expected.value} sampling")


def _expected_sampling(run: RecordedRun) -> Sampling | None:
    if run.settings.sampling is not None:
        return Sampling(run.settings.sampling)
    return run.declared.sampling


def _divisor(run: RecordedRun, compared: list[str], not_done: list[str]) -> Iterator[CheckReport]:
    """One divisor for all batches, and not a smaller one than is claimed."""
    found: dict[float, tuple[Step, Batch]] = {}
    for step in run.steps:
        for batch in step.batches:
            scale = scale_of(run, batch)
            if scale is not None and batch.examples != 0:
                found.setdefault(round(scale.divisor, 9), (step, batch))
    if not found:
        not_done.append(
            f"{_NAME}: by what gradients are divided is not recorded; use recorder.wrap_loss or "
            "recorder.batch(divisor=…)"
        )
        return
    smallest, largest = min(found), max(found)
    if smallest < largest:
        step, batch = found[smallest]
        is_mean = batch.reduction is Reduction.MEAN and batch.divisor is None
        why = ", the size of the batch at hand" if is_mean else ""
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
            f"gradients are divided by {smallest:g}, the sensitivity is claimed for {claimed:g}",
            "",
            (smallest, claimed),
            remedy="divide by the constant that is claimed, or compute the sensitivity of the sum",
        )
        return
    compared.append(f"the divisor {smallest:g}")
