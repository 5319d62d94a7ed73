"""Weight constraint (LC310): whether recorded weights are among those that the bounds speak of.

Statement: at every recorded set of weights each constrained parameter has a norm of at most r: the
Euclidean one, or the operator norm of every op that uses it (a largest magnitude, where the op
multiplies or adds entry by entry). Compared: a certified upper end and a proved lower end of the
norm with r·(1 + n·u), u the unit roundoff of the type in which weights are stored, n the larger
side of the weight as a matrix.

Threshold: a projection W ↦ W·min(1, r/‖W‖) computed in that type rounds each entry once and the
factor by at most n − 1 roundings of a norm, so that it leaves ‖W‖ ≤ r·(1 + n·u) to first order.
Weights within it are within rounding of a member, and pass with the excess stated. A violation is
only said where the lower end is above it. False alarms: none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import final

import numpy as np

from lipcert.analysis.scopes import constraints_of
from lipcert.audit.bounds import Claims
from lipcert.audit.checks.subject import Checked, RecordedRun
from lipcert.audit.lower_norm import Layer, operator_norm_lower
from lipcert.audit.lowering.operands import parameters_of
from lipcert.audit.recorded import checkpoints
from lipcert.audit.records import CheckReport, Verdict
from lipcert.audit.viewed import graph_at, is_shown
from lipcert.ir import Graph, Node
from lipcert.norms.operator_norm import Tier
from lipcert.scope import PointScope
from lipcert.settings import ConstraintSpec
from lipcert.upper import FloatArray, Lower, Upper, norm, norm_lower

__all__ = ["Settled", "bounds_hold_at", "file_weights", "recorded_weights", "settled_weights"]

_NAME = "weight-constraint"
_MODEL = "model"


@final
@dataclass(frozen=True, slots=True)
class _Excess:
    """A norm between two ends, over its radius; allowed: the ratio that rounding explains."""

    weights: str
    parameter: str
    constraint: ConstraintSpec
    lower: float
    upper: float
    allowed: float

    @property
    def verdict(self) -> Verdict:
        """Where the ratio lies with respect to what is allowed."""
        if self.upper <= self.allowed:
            return Verdict.PASS
        return Verdict.VIOLATION if self.lower > self.allowed else Verdict.INCONCLUSIVE


@final
@dataclass(frozen=True, slots=True)
class _Limit:
    """A radius, the ratio to it that rounding explains, and how hard to try for a norm."""

    radius: float
    allowed: float
    tiers: tuple[Tier, ...]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Settled:
    """Weights to replay. admissible: whether the bounds speak of them; None: those of the file."""

    weights: Mapping[str, FloatArray] | None
    admissible: bool


def settled_weights(claims: Claims, weights: Mapping[str, FloatArray] | None) -> Settled:
    """The weights that a run would use in place of these, for which the bounds hold.

    What rounding left outside its constraint is scaled down into it; what lies further outside is
    left as it is, and not admissible. Weight clipping scales down everything that is outside.
    Proof: every constraint is of a norm, which scales with the tensor; 2^-40 covers the roundings
    of the scaling.
    """
    settings = claims.settings
    clips = settings.mechanism == "weight-clipping"
    graph = claims.engine.graph
    admissible = weights is None or bounds_hold_at(claims, weights)
    if settings.scope != "constraint-set" and not clips:
        return Settled(weights, admissible)
    known = parameters_of(graph) if weights is None else weights
    found = dict(known)
    for excess in _excesses(claims, graph, known, _MODEL, _storage_unit(known)):
        if excess.upper <= 1.0:
            continue
        if not clips and excess.upper > excess.allowed:
            admissible = False
            continue
        scaled = known[excess.parameter] * ((1.0 - 2.0**-40) / excess.upper)
        before = found[excess.parameter]
        found[excess.parameter] = min(before, scaled, key=lambda w: float(np.abs(w).max()))
    return Settled(found, admissible)


def bounds_hold_at(claims: Claims, weights: Mapping[str, FloatArray]) -> bool:
    """Whether bounds at one point are about these weights; others are about all, or have a check.

    At a point that is the file's weights; under a clip of gradients it is all weights, too.
    """
    settings, graph = claims.settings, claims.engine.graph
    if settings.scope == "constraint-set" or settings.weights_are_free:
        return True
    return all(is_shown(graph, name, numbers) for name, numbers in weights.items())


def _storage_unit(weights: Mapping[str, FloatArray]) -> float:
    """Unit roundoff of the type in which weights were stored: float32 where it holds them."""
    exact = all(np.array_equal(w, w.astype(np.float32)) for w in weights.values())
    return 2.0**-24 if exact else 2.0**-53


def file_weights(claims: Claims, weights: Mapping[str, FloatArray]) -> Checked:
    """The weights of the file, where they are what is replayed: outside they are a mismatch."""
    if claims.settings.scope != "constraint-set":
        return Checked()
    unit = _storage_unit(weights)
    excesses = list(_excesses(claims, claims.engine.graph, weights, _MODEL, unit))
    return _reported(excesses, Verdict.MISMATCH)


def recorded_weights(run: RecordedRun) -> Checked:
    """Every recorded set of weights."""
    names = checkpoints(run.trace)
    if run.settings.scope == "point":
        return _at_the_point(run, names)
    if not constraints_of(run.graph, run.settings):
        return Checked()
    if not names:
        return Checked(
            not_done=(f"{_NAME}: no step records its weights; use every=… of the recorder",)
        )
    excesses: list[_Excess] = []
    for name in names:
        excesses += _excesses(run.claims, run.graph, run.weights(name), name, _unit(run))
    return _reported(excesses, Verdict.VIOLATION)


def _at_the_point(run: RecordedRun, names: list[str]) -> Checked:
    """Bounds at the weights of the file say nothing of others, unless a clip makes them."""
    if run.settings.weights_are_free:
        return Checked()
    for name in names:
        for parameter, numbers in run.weights(name).items():
            if is_shown(run.graph, parameter, numbers):
                continue
            if run.settings.mechanism == "weight-clipping":
                text = (
                    f"{_NAME}: the bounds are those at the weights of the file; the run computes "
                    "its own at every step, which the trace does not hold"
                )
                return Checked(not_done=(text,))
            report = CheckReport(
                code="LC319",
                name=_NAME,
                verdict=Verdict.MISMATCH,
                message=f"the bounds hold at the weights of the file alone, and {parameter!r} at "
                f"{name} differs from them",
                where=name,
                remedy="declare the constraints that training enforces (--scope constraint-set), "
                "or audit an export of each step",
            )
            return Checked((report,))
    return Checked()


def _reported(excesses: list[_Excess], outside: Verdict) -> Checked:
    """One report for every tensor that is outside or undecided, else one pass with the largest."""
    if not excesses:
        return Checked()
    bad = [excess for excess in excesses if excess.verdict is not Verdict.PASS]
    reports = []
    for parameter in dict.fromkeys(excess.parameter for excess in bad):
        mine = [excess for excess in bad if excess.parameter == parameter]
        reports.append(_report(mine, outside))
    if reports:
        return Checked(tuple(reports))
    worst = max(excesses, key=lambda excess: excess.upper)
    radius = worst.constraint.radius
    places = len({excess.weights for excess in excesses})
    over = ""
    if worst.upper > 1.0:
        over = f", exceeding it by {worst.upper - 1.0:.1e} of it at most, which is rounding"
    message = (
        f"all constrained weights at {places} recorded steps obey their constraint{over}"
        if worst.weights != _MODEL
        else f"the weights of the file obey their constraints{over}"
    )
    return Checked(
        (
            CheckReport(
                code="LC310",
                name=_NAME,
                verdict=Verdict.PASS,
                message=message,
                where=f"{worst.weights}: {worst.parameter}",
                measured=worst.upper * radius,
                expected=radius,
            ),
        )
    )


def _report(mine: list[_Excess], outside: Verdict) -> CheckReport:
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
    return CheckReport(
        code="LC310",
        name=_NAME,
        verdict=outside if violated else Verdict.INCONCLUSIVE,
        message=message,
        where=f"{worst.weights}: {worst.parameter}",
        measured=worst.lower * radius if violated else worst.upper * radius,
        expected=radius,
        remedy=remedy,
    )


def _excesses(
    claims: Claims, graph: Graph, weights: Mapping[str, FloatArray], name: str, unit: float
) -> Iterator[_Excess]:
    at = graph_at(graph, weights)
    tiers = (Tier.QUICK, Tier.FAST, Tier.TIGHT)
    for parameter, constraint in constraints_of(graph, claims.settings).items():
        whole = weights.get(parameter)
        if whole is None:
            continue
        rows = whole.shape[0] if whole.ndim else 1
        allowed = 1.0 + max(rows, whole.size // max(rows, 1), 1) * unit
        radius = constraint.radius
        if constraint.kind == "frobenius":
            ends = [_ends(norm_lower(whole), norm(whole), radius)]
        else:
            ends = [
                _spectral(at, node, slot, _Limit(radius, allowed, tiers))
                for node in at.nodes
                for slot, operand in node.op.operands().items()
                if operand.parameter == parameter
            ]
        for low, high in ends:
            yield _Excess(name, parameter, constraint, low, high, allowed)


def _spectral(graph: Graph, node: Node, slot: str, limit: _Limit) -> tuple[float, float]:
    """Ends of the norm of an op over what the bounds assume of it, r·max(1, gain of the view)."""
    op, operand = node.op, node.op.operands()[slot]
    reach = limit.radius * max(1.0, operand.gain.value)
    if slot != "weight" or not isinstance(op, Layer):
        largest = float(np.max(np.abs(operand.array), initial=0.0))
        return _ends(Lower(largest), Upper(largest), reach)
    lower, upper = 0.0, np.inf
    for tier in limit.tiers:
        found = op.operator_norm(PointScope(tier)).value
        upper = min(upper, found.over(Lower(reach)).value)
        if upper <= limit.allowed or lower > limit.allowed:
            break
        lower = operator_norm_lower(op, graph.shape_of(node.inputs[0])).over(Upper(reach)).value
        if lower > limit.allowed:
            break
    return lower, upper


def _ends(lower: Lower, upper: Upper, radius: float) -> tuple[float, float]:
    """Both over the radius."""
    return lower.over(Upper(radius)).value, upper.over(Lower(radius)).value


def _unit(run: RecordedRun) -> float:
    """Unit roundoff of the type in which the run stores its weights."""
    known = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
    used = [step.arithmetic.dtype for step in run.steps if step.arithmetic is not None]
    return max((known.get(dtype, 2.0**-53) for dtype in used), default=2.0**-24)
