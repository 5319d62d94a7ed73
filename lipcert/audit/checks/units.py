"""Units: how the gradient that a run noises is made of the losses of single examples.

What enters: what a batch records of its reduction and divisor. What leaves: a `Scale`, or None
where the records do not say. What is noised is outer · Σ_i m(inner · ∇ℓ_i), m being what the
mechanism does to one example: a clip inside the backward pass sees the loss as it was reduced, so
that a mean divides before it, and dividing the clip's radius again counts the divisor twice. With
the decay inside the clip m sees ∇ℓ_i + λθ.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, final

from lipcert.audit.bounds import GroupBound
from lipcert.audit.checks.subject import RecordedRun
from lipcert.audit.trace.records import Batch, Reduction, Step
from lipcert.privacy.noise import Neighbouring
from lipcert.settings import Settings

_CLIPS_WHOLE_GRADIENTS: Final = "gradient-clipping"


@final
@dataclass(frozen=True, slots=True)
class Scale:
    """What is noised is outer · Σ_i m(inner · ∇ℓ_i)."""

    inner: float
    outer: float

    @property
    def divisor(self) -> float:
        """What the sum of the gradients is divided by, clips aside."""
        return 1.0 / (self.inner * self.outer)


def scale_of(run: RecordedRun, batch: Batch) -> Scale | None:
    """The scale of a batch.

    Under gradient clipping the gradients of the examples are taken apart before they are clipped,
    so that the reduction of the loss says nothing: without a divisor the clipped sum is noised.
    """
    declared, count = run.declared, batch.examples or 0
    if batch.divisor == 0.0:
        return None
    reduction = batch.reduction or declared.reduction
    if run.settings.mechanism == _CLIPS_WHOLE_GRADIENTS:
        return Scale(1.0, 1.0 / (batch.divisor or 1.0))
    if reduction is Reduction.MEAN:
        return Scale(1.0 / count, count / (batch.divisor or count)) if count else None
    if reduction is Reduction.SUM:
        return Scale(1.0, 1.0 / (batch.divisor or 1.0))
    divisor = batch.divisor or declared.divisor
    return None if divisor is None else Scale(1.0, 1.0 / divisor)


def claimed_divisor(settings: Settings) -> float:
    """What the claims divide the sum of the gradients by."""
    return float(settings.batch_size or 1) if settings.reduction == "mean" else 1.0


def decays_inside(settings: Settings) -> bool:
    """Whether what is clipped is ∇ℓ + λθ."""
    return settings.mechanism == _CLIPS_WHOLE_GRADIENTS and settings.decay == "inside"


def decay_of(run: RecordedRun) -> float | None:
    """λ, where ∇ℓ + λθ is what the run clips, otherwise 0; None where the run does not say."""
    return run.declared.weight_decay if decays_inside(run.settings) else 0.0


def moved(settings: Settings) -> float:
    """How many gradients of one example neighbouring data sets differ by."""
    return 2.0 if Neighbouring(settings.neighbours) is Neighbouring.REPLACE_ONE else 1.0


def noise_stds(run: RecordedRun, step: Step | None) -> Mapping[str, float]:
    """Standard deviation of the noise by recorded tensor; what nothing is known of is no key.

    A group is one that the run declares, one of the claims, or a single tensor; a single entry
    under any other name is of everything. step: None for what the run declares. A rank that
    states nothing of a step speaks through the others: all of them release one thing.
    """
    noise = None if step is None else step.noise or run.noises.get(step.number)
    stated = run.declared.noise_std if noise is None else noise.std
    found: dict[str, float] = {}
    for group, std in stated.items():
        members = _members(run, group)
        if not members and len(stated) == 1:
            members = tuple(run.trace.manifest.parameters)
        if 0.0 <= std < math.inf:
            found.update(dict.fromkeys(members, std))
    return found


def group_stds(run: RecordedRun, step: Step | None) -> Mapping[str, float]:
    """The smallest noise on any tensor of each group of the claims, where all have some."""
    by_tensor = noise_stds(run, step)
    tensors = {group.name: _recorded(run, group) for group in run.claims.groups}
    return {
        group: min(by_tensor[name] for name in names)
        for group, names in tensors.items()
        if set(names) <= by_tensor.keys()
    }


def _members(run: RecordedRun, group: str) -> tuple[str, ...]:
    if group in run.declared.groups:
        return run.declared.groups[group]
    claimed = next((item for item in run.claims.groups if item.name == group), None)
    if claimed is not None:
        return _recorded(run, claimed)
    return (group,) if group in run.trace.manifest.parameters else ()


def _recorded(run: RecordedRun, group: GroupBound) -> tuple[str, ...]:
    return tuple(run.names[name].recorded for name in group.parameters)


def stated_noise(run: RecordedRun) -> Iterator[tuple[str, Step | None]]:
    """Every different statement of the noise with where it stands first."""
    seen: set[tuple[tuple[str, float], ...]] = set()
    if run.declared.noise_std:
        yield "the declaration", None
        seen.add(tuple(sorted(run.declared.noise_std.items())))
    for step in run.steps:
        if step.noise is None:
            continue
        key = tuple(sorted(step.noise.std.items()))
        if key not in seen:
            seen.add(key)
            yield run.name(step), step
