"""Witnesses: admissible examples, and weights, that attain a bound or nearly do.

The largest per-example gradient norm and the largest Jacobian norm found on a short, deterministic
ascent limit how loose a bound can be: they are lower bounds of the true maximum, computed in
float64 and reduced by an allowance for its rounding. No sensitivity depends on them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Self, final

import numpy as np
import numpy.typing as npt

from lipcert.core.coverage import operands
from lipcert.core.interval import norm_up
from lipcert.core.losses.base import Loss
from lipcert.core.program import (
    Attention,
    Compare,
    Conv,
    Dense,
    Embedding,
    MatMul,
    Move,
    Operand,
    Program,
    Shape,
)
from lipcert.core.reader.records import Tensor
from lipcert.core.rules.facts import Fact
from lipcert.graph.evaluate import batch_output, evaluate_batch
from lipcert.losses import worst_gradients
from lipcert.search.operand_gradients import operand_gradients
from lipcert.search.pullbacks import Array, Pull, cotangents, pulls, squares

_MOST_STARTS: Final = 16
_LEAST_STARTS: Final = 4
_ROUNDS: Final = 12
_MOST_CLASSES: Final = 256
_USUAL_WORK: Final = 3e7
_LARGEST_WORK: Final = 1.2e8
_DIFFERENCE: Final = 1e-6
_ROUNDING: Final = 1e-9
_HALVINGS: Final = 30
_INWARD: Final = 1e-12
_VANISHED: Final = 1e-9
"""relative to the input: an output that is nothing but rounding"""

_Labels = npt.NDArray[np.int64]
Trained = Mapping[str, Tensor | None]
"""What the file holds of each trained tensor; None where operands are known to show all of it."""


@final
@dataclass(frozen=True, slots=True)
class Witness:
    """Norms met at admissible examples; None where nothing was searched."""

    grad_norm: float | None = None
    lipschitz: float | None = None


NO_WITNESS: Final = Witness()


def find_witness(
    program: Program,
    loss: Loss,
    facts: Mapping[str, Fact],
    clip: float | None,
    trained: Trained,
) -> Witness:
    """Search examples with a large gradient, and the Jacobian there; small common networks only.

    facts: of the input and, of several, of each. clip: the norm to which training clips the
    gradient at the output.
    """
    work = _ROUNDS * _work(program)
    if work * _LEAST_STARTS > _LARGEST_WORK or not math.isfinite(facts[program.input].norm):
        return NO_WITNESS
    starts = min(max(int(_USUAL_WORK / work), _LEAST_STARTS), _MOST_STARTS)
    nowhere = np.zeros((1, *program.shapes[program.output]))
    if worst_gradients(loss, nowhere) is None:
        return NO_WITNESS
    domain = Domain.of(program, facts)
    search = _Search(program, loss, clip, domain, plain_operands(program, trained), starts)
    with np.errstate(all="ignore"):
        return search.best()


def aligned_program(
    program: Program, radii: Mapping[str, float], facts: Mapping[str, Fact], trained: Trained
) -> Program | None:
    """Admissible weights under which every layer stretches as much as it may.

    Dense weights of rank one, each of which takes the value that reaches it for a long input to the
    direction that passes the next activation best: meant for chains of dense layers, where a
    product of constraints is attained in this way, and admissible in any case. radii: the
    constraint of each tensor. facts: of the input and, of several, of each.

    Its trained operands show all of their tensors. None where one is not of a dense layer,
    constrained and used only once, or where the aligned weights let nothing through (a layer that
    subtracts the mean, say).
    """
    domain = Domain.of(program, facts)
    if not math.isfinite(domain.fact.norm):
        return None
    box = domain.fact.box.broadcast(domain.shape)
    longest = np.where(box.hi + box.lo >= 0.0, 1.0, -1.0)
    values = {program.input: domain.farthest(longest[np.newaxis])}
    plain, steps = plain_operands(program, trained), []
    for step in program.steps:
        reading = [values[name] for name in step.inputs]
        moved = [item for item in operands(step.op) if not trained.keys().isdisjoint(item.sources)]
        if moved:
            names = {name for item in moved for name in item.sources}
            if not (isinstance(step.op, Dense) and plain.issuperset(moved)):
                return None
            if step.op.weight not in moved or not names <= radii.keys():
                return None
            is_last = step.output == program.output
            step = replace(step, op=_aligned(step.op, moved, reading[0], radii, is_last))  # noqa: PLW2901
        values[step.output] = batch_output(step, reading)
        steps.append(step)
    if _length(values[program.output]) <= _VANISHED * _length(values[program.input]):
        return None
    return replace(program, steps=tuple(steps))


def plain_operands(program: Program, trained: Trained) -> frozenset[Operand]:
    """The operands that hold all entries of a trained tensor once, which nothing else shows.

    Then the norms of the operand and of its gradient are those of the tensor. That all entries are
    there is seen by their numbers.
    """
    shown = [item for step in program.steps for item in operands(step.op)]
    uses = Counter(name for item in shown for name in item.sources)
    return frozenset(
        item
        for item in shown
        if len(item.sources) == 1
        for name, gain in item.sources.items()
        if uses[name] == 1 and gain <= 1.0 + _ROUNDING and name in trained
        if _is_whole(item, trained[name])
    )


def _is_whole(operand: Operand, stored: Tensor | None) -> bool:
    """Whether the operand is the stored numbers in any arrangement."""
    if stored is None:
        return True
    if not operand.is_exact or operand.lo.size != math.prod(stored.dims):
        return False
    numbers = stored.values().astype(np.float64)
    return np.array_equal(np.sort(operand.lo, axis=None), np.sort(numbers, axis=None))


def _aligned(
    op: Dense, moved: list[Operand], x: Array, radii: Mapping[str, float], is_last: bool
) -> Dense:
    """Weight target ⊗ x/‖x‖, for the sum of all positions of x, and bias along the target."""
    target = _target(op.weight.shape[0], is_last=is_last)
    along = x.reshape(-1, x.shape[-1]).sum(axis=0)
    ray = along / max(_length(along), np.finfo(np.float64).tiny)
    bias = op.bias
    if bias is not None and bias in moved:
        bias = _within(bias, target, radii)
    return Dense(_within(op.weight, np.outer(target, ray), radii), bias)


def _target(outputs: int, *, is_last: bool) -> Array:
    """A unit vector: one class against another at the end, otherwise all entries equal."""
    if not is_last or outputs == 1:
        return np.full(outputs, outputs**-0.5)
    target = np.zeros(outputs)
    target[:2] = np.sqrt(0.5), -np.sqrt(0.5)
    return target


def _within(operand: Operand, direction: Array, radii: Mapping[str, float]) -> Operand:
    """An operand along a unit direction, as long as its constraint admits.

    The Euclidean norm is at least the spectral one, so it obeys constraints of either kind.
    """
    (name,) = operand.sources
    array = direction * (radii[name] * (1.0 - _INWARD))
    if not norm_up(array) <= radii[name]:
        array = np.zeros_like(array)
    return Operand(array, array, operand.sources)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Domain:
    """The admissible examples: a box and a ball. whole: which entries are whole numbers.

    parts: of several inputs, which an example holds one after another, where each has its entries
    and the domain of each.
    """

    shape: Shape
    fact: Fact
    whole: npt.NDArray[np.bool_]
    parts: tuple[tuple[slice, Domain], ...] = ()

    @classmethod
    def of(cls, program: Program, facts: Mapping[str, Fact]) -> Self:
        """Of a program: whole are the numbers that choose rows or are compared."""
        shape = program.shapes[program.input]
        places = {program.input: np.arange(math.prod(shape)).reshape(shape)}
        whole = np.zeros(math.prod(shape) + 1, bool)  # the last one for what moves fill in
        for step in program.steps:
            found = places.get(step.inputs[0])
            if found is not None and isinstance(step.op, Move):
                places[step.output] = np.append(found, -1)[step.op.sources]
            elif found is not None and isinstance(step.op, Compare | Embedding):
                whole[found] = True
        parts, start = [], 0
        for part in program.parts:
            where = slice(start, start + part.size)
            own = whole[where].reshape(part.shape)
            parts.append((where, cls(part.shape, facts[part.name], own)))
            start = where.stop
        return cls(shape, facts[program.input], whole[:-1].reshape(shape), tuple(parts))

    def farthest(self, directions: Array) -> Array:
        """For each d of [examples, *shape]: nearly the x of box and ball with the largest ⟨d, x⟩.

        Such an x is d/m clipped to the box, with the least m for which it lies in the ball (the
        conditions of Karush, Kuhn and Tucker); m is found by bisection of its logarithm. Several
        inputs are each the farthest, then drawn in together where they are too long.
        """
        if self.parts:
            return self._farthest_parts(directions)
        flat = directions.reshape(len(directions), -1)
        length = np.maximum(np.linalg.norm(flat, axis=1, keepdims=True), np.finfo(np.float64).tiny)
        unit, radius = flat / length, self.fact.norm
        lo, hi = (end.reshape(-1) for end in self._ends())
        low, high = np.full((2, len(flat), 1), np.log(max(radius, 1e-300)))
        low, high = low - 1.0, high + 12.0  # logarithms of 1/m: inside and outside, or at a vertex
        point: Array = np.clip(unit * radius, lo, hi)
        if np.array_equal(point, unit * radius):
            return self._rounded(point.reshape(directions.shape))
        for _ in range(_HALVINGS):
            middle = 0.5 * (low + high)
            point = np.clip(unit * np.exp(middle), lo, hi)
            inside = np.linalg.norm(point, axis=1, keepdims=True) <= radius
            low, high = np.where(inside, middle, low), np.where(inside, high, middle)
        point = np.clip(unit * np.exp(low), lo, hi)
        return self._rounded(point.reshape(directions.shape))

    def _farthest_parts(self, directions: Array) -> Array:
        """The norm is convex: on the way to the point nearest to 0 it falls at least linearly."""
        rows = directions.reshape(len(directions), -1)
        found = [
            own.farthest(rows[:, where].reshape(-1, *own.shape)).reshape(len(rows), -1)
            for where, own in self.parts
        ]
        point = np.concatenate(found, axis=1)
        nearest = np.clip(0.0, *self._ends()).reshape(1, -1)
        length, least = np.linalg.norm(point, axis=1, keepdims=True), np.linalg.norm(nearest)
        room = max(self.fact.norm - least, 0.0)
        tiny = np.finfo(np.float64).tiny
        share = np.where(length > self.fact.norm, room / np.maximum(length - least, tiny), 1.0)
        return self._rounded((nearest + share * (point - nearest)).reshape(directions.shape))

    def admitted(self, x: Array) -> Array | None:
        """This example, moved inward by a hair, if it is admissible beyond doubt."""
        lo, hi = self._ends()
        nearest_to_zero = np.clip(0.0, lo, hi)
        moved = np.clip(nearest_to_zero + (1.0 - _INWARD) * (x - nearest_to_zero), lo, hi)
        moved = self._rounded(moved)
        return moved if self._holds(moved) else None

    def _holds(self, x: Array) -> bool:
        """Whether neither an example of the box nor a part of it is too long."""
        within = all(own._holds(x.reshape(-1)[where]) for where, own in self.parts)
        return within and bool(norm_up(x) <= self.fact.norm)

    def _rounded(self, x: Array) -> Array:
        return np.where(self.whole, np.rint(x), x) if self.whole.any() else x

    def _ends(self) -> tuple[Array, Array]:
        box = self.fact.box.broadcast(self.shape)
        return box.lo, box.hi


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Point:
    """A stack of examples with the gradients of their losses.

    shares: per step, the squared norm of the gradients of its own parameters.
    """

    values: Mapping[str, Array]
    jacobians: Mapping[str, Pull]
    at_output: Array
    shares: Mapping[str, Array]

    @property
    def squares(self) -> Array:
        """The squared norm of the gradient of each example."""
        return sum(self.shares.values(), start=np.zeros(len(self.at_output)))


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Search:
    """plain: the operands whose gradients count; others can only lengthen the whole."""

    program: Program
    loss: Loss
    clip: float | None
    domain: Domain
    plain: frozenset[Operand]
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
            x = self.domain.farthest(self._uphill(point, labels))
        example = self.domain.admitted(at)
        if example is None:
            return NO_WITNESS
        point = self._point(example[None], np.array([label]))
        jacobian = self._jacobian_norm(point.jacobians)
        return Witness(_lessened(math.sqrt(point.squares[0])), _lessened(jacobian))

    def _starts(self) -> tuple[Array, _Labels]:
        """Dense and signed directions; for each, the label that is most wrong."""
        random = np.random.default_rng(0)
        shape = (self.starts // 2, *self.domain.shape)
        directions = np.concatenate([random.random(shape), random.standard_normal(shape)])
        x = self.domain.farthest(directions)
        gradients = self._loss_gradients(evaluate_batch(self.program, x)[self.program.output])
        lengths = np.sum(gradients**2, axis=tuple(range(2, gradients.ndim)))
        return x, np.argmax(np.nan_to_num(lengths, nan=-1.0), axis=0)

    def _point(self, x: Array, labels: _Labels) -> _Point:
        program = self.program
        values = evaluate_batch(program, x)
        at_output = self._loss_gradients(values[program.output])[labels, np.arange(len(x))]
        jacobians = pulls(program, values)
        found = cotangents(program, jacobians, {program.output: at_output})
        shares = {}
        for step in program.steps:
            if step.output in found and not self.plain.isdisjoint(operands(step.op)):
                known = operand_gradients(step, values[step.inputs[0]], found[step.output])
                counted = [
                    gradient.squares()
                    for name, gradient in known
                    if getattr(step.op, name) in self.plain
                ]
                shares[step.output] = sum(counted, start=np.zeros(len(x)))
        return _Point(values, jacobians, at_output, shares)

    def _loss_gradients(self, logits: Array) -> Array:
        """[labels, examples, *shape], clipped where training clips them."""
        found = worst_gradients(self.loss, logits)
        if found is None:
            raise TypeError("the gradient of the loss is not known")
        if self.clip is None:
            return found
        axes = tuple(range(2, found.ndim))
        length = np.sqrt(np.sum(found * found, axis=axes, keepdims=True))
        clipped: Array = found * (self.clip / np.maximum(length, self.clip))
        return clipped

    def _uphill(self, point: _Point, labels: _Labels) -> Array:
        """Directions of ascent: the gradient of the squared norm, as if every Jacobian were fixed.

        A share grows with the square of its step's input, and all of them with that of the
        gradient at the output, whose change with the logits is a difference quotient.
        """
        program = self.program
        seeds: dict[str, Array] = {}
        for step in program.steps:
            if step.output in point.shares:
                x = point.values[step.inputs[0]]
                seed = _rows_times(point.shares[step.output] / _least(squares(x)), x)
                seeds[step.inputs[0]] = seeds.get(step.inputs[0], np.zeros_like(x)) + seed
        output, g = program.output, point.at_output
        logits = point.values[output]
        ahead = self._loss_gradients(logits + _DIFFERENCE * g)[labels, np.arange(len(g))]
        bend = _rows_times(point.squares / _least(squares(g)), (ahead - g) / _DIFFERENCE)
        seeds[output] = seeds.get(output, np.zeros_like(g)) + bend
        return np.nan_to_num(cotangents(program, point.jacobians, seeds)[program.input])

    def _jacobian_norm(self, jacobians: Mapping[str, Pull]) -> float | None:
        """The largest singular value of the Jacobian of the output at one example."""
        program = self.program
        shape = program.shapes[program.output]
        outputs = math.prod(shape)
        if outputs > _MOST_CLASSES:
            return None
        units = np.eye(outputs).reshape(outputs, *shape)
        rows = cotangents(program, jacobians, {program.output: units})[program.input]
        jacobian = rows.reshape(outputs, -1)
        return float(np.linalg.norm(jacobian, 2)) if np.all(np.isfinite(jacobian)) else None


def _work(program: Program) -> float:
    """Floating-point operations, roughly, of one round for one example."""
    work = 1.0
    for step in program.steps:
        work += 8.0 * math.prod(step.shape)
        match step.op:
            case Dense(weight):
                work += 8.0 * weight.lo.size * math.prod(step.shape[:-1])
            case Conv(weight):
                work += 8.0 * weight.lo.size * math.prod(step.shape[2:])
            case MatMul():
                work += 8.0 * math.prod(step.shape) * program.shapes[step.inputs[0]][-1]
            case Attention():
                queries, keys, values = (program.shapes[name] for name in step.inputs[:3])
                work += 8.0 * math.prod(queries[:-1]) * keys[-1] * (queries[-1] + values[-1])
    return work


def _lessened(norm: float | None) -> float | None:
    if norm is None or not math.isfinite(norm):
        return None
    return norm * (1.0 - _ROUNDING)


def _length(values: Array) -> float:
    return float(np.linalg.norm(values))


def _least(squares_: Array) -> Array:
    return np.maximum(squares_, np.finfo(np.float64).tiny)


def _rows_times(factors: Array, array: Array) -> Array:
    return factors.reshape(-1, *[1] * (array.ndim - 1)) * array
