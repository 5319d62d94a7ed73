"""Aligned weights: admissible ones under which every dense layer stretches as much as it may.

What enters: a graph, norm constraints of its trained parameters, a long input. What leaves: the
same graph with dense weights of rank one, each of which takes the value that reaches it to the
direction that passes the next activation best. In chains of dense layers a product of constraints
is attained in this way; the weights are admissible in any case.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from lipcert.ir import Graph, Node
from lipcert.operand import Operand
from lipcert.ops.linear import Dense
from lipcert.settings import ConstraintSpec
from lipcert.upper import ONE, FloatArray, Upper, norm

_INWARD: Final = 1e-12
_VANISHED: Final = 1e-9
"""relative to the input: an output that is nothing but rounding"""


def aligned_graph(
    graph: Graph, constraints: Mapping[str, ConstraintSpec], longest: FloatArray
) -> Graph | None:
    """None where a trained operand is not one of a dense layer, constrained and used only once, or
    where the aligned weights let nothing through (a layer that subtracts the mean, say)."""
    operands = [operand for node in graph.nodes for operand in node.op.operands().values()]
    uses = Counter(operand.parameter for operand in operands)
    values, nodes = {graph.input_name: longest[np.newaxis]}, []
    for node in graph.nodes:
        trained, op = _trained(graph, node), node.op
        if trained:
            if not isinstance(op, Dense) or "weight" not in trained:
                return None
            for operand in trained.values():
                name = str(operand.parameter)
                is_whole = operand.array.size == graph.parameters[name].size
                if not (is_whole and uses[name] == 1 and operand.gain == ONE):
                    return None
                if name not in constraints:
                    return None
            target = _target(op.weight.shape[0], is_last=node.output == graph.output_name)
            weight = _within(op.weight, _ray(target, values[node.inputs[0]]), constraints)
            bias = op.bias
            if bias is not None and "bias" in trained:
                bias = _within(bias, target, constraints)
            op = Dense(weight, bias)
        values[node.output] = op.evaluate(*(values[name] for name in node.inputs))
        nodes.append(replace(node, op=op))
    if _length(values[graph.output_name]) <= _VANISHED * _length(longest):
        return None
    return replace(graph, nodes=tuple(nodes))


def _trained(graph: Graph, node: Node) -> Mapping[str, Operand]:
    """The operands that show a trained parameter, by slot."""
    return {
        slot: operand
        for slot, operand in node.op.operands().items()
        if operand.parameter is not None and graph.parameters[operand.parameter].trainable
    }


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
