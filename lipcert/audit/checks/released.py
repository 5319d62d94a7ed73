"""Released (LC314): whether what the optimizer applied is what was noised.

Statement: at every step that records both, the applied gradient of every tensor is the noised one
times one positive number, the same for all tensors of the step (a division by the batch size, say).
Compared: the applied gradients a with c·n, n the noised ones, c = ⟨a, n⟩/⟨n, n⟩ over all tensors.

Threshold: multiplying n by a number and storing the result is off by at most three roundings of
every entry, and c by no more than that; so ‖a − c·n‖ ≤ 8·u·‖a‖ for each tensor, u the unit of the
coarser type of the two. False alarms: none, unless the run changes gradients after the noise in
another way (a clip of the noised gradient, a weight decay), which is harmless, and cannot be told
from a release without noise: so a difference is a violation only where a is closer to the clean
gradient than to the noised one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np

from lipcert.audit.checks.subject import Checked, RecordedRun, shortened
from lipcert.audit.records import CheckReport, Verdict
from lipcert.audit.trace.records import Step
from lipcert.upper import FloatArray

__all__ = ["released"]

_NAME: Final = "release"
_BFLOAT16: Final = 2.0**-8
_ROUNDINGS: Final = 8.0
_Tensors = Mapping[str, FloatArray]


def released(run: RecordedRun) -> Checked:
    """A report for every step that applied something else than what was noised, or a pass."""
    compared = 0
    reports: list[CheckReport] = []
    for step in run.steps:
        gradients = step.gradients
        if gradients.noised is None or gradients.applied is None:
            continue
        compared += 1
        reports += _faults(run, step)
    if not compared:
        text = f"{_NAME}: no step records the noised gradient and the one that was applied"
        return Checked(not_done=(text,) if run.steps else ())
    if not reports:
        message = f"the optimizer applied the noised gradients at {compared} recorded steps"
        return Checked((CheckReport("LC314", _NAME, Verdict.PASS, message),))
    return Checked(shortened(reports))


def _faults(run: RecordedRun, step: Step) -> Iterator[CheckReport]:
    noised, applied = _tensors(step, "noised"), _tensors(step, "applied")
    clean = _tensors(step, "clean")
    unit = _unit(step)
    names = sorted(noised.keys() & applied.keys())
    factor = _factor(applied, noised, names)
    for name in names:
        a, n = applied[name], noised[name]
        off, length = _norm(a - factor * n), _norm(a)
        if off <= _ROUNDINGS * unit * length:
            continue
        plain = name in clean and _is_closer(a, clean[name], n)
        yield CheckReport(
            code="LC314",
            name=_NAME,
            verdict=Verdict.VIOLATION if plain else Verdict.INCONCLUSIVE,
            message=f"{run.name(step)}, {name}: the optimizer applied "
            + (
                "the gradient without its noise"
                if plain
                else "something else than the noised gradient"
            ),
            where=f"{run.name(step)}, {name}",
            measured=off,
            expected=_ROUNDINGS * unit * length,
            remedy="let the optimizer take the noised gradient, and record what it takes",
        )


def _is_closer(applied: FloatArray, clean: FloatArray, noised: FloatArray) -> bool:
    """Whether the direction of what was applied is rather that of the clean gradient."""
    return _distance(applied, clean) < _distance(applied, noised)


def _distance(a: FloatArray, b: FloatArray) -> float:
    """From a to the closest positive multiple of b."""
    square = float(np.vdot(b, b))
    return _norm(a - max(0.0, float(np.vdot(a, b)) / square if square else 0.0) * b)


def _factor(applied: _Tensors, noised: _Tensors, names: list[str]) -> float:
    square = sum(float(np.vdot(noised[name], noised[name])) for name in names)
    product = sum(float(np.vdot(applied[name], noised[name])) for name in names)
    return product / square if square else 1.0


def _tensors(step: Step, kind: str) -> _Tensors:
    blob = getattr(step.gradients, kind)
    found = {} if blob is None else blob.tensors()
    return {name: array.astype(np.float64) for name, array in found.items()}


def _unit(step: Step) -> float:
    """The coarser storage of the two; bfloat16 comes back as float32."""
    kinds = [step.gradients.noised, step.gradients.applied]
    units = [
        float(np.finfo(array.dtype).eps)
        for blob in kinds
        if blob is not None
        for array in blob.tensors().values()
    ]
    halved = step.arithmetic is not None and step.arithmetic.dtype == "bfloat16"
    return max([*units, _BFLOAT16 if halved else 0.0])


def _norm(array: FloatArray) -> float:
    return float(np.linalg.norm(array.reshape(-1)))
