"""Small graphs built by hand, and the bounds of their parameters, for whole-network tests."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import numpy as np

from lipcert.facts import Bound, CotangentFacts, ValueFacts
from lipcert.interval import Interval
from lipcert.ir import Graph, Node, Parameter
from lipcert.norms.operator_norm import Tier
from lipcert.operand import Operand
from lipcert.ops.base import Op
from lipcert.propagation.propagate import NetworkBounds, propagate
from lipcert.scope import PointScope, Scope
from lipcert.upper import Upper

Step = tuple[str, Op, tuple[str, ...]]


def trained(name: str, array: np.ndarray) -> Operand:
    return Operand(np.asarray(array, dtype=np.float64), name)


def dag(input_shape: tuple[int, ...], steps: list[Step]) -> Graph:
    """Each step: (output name, op, input names); the input of the graph is called "x"."""
    shapes = {"x": input_shape}
    nodes, parameters = [], {}
    for output, op, inputs in steps:
        shapes[output] = op.output_shape([shapes[name] for name in inputs])
        nodes.append(Node(f"{output}_node", op, inputs, output, shapes[output]))
        for operand in op.operands().values():
            if operand.parameter is not None:
                parameters[operand.parameter] = Parameter(operand.parameter, operand.shape)
    return Graph("x", input_shape, steps[-1][0], tuple(nodes), parameters)


def chain(input_shape: tuple[int, ...], *ops: Op) -> Graph:
    names = ["x", *(f"v{i}" for i in range(len(ops)))]
    return dag(
        input_shape,
        [
            (after, op, (before,))
            for (before, after), op in zip(itertools.pairwise(names), ops, strict=True)
        ],
    )


def ball(shape: tuple[int, ...], radius: float) -> ValueFacts:
    return ValueFacts.of(shape, Bound(Upper(radius), "test.input"))


def box(shape: tuple[int, ...], low: float, high: float) -> ValueFacts:
    interval = Interval(np.full(shape, low), np.full(shape, high))
    return ValueFacts.of(shape, Bound(interval.norm(), "test.input"), interval)


def unit_loss(norm: float = 1.0):
    return lambda _logits: CotangentFacts(Bound(Upper(norm), "test.loss"))


def proved(
    graph: Graph, inputs: ValueFacts, loss=None, scope: Scope | None = None
) -> NetworkBounds:
    return propagate(graph, inputs, scope or PointScope(Tier.FAST), loss or unit_loss())


def norms(bounds: NetworkBounds) -> Mapping[str, float]:
    return {name: bound.value.value for name, bound in bounds.grad_norms.items()}


def total_norm(bounds: NetworkBounds) -> float:
    return float(np.sqrt(sum(value**2 for value in norms(bounds).values())))


def orthogonal(size: int, seed: int) -> np.ndarray:
    return np.linalg.qr(np.random.default_rng(seed).standard_normal((size, size)))[0]
