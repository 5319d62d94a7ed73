"""Weights within constraints, to measure at: those of the file, scaled.

Input: a graph and the constraint of each parameter. Output: the graph at scaled weights. Norms are
estimates (a few steps of power iteration): nothing is proved of the result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final
from weakref import WeakKeyDictionary

import numpy as np

from lipcert.core import program as p
from lipcert.graph.evaluate import evaluate_batch
from lipcert.graph.ir import Graph, Operand, Use
from lipcert.graph.viewed import graph_at, parameters_of
from lipcert.search.pullbacks import cotangents, pulls
from lipcert.settings.settings import ConstraintSpec
from lipcert.upper import FloatArray

_ROUNDS: Final = 12
_SMALLEST: Final = float(np.finfo(np.float64).tiny)
_KNOWN: Final[WeakKeyDictionary[Operand, float]] = WeakKeyDictionary()
"""norms of linear maps, by the operand of the step, which is an object of its own in every graph
but those that are made of one another and have the step as it was"""


def scaled_into(
    graph: Graph, constraints: Mapping[str, ConstraintSpec], *, exactly: bool = False
) -> Graph:
    """The graph with every constrained weight scaled down to its radius if it exceeds that.

    exactly: also up to it, as fixed weight norms do. NoVerdictError where operands contradict.
    """
    weights = parameters_of(graph)
    scaled: dict[str, FloatArray] = {}
    for name, constraint in constraints.items():
        norm = _norm(graph, name, constraint, weights[name])
        factor = constraint.radius / max(norm, _SMALLEST)
        if norm > 0.0 and (exactly or factor < 1.0):
            scaled[name] = factor * weights[name]
    return graph_at(graph, scaled) if scaled else graph


def _norm(graph: Graph, name: str, constraint: ConstraintSpec, weight: FloatArray) -> float:
    """About the norm that a constraint limits: of the numbers, or of what steps make of them."""
    if constraint.kind == "frobenius":
        return float(np.linalg.norm(weight))
    return max(map(_spectral, graph.uses(name)), default=0.0)


def _spectral(use: Use) -> float:
    """Of the linear map of a step; of a table its longest row; of other operands their largest
    entry."""
    if use.is_table:
        return float(np.max(np.linalg.norm(use.operand.array, axis=1)))
    if not use.is_linear_map:
        return float(np.max(np.abs(use.operand.array), initial=0.0))
    if use.operand not in _KNOWN:
        _KNOWN[use.operand] = _of_linear_map(use)
    return _KNOWN[use.operand]


def _of_linear_map(use: Use) -> float:
    array = use.operand.array
    if not isinstance(use.node.op, p.Conv):
        return float(np.linalg.norm(array, 2)) if array.size else 0.0
    op = replace(use.node.op, weight=p.Operand(array, array), bias=None)
    step = replace(use.node.step, op=op, inputs=("x",), output="y")
    (shape,) = use.node.given
    linear = p.Program("x", "y", {"x": shape, "y": step.shape}, (step,), None, covered=())
    x: FloatArray = np.random.default_rng(0).standard_normal((1, *shape))
    back, norm = pulls(linear, {"x": x, "y": np.empty((1, *step.shape))}), 0.0
    for _ in range(_ROUNDS):
        x = x / max(float(np.linalg.norm(x)), _SMALLEST)
        y = evaluate_batch(linear, x)["y"]
        norm = float(np.linalg.norm(y))
        x = cotangents(linear, back, {"y": y})["x"]
    return norm
