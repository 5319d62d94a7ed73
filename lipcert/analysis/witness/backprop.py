"""Plain backpropagation in float64, for examples at which a bound is tried out.

What enters: a graph, the values of a batch of examples, cotangents at some of them. What leaves:
the cotangent of every value and squared norms of per-example gradients, up to rounding: numbers to
hold against bounds, never bounds themselves. A graph with an op that is not known here has no
`Backprop`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import final

import numpy as np
import numpy.typing as npt

from lipcert.facts import Shape, ValueFacts, no_bound
from lipcert.interval import Interval
from lipcert.ir import Graph
from lipcert.links import Matrix, Slopes
from lipcert.norms.operator_norm import Tier
from lipcert.ops.activation import Activation, PRelu
from lipcert.ops.base import Op
from lipcert.ops.combine import Add, Concat
from lipcert.ops.conv import Conv, ConvTranspose
from lipcert.ops.linear import Dense
from lipcert.ops.pooling import MaxPool
from lipcert.ops.shape import Expand, Pad, Select, Tile, Transpose
from lipcert.ops.softmax import LogSoftmax
from lipcert.ops.sorting import Sort
from lipcert.scope import PointScope
from lipcert.upper import FloatArray

Values = Mapping[str, FloatArray]
Pull = Callable[[FloatArray], list[FloatArray]]
"""From the cotangent at the output of an op to those at its inputs, for one batch of examples."""
_Pullback = Callable[[Sequence[FloatArray]], Pull]
"""The same, as a function of the inputs."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Backprop:
    """The transposed Jacobians of the nodes of a graph, by the names of the nodes."""

    graph: Graph
    pullbacks: Mapping[str, _Pullback]

    @classmethod
    def of(cls, graph: Graph) -> Backprop | None:
        """None where the graph holds an op that is not known here."""
        shapes = {graph.input_name: graph.input_shape}
        shapes |= {node.output: node.shape for node in graph.nodes}
        pullbacks = {}
        for node in graph.nodes:
            pullback = _pullback(node.op, [shapes[name] for name in node.inputs])
            if pullback is None:
                return None
            pullbacks[node.name] = pullback
        return cls(graph, pullbacks)

    def at(self, values: Values) -> Mapping[str, Pull]:
        """The transposed Jacobians at a batch of values, by the names of the nodes.

        At a kink, where frameworks differ too, the slope of least magnitude is taken.
        """
        return {
            node.name: self.pullbacks[node.name]([values[name] for name in node.inputs])
            for node in self.graph.nodes
        }

    def cotangents(self, jacobians: Mapping[str, Pull], seeds: Values) -> dict[str, FloatArray]:
        """Σ over the seeds of (∂value/∂·)ᵀ seed, at every value that one of them depends on."""
        found = dict(seeds)
        for node in reversed(self.graph.nodes):
            if node.output not in found:
                continue
            shares = jacobians[node.name](found[node.output])
            for name, share in zip(node.inputs, shares, strict=True):
                found[name] = found[name] + share if name in found else share
        return found


def _pullback(op: Op, shapes: Sequence[Shape]) -> _Pullback | None:
    """The transposed Jacobian of an op with inputs of these shapes; None if it is not known."""
    match op:
        case Activation():
            return lambda x: _times(_gentlest(op.function.derivative(Interval.exact(x[0]))))
        case PRelu():
            return lambda x: _times(np.where(x[0] > 0.0, 1.0, -op.evaluate(-np.ones_like(x[0]))))
        case Sort() | MaxPool():
            return lambda x: _scatter(_selected(op, x[0]), shapes[0])
        case LogSoftmax():
            axis = op.axis if op.axis < 0 else op.axis + 1
            return lambda x: _centred(np.exp(op.evaluate(x[0])), axis)
        case _:
            pull = _constant_pull(op, shapes)
            return None if pull is None else lambda _: pull


def _constant_pull(op: Op, shapes: Sequence[Shape]) -> Pull | None:
    """That of an op whose Jacobian is the same everywhere; None if it is not known to be."""
    match op:
        case Dense():
            return lambda g: [g @ op.weight.array]
        case Conv():
            adjoint = ConvTranspose(op.weight, None, op.geometry, op.groups)
            return lambda g: [adjoint.evaluate(g)]
        case ConvTranspose():
            adjoint_of_adjoint = Conv(op.weight, None, op.geometry, op.groups)
            return lambda g: [adjoint_of_adjoint.evaluate(g)]
        case Transpose() | Select() | Expand() | Tile() | Pad():
            return _scatter(_sources(op, shapes[0]), shapes[0])
        case Add():
            return lambda g: [
                c * _summed(g, shape) for c, shape in zip(op.coefficients, shapes, strict=True)
            ]
        case Concat():
            ends = np.cumsum([shape[op.axis] for shape in shapes])[:-1]
            return lambda g: np.split(g, ends, axis=op.axis + 1)
        case _:
            return _linked_pull(op, shapes) if len(shapes) == 1 else None


def _linked_pull(op: Op, shapes: Sequence[Shape]) -> Pull | None:
    """That of an op whose link says what its Jacobian is, whatever its input may be."""
    (shape,) = shapes
    anything = ValueFacts.of(shape, no_bound("backprop", "any input"))
    match op.link([anything], PointScope(Tier.QUICK)):
        case Matrix(after, _, entries):
            matrix = entries()
            return lambda g: [(g.reshape(-1, after) @ matrix).reshape(-1, *shape)]
        case Slopes(slopes) if np.allclose(slopes.lo, slopes.hi, rtol=1e-12, atol=0.0):
            return lambda g: [g.reshape(-1, *shape) * slopes.lo]
        case _:
            return None


def _times(slopes: FloatArray) -> Pull:
    """The transposed Jacobian of a diagonal map."""
    return lambda g: [g * slopes]


def _centred(shares: FloatArray, axis: int) -> Pull:
    """(I − p1ᵀ)g along an axis, for the probabilities p."""
    return lambda g: [g - shares * g.sum(axis=axis, keepdims=True)]


def _gentlest(slopes: Interval) -> FloatArray:
    """The slope of least magnitude of each interval."""
    return np.asarray(np.clip(0.0, slopes.lo, slopes.hi))


def _selected(op: Op, x: FloatArray) -> npt.NDArray[np.int64]:
    """For an op that selects entries by their order: which entry, counted from 1, it takes.

    The op is applied to the ranks of the entries, which are ordered as these and never equal.
    """
    order = np.argsort(x.reshape(len(x), -1), axis=1, kind="stable")
    ranks = np.empty_like(order)
    np.put_along_axis(ranks, order, np.arange(order.shape[1])[None], axis=1)
    taken = op.evaluate(ranks.reshape(x.shape).astype(np.float64)).reshape(len(x), -1)
    return np.take_along_axis(order, taken.astype(np.int64), axis=1) + 1


def _sources(op: Op, shape: Shape) -> npt.NDArray[np.int64]:
    """For a rearrangement: which entry, counted from 1, it takes; 0 for constants."""
    if isinstance(op, Pad):
        op = replace(op, value=0.0)
    numbers = np.arange(1.0, np.prod(shape, dtype=np.int64) + 1.0).reshape(1, *shape)
    return op.evaluate(numbers).reshape(1, -1).astype(np.int64)


def _scatter(sources: npt.NDArray[np.int64], shape: Shape) -> Pull:
    """The transposed Jacobian of a selection: cotangents add up at the entries they came from."""
    size = int(np.prod(shape)) + 1

    def pull(g: FloatArray) -> list[FloatArray]:
        places = sources + size * np.arange(len(g))[:, np.newaxis]
        flat: FloatArray = np.bincount(
            places.ravel(), g.ravel().astype(np.float64), minlength=size * len(g)
        ).astype(np.float64)
        return [flat.reshape(-1, size)[:, 1:].reshape(-1, *shape)]

    return pull


def _summed(cotangent: FloatArray, shape: Shape) -> FloatArray:
    """Summed over the axes along which a value of this shape was broadcast."""
    added = cotangent.ndim - 1 - len(shape)
    aligned = (*[1] * added, *shape)
    axes = [a for a, size in enumerate(aligned, 1) if size == 1 and cotangent.shape[a] != 1]
    total: FloatArray = cotangent.sum(axis=tuple(axes), keepdims=True)
    return total.reshape(-1, *shape)
