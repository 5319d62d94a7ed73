"""Batches: how the gradient that a run noises is made of its examples, and those examples.

What enters: steps of a recorded run with what they record of reduction and divisor. What leaves: a
`Scale`, or None where the records do not say; examples with checked labels and the `Scale` of each
pass, of one rank or of all ranks of a step, or a sentence that says what the records lack. What is
noised is outer · Σ_i m(inner · ∇ℓ_i), m being what the mechanism does to one example: a clip inside
the backward pass sees the loss as it was reduced, so that a mean divides before it, and dividing
the clip's radius again counts the divisor twice. With the decay inside the clip m sees ∇ℓ_i + λθ.
Invariant: all ranks of a step make one release: what is noised is the sum over their batches, of
which some may be empty.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, final

import numpy.typing as npt

from lipcert.audit.bounds import GroupBound
from lipcert.audit.checks.subject import RecordedRun
from lipcert.audit.recorded import examples_at
from lipcert.audit.trace.blobs import Blob
from lipcert.audit.trace.records import Batch as RecordedBatch
from lipcert.audit.trace.records import Reduction, Step
from lipcert.gradient_stats.labels import checked_labels
from lipcert.privacy.noise import Neighbouring
from lipcert.settings.settings import Settings

_Array = npt.NDArray[Any]


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


def scale_of(run: RecordedRun, batch: RecordedBatch) -> Scale | None:
    """The scale of a batch.

    Under gradient clipping the gradients of the examples are taken apart before they are clipped,
    so that the reduction of the loss says nothing: without a divisor the clipped sum is noised.
    """
    declared, count = run.declared, batch.examples or 0
    if batch.divisor == 0.0:
        return None
    reduction = batch.reduction or declared.reduction
    if run.settings.enforced.clips_gradients:
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
    return settings.enforced.clips_gradients and settings.decay == "inside"


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


@final
@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """A recorded batch with what is needed to compute its gradient again."""

    name: str
    step: Step
    x: _Array
    labels: _Array
    scales: tuple[tuple[slice, Scale], ...]
    """of its micro-batches"""

    def __len__(self) -> int:
        return len(self.x)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Release:
    """What all ranks do in one step. batches: of the ranks that drew any example."""

    name: str
    steps: tuple[Step, ...]
    batches: tuple[Batch, ...]

    @property
    def cleans(self) -> list[Blob]:
        """The different clean gradients that the ranks recorded."""
        return _distinct([step.gradients.clean for step in self.steps])

    @property
    def starts(self) -> list[Blob]:
        """The different weights that the ranks started from."""
        return _distinct([step.weights_before for step in self.steps])

    @property
    def examples(self) -> int:
        """In all ranks."""
        return sum(len(batch) for batch in self.batches)


def batch_of(run: RecordedRun, step: Step) -> Batch | str | None:
    """The batch of one rank; a sentence why it cannot be computed again; None: not recorded."""
    name = run.name(step)
    if name not in run.whole_batches:
        return None
    examples = examples_at(run.trace, name, run.graph.input_shape, run.data, run.settings)
    labels = checked_labels(run.claims.engine.loss, examples.y, run.graph.output_shape)
    scales: list[tuple[slice, Scale]] = []
    start = 0
    for micro in step.batches:
        stop, scale = start + (micro.examples or 0), scale_of(run, micro)
        if stop > start and scale is None:
            return (
                f"{name} does not record what the sum of its gradients is divided by; use "
                "recorder.batch(divisor=…) or recorder.declare(reduction=…)"
            )
        if stop > start and scale is not None:
            scales.append((slice(start, stop), scale))
        start = stop
    return Batch(name, step, examples.x, labels, tuple(scales))


def releases(run: RecordedRun) -> Iterator[Release]:
    """Every step of which a clean gradient, and the batches and weights of all ranks, are known."""
    ranks: dict[int, list[Step]] = {}
    for step in run.steps:
        ranks.setdefault(step.number, []).append(step)
    for number, steps in sorted(ranks.items()):
        complete = len(steps) == len(run.trace.ranks)
        if not complete or all(step.gradients.clean is None for step in steps):
            continue
        found = [batch_of(run, step) for step in steps]
        batches = tuple(batch for batch in found if isinstance(batch, Batch))
        empty = [step for step in steps if _is_empty(step)]
        if len(batches) + len(empty) == len(steps):
            yield Release(f"step {number}", tuple(steps), batches)


def _is_empty(step: Step) -> bool:
    return bool(step.batches) and all(batch.examples == 0 for batch in step.batches)


def _distinct(blobs: list[Blob | None]) -> list[Blob]:
    return list({blob.sha256: blob for blob in blobs if blob is not None}.values())
