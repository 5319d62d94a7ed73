"""Released (LC314, LC311): whether the optimizer applied exactly the one gradient that was noised.

Statement: all ranks of a step hold the same noised gradient: if each adds noise of its own, every
rank makes a release, and together they hide less than one. At every step that records both, the
applied gradient of every tensor is the noised one times one positive number, the same for all
tensors of the step (such as a division by the batch size). The optimizer trains no other tensor: a
further one with a clean gradient is a violation. The number is computed from public numbers,
neither from the current batch nor from its gradient.
Compared: noised gradients of ranks, bit for bit; the applied gradients a with c·n, n the noised
ones, c = ⟨a, n⟩/⟨n, n⟩ over all tensors; and c from step to step.

Threshold: multiplying n by a number and storing the result is off by at most three roundings of
every entry, and c by no more than that; so ‖a − c·n‖ ≤ 8·u·‖a‖ for each tensor, u the unit of the
type of a. A violation is a c that differs between steps, and whose product with, or quotient by, a
private number that the trace has for each step is the same at all of them, up to 2^-18: the number
of examples, the norm of the clean gradient, the loss. A c that is smaller only where it makes ‖a‖
the same, up to 2^-10, clips the noised gradient, and is harmless. Any other c that changes, or is
0, is inconclusive, since the record does not show what determines it. False alarms: none, unless
the run changes gradients after the noise in another way (a clip of entries, a weight decay), which
is harmless, and cannot be distinguished from a release without noise: so a difference is a
violation only if a is closer to the clean gradient than to the noised one.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lipcert.audit.checks.recorded_run import (
    FEW,
    Finding,
    RecordedRun,
    exact,
    norm_of,
    run_check,
    stored_roundoff,
)
from lipcert.audit.records import Check, CheckReport, Verdict
from lipcert.audit.trace.blobs import Blob
from lipcert.audit.trace.records import Step
from lipcert.core.program import FloatArray

_CHECK: Final = Check(
    "LC314", "release", "let the optimizer take the noised gradient, and record what it takes"
)
_DIVISOR: Final = Check("LC311", "release", "divide by a public constant, the expected batch size")
_ROUNDINGS: Final = 8.0
_AS_ONE: Final = 2.0**-18
_CLIPPED: Final = 2.0**-10
_Tensors = Mapping[str, npt.NDArray[Any]]


@run_check(_CHECK, most=FEW)
def released(run: RecordedRun) -> Iterator[Finding]:
    """Report every step that applied something else than what was noised, or a pass."""
    compared = 0
    yield from _several(run)
    yield from _multiples(run)
    for step in run.steps:
        clean, noised, applied = (
            {} if blob is None else blob.tensors() for blob in step.gradients.each
        )
        if noised and applied:
            compared += 1
            yield from _faults(run, step, clean, noised, applied)
    if compared:
        yield _CHECK.passed(
            f"the optimizer applied the noised gradients at {compared} recorded steps"
        )
    else:
        yield "no step records the noised gradient and the one that was applied"


def _several(run: RecordedRun) -> Iterator[CheckReport]:
    """Report steps at which two ranks hold different noised gradients."""
    first: dict[int, tuple[str, Blob]] = {}
    for step in run.steps:
        noised = step.gradients.noised
        if noised is None:
            continue
        name, known = first.setdefault(step.number, (run.name(step), noised))
        if known != noised:
            yield _CHECK.failed(
                f"{name} and {run.name(step)} hold different noised gradients: every rank makes a "
                "release of its own, but only one was accounted for",
                run.name(step),
                remedy="draw the noise in one rank, and apply what it noised in all of them",
            )


@dataclass(frozen=True, slots=True)
class _Multiple:
    """c of one step, ‖n‖, and private numbers of the step by their descriptions."""

    step: str
    factor: float
    length: float
    private: Mapping[str, float]


def _multiples(run: RecordedRun) -> Iterator[CheckReport]:
    """Report the factor of the noised gradient, if it changes between steps."""
    sizes = Counter[int]()
    for step in run.steps:
        sizes[step.number] += step.examples
    multiples = (_multiple(run, step, sizes[step.number]) for step in run.steps)
    found = [item for item in multiples if item is not None]
    if len(found) < 2 or _are_one([item.factor for item in found]):
        return
    least, most = (pick(found, key=lambda item: item.factor) for pick in (min, max))
    known = set[str].intersection(*(set(item.private) for item in found))
    for name in sorted(known):
        numbers = [item.private[name] for item in found]
        products = [item.factor * x for item, x in zip(found, numbers, strict=True)]
        quotients = [item.factor / x for item, x in zip(found, numbers, strict=True)]
        if any(_are_one(each) and each[0] > 0.0 for each in (products, quotients)):
            yield _DIVISOR.failed(
                f"after the noise gradients are multiplied by {least.factor:.6g} at {least.step} "
                f"and by {most.factor:.6g} at {most.step}, as {name} has it: a divisor must be one "
                "public constant (LC401)",
                least.step,
                (least.factor, most.factor),
            )
            return
    if not _is_clip(found, most.factor):
        yield _DIVISOR.failed(
            f"after the noise gradients are multiplied by {least.factor:.6g} at {least.step} and "
            f"by {most.factor:.6g} at {most.step}, and the trace does not say why",
            least.step,
            (least.factor, most.factor),
            verdict=Verdict.INCONCLUSIVE,
            remedy="apply the noised gradient times one public constant, at every step, and put "
            "schedules into the learning rate",
        )


def _is_clip(found: list[_Multiple], largest: float) -> bool:
    """Whether c is smaller exactly where c‖n‖ would exceed one radius otherwise."""
    lengths = [item.factor * item.length for item in found]
    clipped = [not _are_one([item.factor, largest]) for item in found]
    radii = [length for length, is_cut in zip(lengths, clipped, strict=True) if is_cut]
    return _are_one(radii, _CLIPPED) and max(lengths) <= min(radii) * (1.0 + _CLIPPED)


def _multiple(run: RecordedRun, step: Step, size: int) -> _Multiple | None:
    noised, applied = step.gradients.noised, step.gradients.applied
    if noised is None or applied is None:
        return None
    before, after = noised.tensors(), applied.tensors()
    pairs = [(exact(after[name]), exact(before[name])) for name in before.keys() & after.keys()]
    length = _length([n for _, n in pairs])
    if not 0.0 < length < math.inf:
        return None
    losses = [batch.loss for batch in step.batches if batch.loss is not None]
    clean = step.gradients.clean
    private = {
        "the number of examples of the batch": float(size),
        "the loss of the batch": losses[0] if len(losses) == len(run.trace.ranks) == 1 else 0.0,
        "the norm of the clean gradient": 0.0
        if clean is None
        else _length([exact(item) for item in clean.tensors().values()]),
    }
    return _Multiple(
        run.name(step), _factor(pairs), length, {k: x for k, x in private.items() if x > 0.0}
    )


def _length(tensors: list[FloatArray]) -> float:
    return math.hypot(*map(norm_of, tensors))


def _are_one(numbers: list[float], share: float = _AS_ONE) -> bool:
    """Whether the numbers are equal up to a share of the largest."""
    return not numbers or max(numbers) - min(numbers) <= share * max(map(abs, numbers))


def _faults(
    run: RecordedRun, step: Step, clean: _Tensors, noised: _Tensors, applied: _Tensors
) -> Iterator[CheckReport]:
    yield from _never_noised(run, step, clean, noised, applied)
    names = sorted(noised.keys() & applied.keys())
    unit = max((stored_roundoff(step, applied[name]) for name in names), default=0.0)
    wide = {name: (exact(applied[name]), exact(noised[name])) for name in names}
    factor = _factor(list(wide.values()))
    for name, (a, n) in wide.items():
        off, length = norm_of(a - factor * n), norm_of(a)
        if off <= _ROUNDINGS * unit * length:
            continue
        plain = name in clean and _distance(a, exact(clean[name])) < _distance(a, n)
        what = "the gradient without its noise" if plain else "a gradient other than the noised one"
        yield _CHECK.failed(
            f"{run.name(step)}, {name}: the optimizer applied {what}",
            f"{run.name(step)}, {name}",
            (off, _ROUNDINGS * unit * length),
            verdict=Verdict.VIOLATION if plain else Verdict.INCONCLUSIVE,
        )


def _never_noised(
    run: RecordedRun, step: Step, clean: _Tensors, noised: _Tensors, applied: _Tensors
) -> Iterator[CheckReport]:
    """Report what the optimizer applies besides what was noised."""
    trained = step.trained or applied.keys()
    for name in sorted(trained & applied.keys() - noised.keys()):
        if not np.any(applied[name]):
            continue
        is_known = name in clean
        how = "without noise" if is_known else "and the record does not show that it was noised"
        yield _CHECK.failed(
            f"{run.name(step)}, {name}: the optimizer applied a gradient, {how}",
            f"{run.name(step)}, {name}",
            verdict=Verdict.VIOLATION if is_known else Verdict.INCONCLUSIVE,
            remedy="noise every tensor that the optimizer trains, and show it to the recorder",
        )


def _distance(a: FloatArray, b: FloatArray) -> float:
    """Return the distance from a to the closest positive multiple of b."""
    square = float(np.vdot(b, b))
    return norm_of(a - max(0.0, float(np.vdot(a, b)) / square if square else 0.0) * b)


def _factor(pairs: list[tuple[FloatArray, FloatArray]]) -> float:
    """Return c for pairs (a, n)."""
    square = sum(float(np.vdot(n, n)) for _, n in pairs)
    product = sum(float(np.vdot(a, n)) for a, n in pairs)
    return product / square if square else 1.0
