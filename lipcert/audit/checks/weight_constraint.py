"""Weight constraint (LC310): whether recorded weights are among those that the bounds speak of.

Statement: at every recorded set of weights each constrained parameter has a norm of at most r: the
Euclidean one, or the operator norm of every op that uses it (a largest magnitude, where the op
multiplies or adds entry by entry). Compared: a certified upper end and a proved lower end of the
norm with r·(1 + max(n·u, 2^-23)), u the unit roundoff of the type in which weights are stored, n
the larger side of the weight as a matrix.

Threshold: a projection W ↦ W·min(1, r/‖W‖) computed in that type rounds each entry once and the
factor by at most n − 1 roundings of a norm, so that it leaves ‖W‖ ≤ r·(1 + n·u) to first order; to
prove a norm takes a share of about 4e-8 of it. Weights within it are within rounding of a member,
and pass with the excess stated. A violation is only said where the lower end is above it. False
alarms: none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from lipcert.analysis.scopes import constraints_of
from lipcert.audit.bounds import Claims, are_made_anew
from lipcert.audit.checks.subject import Checked, RecordedRun
from lipcert.audit.constrained import Excess, excesses, storage_unit
from lipcert.audit.recorded import checkpoints
from lipcert.audit.records import Check, CheckReport, Verdict
from lipcert.graph.viewed import is_shown
from lipcert.upper import FloatArray

_NAME: Final = "weight-constraint"
_CHECK: Final = Check("LC310", _NAME)
_MODEL: Final = "model"


def file_weights(claims: Claims, weights: Mapping[str, FloatArray]) -> Checked:
    """The weights of the file, where they are what is replayed: outside they are a mismatch."""
    if claims.settings.scope != "constraint-set":
        return Checked()
    found = list(excesses(claims, weights, _MODEL, storage_unit(weights)))
    return _reported(found, Verdict.MISMATCH)


def recorded_weights(run: RecordedRun) -> Checked:
    """Every recorded set of weights."""
    names = checkpoints(run.trace)
    if run.settings.scope == "point" and not are_made_anew(run.settings):
        return _at_the_point(run, names)
    if not constraints_of(run.graph, run.settings):
        return Checked()
    if not names:
        return Checked(
            not_done=(f"{_NAME}: no step records its weights; use every=… of the recorder",)
        )
    found: list[Excess] = []
    for name in names:
        found += excesses(run.claims, run.weights(name), name, _unit(run))
    return _reported(found, Verdict.VIOLATION)


def _at_the_point(run: RecordedRun, names: list[str]) -> Checked:
    """Bounds at the weights of the file say nothing of others, unless a clip of gradients does."""
    if run.settings.weights_are_free:
        return Checked()
    for name in names:
        for parameter, numbers in run.weights(name).items():
            if is_shown(run.graph, parameter, numbers):
                continue
            report = Check("LC319", _NAME).failed(
                f"the bounds hold at the weights of the file alone, and {parameter!r} at {name} "
                "differs from them",
                name,
                verdict=Verdict.MISMATCH,
                remedy="declare the constraints that training enforces (--scope constraint-set), "
                "or audit an export of each step",
            )
            return Checked((report,))
    return Checked()


def _reported(found: list[Excess], outside: Verdict) -> Checked:
    """One report for every tensor that is outside or undecided, else one pass with the largest."""
    if not found:
        return Checked()
    bad = [excess for excess in found if excess.verdict is not Verdict.PASS]
    reports = []
    for parameter in dict.fromkeys(excess.parameter for excess in bad):
        mine = [excess for excess in bad if excess.parameter == parameter]
        reports.append(_report(mine, outside))
    if reports:
        return Checked(tuple(reports))
    worst = max(found, key=lambda excess: excess.upper)
    radius = worst.constraint.radius
    places = len({excess.weights for excess in found})
    over = ""
    if worst.upper > 1.0:
        over = f", exceeding it by {worst.upper - 1.0:.1e} of it at most, which is rounding"
    message = (
        f"all constrained weights at {places} recorded steps obey their constraint{over}"
        if worst.weights != _MODEL
        else f"the weights of the file obey their constraints{over}"
    )
    where = f"{worst.weights}: {worst.parameter}"
    return Checked((_CHECK.passed(message, where, (worst.upper * radius, radius)),))


def _report(mine: list[Excess], outside: Verdict) -> CheckReport:
    """Of one tensor: the worst place, and how many there are."""
    violated = [excess for excess in mine if excess.verdict is Verdict.VIOLATION]
    worst = max(violated or mine, key=lambda excess: excess.lower)
    radius = worst.constraint.radius
    many = f" (and at {len(mine) - 1} more sets of weights)" if len(mine) > 1 else ""
    if violated:
        message = (
            f"{worst.parameter!r} at {worst.weights} has the {worst.constraint.kind} norm "
            f"{worst.lower * radius:.9g}, its constraint is {radius:.9g}{many}"
        )
    else:
        message = (
            f"{worst.parameter!r} at {worst.weights} has a {worst.constraint.kind} norm between "
            f"{worst.lower * radius:.9g} and {worst.upper * radius:.9g}, its constraint is "
            f"{radius:.9g}{many}: it could not be told whether it obeys"
        )
    remedy = "project after every step of the optimizer, before the next forward pass"
    if violated and outside is Verdict.MISMATCH:
        remedy = "export weights that were projected, or bound the weights of the file"
    return _CHECK.failed(
        message,
        f"{worst.weights}: {worst.parameter}",
        ((worst.lower if violated else worst.upper) * radius, radius),
        verdict=outside if violated else Verdict.INCONCLUSIVE,
        remedy=remedy,
    )


def _unit(run: RecordedRun) -> float:
    """Unit roundoff of the type in which the run stores its weights."""
    known = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
    used = [step.arithmetic.dtype for step in run.steps if step.arithmetic is not None]
    return max((known.get(dtype, 2.0**-53) for dtype in used), default=2.0**-24)
