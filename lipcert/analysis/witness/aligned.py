"""Aligned weights: admissible ones under which every layer stretches as much as it may.

What enters: a graph, norm constraints of its trained parameters, the facts of the input. What
leaves: the same graph with dense weights of rank one, each of which takes the value that reaches
it for a long input to the direction that passes the next activation best. Meant for chains of
dense layers, where a product of constraints is attained in this way; admissible in any case.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from lipcert.analysis.witness.examples import farthest
from lipcert.analysis.witness.uses import plain_slots, trained_slots
from lipcert.facts import ValueFacts
from lipcert.ir import Graph
from lipcert.operand import Operand
from lipcert.ops.linear import Dense
from lipcert.settings import ConstraintSpec
from lipcert.upper import FloatArray, Upper, norm

_INWARD: Final = 1e-12
_VANISHED: Final = 1e-9
"""relative to the input: an output that is nothing but rounding"""


def aligned_graph(
    graph: Graph, constraints: Mapping[str, ConstraintSpec], domain: ValueFacts
) -> Graph | None:
    """None where a trained operand is not one of a dense layer, constrained and used only once, or
    where the aligned weights let nothing through (a layer that subtracts the mean, say)."""
    box = domain.box.broadcast(domain.shape)
    longest = np.where(box.hi + box.lo >= 0.0, 1.0, -1.0)
    values = {graph.input_name: farthest(longest[np.newaxis], domain)}
    plain, nodes = plain_slots(graph), []
    for node in graph.nodes:
        slots, op = trained_slots(graph, node), node.op
        if slots:
            known = slots == plain[node.name] and slots >= {"weight"}
            named = {str(op.operands()[slot].parameter) for slot in slots}
            if not (isinstance(op, Dense) and known and named <= constraints.keys()):
                return None
            target = _target(op.weight.shape[0], is_last=node.output == graph.output_name)
            weight = _within(op.weight, _ray(target, values[node.inputs[0]]), constraints)
            bias = op.bias
            if bias is not None and "bias" in slots:
                bias = _within(bias, target, constraints)
            op = Dense(weight, bias)
        values[node.output] = op.evaluate(*(values[name] for name in node.inputs))
        nodes.append(replace(node, op=op))
    if _length(values[graph.output_name]) <= _VANISHED * _length(values[graph.input_name]):
        return None
    return replace(graph, nodes=tuple(nodes))


def _length(values: FloatArray) -> float:
    return float(np.linalg.norm(values))


def _target(outputs: int, *, is_last: bool) -> FloatArray:
    """A unit vector: one class against another at the end, otherwise all entries equal."""
    if not is_last or outputs == 1:
        return np.full(outputs, outputs**-0.5)
    target = np.zeros(outputs)
    target[:2] = np.sqrt(0.5), -np.sqrt(0.5)
    return target


def _ray(target: FloatArray, x: FloatArray) -> FloatArray:
    """target ⊗ x/‖x‖, for the sum of all positions of x."""
    along = x.reshape(-1, x.shape[-1]).sum(axis=0)
    length = max(float(np.linalg.norm(along)), np.finfo(np.float64).tiny)
    return np.outer(target, along / length)


def _within(
    operand: Operand, direction: FloatArray, constraints: Mapping[str, ConstraintSpec]
) -> Operand:
    """The operand along a unit direction, as long as its constraint admits.

    The Euclidean norm is at least the spectral one, so it obeys constraints of either kind.
    """
    radius = constraints[str(operand.parameter)].radius
    array = direction * (radius * (1.0 - _INWARD))
    if not norm(array) <= Upper(radius):
        array = np.zeros_like(array)
    return replace(operand, array=array)
