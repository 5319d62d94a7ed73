"""The scope of a planned run: which constraint each trained parameter obeys.

What enters: a graph and the settings. What leaves: the `Scope` for which all bounds hold.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from lipcert.ir import Graph
from lipcert.norms.operator_norm import Tier, operator_norm
from lipcert.operand import Operand
from lipcert.scope import (
    Constraint,
    ConstraintKind,
    ConstraintScope,
    NormRule,
    PointScope,
    Scope,
)
from lipcert.settings import ConstraintSpec, Settings
from lipcert.upper import ONE, Upper


def scope_of(graph: Graph, settings: Settings, certify: NormRule = operator_norm) -> Scope:
    """The weights of the file, or every weight within the declared constraints.

    Weight clipping at the weights of the file leaves those within their radius alone; of the
    others all that is used is that their norm is then the radius.
    """
    tier = Tier(settings.tier)
    point = PointScope(tier, certify)
    constraints = {
        name: Constraint(ConstraintKind(spec.kind), Upper(spec.radius))
        for name, spec in constraints_of(graph, settings).items()
    }
    if settings.scope == "constraint-set":
        trained = frozenset(p.name for p in graph.parameters.values() if p.trainable)
        return ConstraintScope(constraints, trained, tier, certify)
    scaled = _scaled_down(graph, constraints, point)
    return ConstraintScope(constraints, scaled, tier, certify) if scaled else point


def _scaled_down(
    graph: Graph, constraints: Mapping[str, Constraint], point: PointScope
) -> frozenset[str]:
    """The parameters that a clip of the weights changes, or may change.

    A Frobenius constraint speaks of the whole parameter, of which an operand may show a part; a
    spectral one of every op that uses it: of the norm of a linear map, else of the largest entry.
    """
    found = set()
    for node in graph.nodes:
        for slot, operand in node.op.operands().items():
            constraint = constraints.get(operand.parameter or "")
            if operand.parameter is None or constraint is None:
                continue
            if constraint.kind is ConstraintKind.SPECTRAL:
                operator = node.op.operator_norm(point) if slot == "weight" else None
                norm = point.max_abs(operand) if operator is None else operator
                is_left = norm.value <= constraint.radius
            else:
                is_plain = _is_whole(operand, graph.parameters[operand.parameter].size)
                is_left = is_plain and point.norm(operand).value <= constraint.radius
            if not is_left:
                found.add(operand.parameter)
    return frozenset(found)


def _is_whole(operand: Operand, size: int) -> bool:
    """Whether an operand shows every entry of its parameter once, but for signs.

    Proof: without a factor, a gain of 1 shows no entry twice; as many as there are, none of them
    a zero beside the parameter, are all of them. With a factor it tells nothing: a half of four
    copies of a few entries has a gain of 1, and may be as large as the parameter.
    """
    is_plain = abs(operand.scale) == 1.0 and operand.gain == ONE
    is_padded = operand.places is not None and bool(np.any(operand.places < 0))
    return operand.array.size == size and is_plain and not is_padded


def constraints_of(graph: Graph, settings: Settings) -> Mapping[str, ConstraintSpec]:
    """The constraint of each trained parameter that has one.

    A parameter's own entry wins; otherwise biases obey `bias_norm` (a Euclidean norm) and all
    others `constraint`. A tensor that is a bias at one node and a weight at another obeys the
    weight's, because the rules would otherwise apply a constraint that nobody declared for it.
    """
    found: dict[str, ConstraintSpec] = {}
    slots: dict[str, set[str]] = {}
    for node in graph.nodes:
        for slot, operand in node.op.operands().items():
            if operand.parameter is not None and graph.parameters[operand.parameter].trainable:
                slots.setdefault(operand.parameter, set()).add(slot)
    for name, used in slots.items():
        spec = settings.own_constraint(name)
        if spec is None and used == {"bias"}:
            if settings.bias_norm is not None:
                spec = ConstraintSpec("frobenius", settings.bias_norm)
        elif spec is None:
            spec = settings.constraint
        if spec is not None:
            found[name] = spec
    return found
