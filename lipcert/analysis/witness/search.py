"""Witnesses: admissible examples at which a bound is attained, or nearly so.

What enters: a graph, a loss and the facts of the input. What leaves: the largest per-example
gradient norm and the largest Jacobian norm met on a short, deterministic ascent. They say how
loose a bound can be at most: lower bounds of the truth, computed in float64 and lessened by an
allowance for its rounding. No sensitivity stands on them. None where nothing was searched.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, final

import numpy as np
import numpy.typing as npt

from lipcert.analysis.witness.backprop import Backprop, Pull, Values
from lipcert.analysis.witness.examples import admitted, farthest
from lipcert.analysis.witness.operand_squares import operand_squares
from lipcert.analysis.witness.uses import plain_slots
from lipcert.facts import ValueFacts
from lipcert.ir import Graph, Node, evaluate
from lipcert.losses.base import Loss
from lipcert.ops.conv import Conv, ConvTranspose
from lipcert.upper import FloatArray

_MOST_STARTS: Final = 16
_LEAST_STARTS: Final = 4
_ROUNDS: Final = 12
_MOST_CLASSES: Final = 256
_USUAL_WORK: Final = 3e7
_LARGEST_WORK: Final = 1.2e8
_DIFFERENCE: Final = 1e-6
_ROUNDING: Final = 1e-9

_Labels = npt.NDArray[np.int64]


@final
@dataclass(frozen=True, slots=True)
class Witness:
    """Norms met at admissible examples; None where nothing was searched."""

    grad_norm: float | None = None
    lipschitz: float | None = None


NO_WITNESS: Final = Witness()


def find_witness(graph: Graph, loss: Loss, domain: ValueFacts, clip: float | None) -> Witness:
    """Search examples with a large gradient, and the Jacobian there; small common networks only.

    clip: the norm to which training clips the gradient at the output.
    """
    work = _ROUNDS * _work(graph)
    if work * _LEAST_STARTS > _LARGEST_WORK or not domain.norm.is_finite:
        return NO_WITNESS
    starts = min(max(int(_USUAL_WORK / work), _LEAST_STARTS), _MOST_STARTS)
    backprop = Backprop.of(graph)
    if backprop is None or loss.gradients(np.zeros((1, *graph.output_shape))) is None:
        return NO_WITNESS
    search = _Search(graph, backprop, loss, clip, domain, plain_slots(graph), starts)
    with np.errstate(all="ignore"):
        return search.best()


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Point:
    """A batch of examples with the gradients of their losses.

    shares: per node, the squared norm of the gradients of its own parameters.
    """

    values: Values
    jacobians: Mapping[str, Pull]
    at_output: FloatArray
    shares: Mapping[str, FloatArray]

    @property
    def squares(self) -> FloatArray:
        """The squared norm of the gradient of each example."""
        return sum(self.shares.values(), start=np.zeros(len(self.at_output)))


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Search:
    """trained: by node, the slots whose gradients count; others can only lengthen the whole."""

    graph: Graph
    backprop: Backprop
    loss: Loss
    clip: float | None
    domain: ValueFacts
    trained: Mapping[str, frozenset[str]]
    starts: int

    def best(self) -> Witness:
        """The best example of the ascent, and its Jacobian."""
        x, labels = self._starts()
        largest, at, label = -1.0, x[0], 0
        for _ in range(_ROUNDS):
            point = self._point(x, labels)
            leader = int(np.argmax(np.nan_to_num(point.squares, nan=-1.0)))
            if point.squares[leader] > largest:
                largest, at, label = point.squares[leader], x[leader], int(labels[leader])
            x = farthest(self._uphill(point, labels), self.domain)
        example = admitted(at, self.domain)
        if example is None:
            return NO_WITNESS
        norm = math.sqrt(self._point(example[None], np.array([label])).squares[0])
        return Witness(_lessened(norm), _lessened(self._jacobian_norm(example)))

    def _starts(self) -> tuple[FloatArray, _Labels]:
        """Dense and signed directions; for each, the label that is most wrong."""
        random = np.random.default_rng(0)
        shape = (self.starts // 2, *self.domain.shape)
        directions = np.concatenate([random.random(shape), random.standard_normal(shape)])
        x = farthest(directions, self.domain)
        gradients = self._loss_gradients(evaluate(self.graph, x)[self.graph.output_name])
        lengths = np.sum(gradients**2, axis=tuple(range(2, gradients.ndim)))
        return x, np.argmax(np.nan_to_num(lengths, nan=-1.0), axis=0)

    def _point(self, x: FloatArray, labels: _Labels) -> _Point:
        values = evaluate(self.graph, x)
        logits = values[self.graph.output_name]
        at_output = self._loss_gradients(logits)[labels, np.arange(len(x))]
        jacobians = self.backprop.at(values)
        cotangents = self.backprop.cotangents(jacobians, {self.graph.output_name: at_output})
        shares = {}
        for node in self.graph.nodes:
            if self.trained[node.name] and node.output in cotangents:
                found = operand_squares(node.op, values[node.inputs[0]], cotangents[node.output])
                known = [found[slot] for slot in self.trained[node.name] if slot in found]
                shares[node.name] = sum(known, start=np.zeros(len(x)))
        return _Point(values, jacobians, at_output, shares)

    def _loss_gradients(self, logits: FloatArray) -> FloatArray:
        """[labels, examples, *shape], clipped where training clips them."""
        found = self.loss.gradients(logits)
        if found is None:
            raise TypeError(f"the gradient of the loss {self.loss.kind} is not known")
        if self.clip is None:
            return found
        axes = tuple(range(2, found.ndim))
        length = np.sqrt(np.sum(found * found, axis=axes, keepdims=True))
        clipped: FloatArray = found * (self.clip / np.maximum(length, self.clip))
        return clipped

    def _uphill(self, point: _Point, labels: _Labels) -> FloatArray:
        """Directions of ascent: the gradient of the squared norm, as if every Jacobian were fixed.

        A share grows with the square of its node's input, and all of them with that of the
        gradient at the output, whose change with the logits is a difference quotient.
        """
        seeds: dict[str, FloatArray] = {}
        for node in self.graph.nodes:
            if node.name in point.shares:
                x = point.values[node.inputs[0]]
                seed = _rows_times(point.shares[node.name] / _least(_squares(x)), x)
                seeds[node.inputs[0]] = seeds.get(node.inputs[0], np.zeros_like(x)) + seed
        output, g = self.graph.output_name, point.at_output
        logits = point.values[output]
        ahead = self._loss_gradients(logits + _DIFFERENCE * g)[labels, np.arange(len(g))]
        bend = _rows_times(point.squares / _least(_squares(g)), (ahead - g) / _DIFFERENCE)
        seeds[output] = seeds.get(output, np.zeros_like(g)) + bend
        return np.nan_to_num(
            self.backprop.cotangents(point.jacobians, seeds)[self.graph.input_name]
        )

    def _jacobian_norm(self, example: FloatArray) -> float | None:
        """The largest singular value of the Jacobian of the output at this example."""
        outputs = math.prod(self.graph.output_shape)
        if outputs > _MOST_CLASSES:
            return None
        jacobians = self.backprop.at(
            evaluate(self.graph, np.repeat(example[None], outputs, axis=0))
        )
        units = np.eye(outputs).reshape(outputs, *self.graph.output_shape)
        rows = self.backprop.cotangents(jacobians, {self.graph.output_name: units})
        jacobian = rows[self.graph.input_name].reshape(outputs, -1)
        return float(np.linalg.norm(jacobian, 2)) if np.all(np.isfinite(jacobian)) else None


def _work(graph: Graph) -> float:
    """Floating-point operations, roughly, of one round for one example."""
    work = 1.0
    for node in graph.nodes:
        work += 8.0 * math.prod(node.shape)
        weight = node.op.operands().get("weight")
        if weight is not None:
            work += 8.0 * weight.array.size * _positions(node)
    return work


def _positions(node: Node) -> int:
    """How often the weight of a node is applied, at most."""
    channels_first = isinstance(node.op, Conv | ConvTranspose)
    return math.prod(node.shape[1:] if channels_first else node.shape[:-1])


def _lessened(norm: float | None) -> float | None:
    if norm is None or not math.isfinite(norm):
        return None
    return norm * (1.0 - _ROUNDING)


def _squares(array: FloatArray) -> FloatArray:
    flat = array.reshape(len(array), -1)
    return np.asarray(np.einsum("ni,ni->n", flat, flat))


def _least(squares: FloatArray) -> FloatArray:
    return np.maximum(squares, np.finfo(np.float64).tiny)


def _rows_times(factors: FloatArray, array: FloatArray) -> FloatArray:
    return factors.reshape(-1, *[1] * (array.ndim - 1)) * array
