"""The form of a check of a recorded run; and its batches, with their scales, and its noise.

A check is a generator: it yields a report for each thing that it compared, and a sentence for each
thing that it could not compare. `RunCheck` is the one loop around it. The docstring of a check
states what is claimed, the statistic, the threshold, and how often a correct run is rejected.

What is noised is outer · Σ_i m(inner · ∇ℓ_i), m being what the mechanism does to one example: a
clip inside the backward pass sees the loss as it was reduced, so that a mean divides before it, and
dividing the clip's radius again counts the divisor twice. With the decay inside the clip, m is
applied to ∇ℓ_i + λθ. Invariant: all ranks of a step make one release: what is noised is the sum
over their batches, some of which may be empty.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from lipcert.audit.recorded import RecordedRun
from lipcert.audit.records import Check, CheckReport, EpsilonInterval, Verdict
from lipcert.audit.trace.blobs import Blob
from lipcert.audit.trace.records import Batch as RecordedBatch
from lipcert.audit.trace.records import Reduction, Step
from lipcert.core.program import FloatArray
from lipcert.gradient_stats.labels import checked_labels
from lipcert.privacy.noise import Group
from lipcert.settings.settings import Settings

FEW: Final = 4
"""Number of places that are named if a check fails at many."""
NO_DECAY: Final = "the run does not state λ; use recorder.declare(weight_decay=…)"


@dataclass(frozen=True, slots=True)
class Checked:
    """Reports of checks, and a sentence for each check that could not be done.

    epsilon: the ε of the run, from below and above.
    """

    reports: tuple[CheckReport, ...] = ()
    not_done: tuple[str, ...] = ()
    epsilon: EpsilonInterval | None = None


def joined(*parts: Checked) -> Checked:
    """Join the parts in order; equal sentences are kept once."""
    return Checked(
        tuple(report for part in parts for report in part.reports),
        tuple(dict.fromkeys(text for part in parts for text in part.not_done)),
        next((part.epsilon for part in parts if part.epsilon is not None), None),
    )


Finding: TypeAlias = CheckReport | EpsilonInterval | str
"""A report, an interval of ε, or a sentence that says what could not be compared, and why."""

Finder: TypeAlias = Callable[[RecordedRun], Iterable[Finding]]


@dataclass(frozen=True, slots=True)
class RunCheck:
    """A check of recorded runs; `find` yields its findings.

    most: the number of places that are named, the worst first; None: all of them, in order.
    keeps_passes: whether passes are kept beside failures, because they concern something else.
    """

    check: Check
    find: Finder
    most: int | None = None
    keeps_passes: bool = False

    def __call__(self, run: RecordedRun) -> Checked:
        """Return what the check finds in a run."""
        found = list(self.find(run))
        reports = [item for item in found if isinstance(item, CheckReport)]
        missing = [f"{self.check.name}: {item}" for item in found if isinstance(item, str)]
        failed = [report for report in reports if report.verdict is not Verdict.PASS]
        if failed and not self.keeps_passes:
            reports = failed
        if self.most is not None:
            reports.sort(key=lambda report: report.verdict is not Verdict.VIOLATION)
            reports = list(shortened(reports, self.most))
        known = next((item for item in found if isinstance(item, EpsilonInterval)), None)
        return Checked(tuple(reports), tuple(dict.fromkeys(missing)), known)


def run_check(
    check: Check, *, most: int | None = None, keeps_passes: bool = False
) -> Callable[[Finder], RunCheck]:
    """Turn the generator below into a check."""
    return lambda find: RunCheck(check, find, most, keeps_passes)


def shortened(reports: Sequence[CheckReport], most: int = FEW) -> tuple[CheckReport, ...]:
    """Return the first few reports; the last of them says how many more there are."""
    kept = list(reports[:most])
    more = len(reports) - len(kept)
    if more:
        kept[-1] = replace(kept[-1], message=f"{kept[-1].message} (and {more} more places)")
    return tuple(kept)


_Array = npt.NDArray[Any]


def exact(recorded: _Array) -> FloatArray:
    """Return a recorded tensor in float64."""
    return np.asarray(recorded, dtype=np.float64)


def roundoff(array: _Array) -> float:
    """Return the unit roundoff of the type of a tensor, 2^-53 for any but a float."""
    return float(np.finfo(array.dtype).eps) / 2.0 if array.dtype.kind == "f" else 2.0**-53


def stored_roundoff(step: Step, recorded: _Array) -> float:
    """Return the unit roundoff of the type in which a run stores a tensor; bfloat16 is read as
    float32."""
    halved = step.arithmetic is not None and step.arithmetic.dtype == "bfloat16"
    return max(roundoff(recorded), 2.0**-8 if halved else 0.0)


def norm_of(tensor: FloatArray) -> float:
    """Return the Euclidean norm of all entries."""
    return float(np.linalg.norm(tensor.reshape(-1)))


@dataclass(frozen=True, slots=True)
class Scale:
    """The factors in outer · Σ_i m(inner · ∇ℓ_i), the quantity that is noised."""

    inner: float
    outer: float

    @property
    def divisor(self) -> float:
        """The number that the sum of the gradients is divided by, apart from clips."""
        return 1.0 / (self.inner * self.outer)


def scale_of(run: RecordedRun, batch: RecordedBatch) -> Scale | None:
    """Return the scale of a batch; None if it is not recorded.

    Under gradient clipping the per-example gradients are separated before they are clipped, so that
    the reduction of the loss does not matter: without a divisor the clipped sum is noised.
    """
    declared, count = run.declared, batch.examples or 0
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
    """Return what the claims divide the sum of the gradients by."""
    return float(settings.batch_size or 1) if settings.reduction == "mean" else 1.0


def decays_inside(settings: Settings) -> bool:
    """Whether ∇ℓ + λθ is what is clipped."""
    return settings.enforced.clips_gradients and settings.decay == "inside"


def decay_of(run: RecordedRun) -> float | None:
    """Return λ if ∇ℓ + λθ is what the run clips, otherwise 0; None if the run does not state it."""
    return run.declared.weight_decay if decays_inside(run.settings) else 0.0


def noise_stds(run: RecordedRun, step: Step | None) -> Mapping[str, float]:
    """Return the standard deviation of the noise by recorded tensor; without a key if it is not
    known.

    A group is one that the run declares, one of the claims, or a single tensor; a single entry
    under any other name applies to everything. step: None for what the run declares. If a rank
    states nothing for a step, the statements of other ranks count: all of them make one release.
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
    """Return the smallest noise on any tensor of each group of the claims that has noise on all."""
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


def _recorded(run: RecordedRun, group: Group) -> tuple[str, ...]:
    return tuple(run.names[name].recorded for name in group.parameters)


def stated_noise(run: RecordedRun) -> Iterator[tuple[str, Step | None]]:
    """Yield every different statement of the noise, with its first place."""
    declared = run.declared.noise_std
    said = [(run.name(step), step, step.noise.std) for step in run.steps if step.noise is not None]
    seen: dict[object, tuple[str, Step | None]] = {}
    for where, step, std in [("the declaration", None, declared)] * bool(declared) + said:
        seen.setdefault(tuple(sorted(std.items())), (where, step))
    yield from seen.values()


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """A recorded batch with what is needed to compute its gradient again."""

    name: str
    step: Step
    x: _Array
    labels: _Array
    scales: tuple[tuple[slice, Scale], ...]
    """The scales of its micro-batches."""

    def __len__(self) -> int:
        return len(self.x)


@dataclass(frozen=True, slots=True, eq=False)
class Release:
    """The steps that all ranks do together for one release.

    batches: of the ranks that drew any example.
    """

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
        """The number of examples of all ranks."""
        return sum(len(batch) for batch in self.batches)


def batch_of(run: RecordedRun, step: Step) -> Batch | str | None:
    """Return the batch of one rank; a sentence if it cannot be computed again; None if not
    recorded."""
    name = run.name(step)
    if name not in run.whole_batches:
        return None
    examples = run.examples(name)
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
    """Yield every step for which a clean gradient, and batches and weights of all ranks, are
    known."""
    ranks: dict[int, list[Step]] = {}
    for step in run.steps:
        ranks.setdefault(step.number, []).append(step)
    for number, steps in sorted(ranks.items()):
        complete = len(steps) == len(run.trace.ranks)
        if not complete or all(step.gradients.clean is None for step in steps):
            continue
        found = [batch_of(run, step) for step in steps]
        batches = tuple(batch for batch in found if isinstance(batch, Batch))
        empty = [step for step in steps if step.batches and not step.filled]
        if len(batches) + len(empty) == len(steps):
            yield Release(f"step {number}", tuple(steps), batches)


def _distinct(blobs: list[Blob | None]) -> list[Blob]:
    return list({blob.sha256: blob for blob in blobs if blob is not None}.values())
