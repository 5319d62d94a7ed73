"""Recorded batches, ready to be computed again: of one rank, or of all ranks of a step.

What enters: steps of a recorded run. What leaves: examples with checked labels and the `Scale` of
each pass, or a sentence that says what the records lack. Invariant: all ranks of a step make one
release: what is noised is the sum over their batches, of which some may be empty.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, final

import numpy.typing as npt

from lipcert.audit.checks.subject import RecordedRun
from lipcert.audit.checks.units import Scale, scale_of
from lipcert.audit.labels import checked_labels
from lipcert.audit.recorded import examples_at
from lipcert.audit.trace.blobs import Blob
from lipcert.audit.trace.records import Step

_Array = npt.NDArray[Any]


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
