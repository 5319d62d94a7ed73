"""Witnesses: admissible examples, and weights, that attain a bound or nearly do.

A short, deterministic search, by ascent and then by evolution, looks for the largest per-example
gradient norm and the largest Jacobian norm. What it finds limits how loose a bound can be: these
are lower bounds of the true maximum, computed in float64 and reduced by an allowance for its
rounding. No sensitivity depends on them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from lipcert.core.interval import norm_up
from lipcert.core.lines.proof import with_real_inputs
from lipcert.core.losses.base import Loss
from lipcert.core.program import Dense, Operand, Program, operands
from lipcert.core.reader.records import Tensor
from lipcert.core.rules.facts import Fact
from lipcert.graph.domain import Domain
from lipcert.graph.evaluate import batch_output, evaluate_batch
from lipcert.losses import worst_gradients
from lipcert.search.operand_gradients import operand_gradients
from lipcert.search.pullbacks import Array, Pull, cotangents, pulls, squares, work

_MOST_STARTS: Final = 64
_LEAST_STARTS: Final = 8
_MOST_ROUNDS: Final = 40
_LEAST_ROUNDS: Final = 12
_RENEWAL: Final = 8
"""Rounds after which the lower half of the examples starts again."""
_NEAR: Final = 0.3
"""How far from the upper half they start at most, as a share of the way to the domain's end."""
_SAMPLES: Final = 16
"""Examples that evolve together."""
_LENGTHS: Final = 0.25, 0.1
"""How far they lie apart at first and at last, as shares of the domain's width."""
_MOST_CLASSES: Final = 256
_USUAL_WORK: Final = 4e8
_LARGEST_WORK: Final = 1.2e9
_DIFFERENCE: Final = 1e-6
_ROUNDING: Final = 1e-9
_INWARD: Final = 1e-12
_VANISHED: Final = 1e-9
"""Ratio to the input below which an output is only rounding."""

_Labels = npt.NDArray[np.int64]
_Found = tuple[float, Array, int]
"""The largest squared norm of a gradient, with its example and label."""
Trained = Mapping[str, Tensor | None]
"""What the file holds of each trained tensor; None where operands are known to show all of it."""


@dataclass(frozen=True, slots=True)
class Witness:
    """Norms attained at admissible examples; None if nothing was searched."""

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

    Args:
        program: the network.
        loss: its loss.
        facts: of the input and, if there are several, of each.
        clip: the norm to which training clips the gradient at the output.
        trained: what the file holds of each trained tensor.
    """
    once = work(program) * _LEAST_STARTS
    if once * _LEAST_ROUNDS > _LARGEST_WORK or not math.isfinite(facts[program.input].norm):
        return NO_WITNESS
    rounds = min(max(int(_USUAL_WORK / once), _LEAST_ROUNDS), _MOST_ROUNDS)
    starts = min(max(int(_USUAL_WORK / once / rounds), 1) * _LEAST_STARTS, _MOST_STARTS)
    of_labels = worst_gradients(loss, np.zeros((starts, *program.shapes[program.output])))
    if of_labels is None:
        return NO_WITNESS
    domain, plain = Domain.of(program, facts), plain_operands(program, trained)
    with np.errstate(all="ignore"):
        return _Search(program, loss, clip, domain, plain, starts, rounds, len(of_labels)).best()


def aligned_program(
    program: Program, radii: Mapping[str, float], facts: Mapping[str, Fact], trained: Trained
) -> Program | None:
    """Return the program with admissible weights under which every layer stretches the most.

    Dense weights get rank one: each maps the value that reaches it for a long input to the
    direction that passes the next activation best. This is meant for chains of dense layers, where
    it attains a product of constraints; the weights are admissible in any case. radii: the
    constraint of each tensor. facts: of the input and, if there are several, of each.

    The trained operands of the result show all of their tensors. The result is None if one does not
    belong to a dense layer, or is not constrained and used only once, or if the aligned weights let
    nothing through (a layer that subtracts the mean, say).
    """
    if not math.isfinite(facts[program.input].norm):
        return None
    domain = Domain.of(program, facts)
    longest = np.where(domain.high + domain.low >= 0.0, 1.0, -1.0)
    shape = (1, *program.shapes[program.input])
    values = {program.input: domain.farthest(longest.reshape(shape))}
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
    """Return the operands that hold all entries of a trained tensor once, and nothing else does.

    Then the norms of the operand and of its gradient are those of the tensor. Comparing the numbers
    shows that all entries are there.
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
    """Return weight target ⊗ x/‖x‖, for the sum of all positions of x, and a bias along target."""
    target = _target(op.weight.shape[0], is_last=is_last)
    along = x.reshape(-1, x.shape[-1]).sum(axis=0)
    ray = along / max(_length(along), np.finfo(np.float64).tiny)
    bias = op.bias
    if bias is not None and bias in moved:
        bias = _within(bias, target, radii)
    return Dense(_within(op.weight, np.outer(target, ray), radii), bias)


def _target(outputs: int, *, is_last: bool) -> Array:
    """Return a unit vector: one class against another at the end, else equal entries."""
    if not is_last or outputs == 1:
        return np.full(outputs, outputs**-0.5)
    target = np.zeros(outputs)
    target[:2] = np.sqrt(0.5), -np.sqrt(0.5)
    return target


def _within(operand: Operand, direction: Array, radii: Mapping[str, float]) -> Operand:
    """Return an operand along a unit direction, as long as its constraint admits.

    The Euclidean norm is at least the spectral one, so it obeys constraints of either kind.
    """
    (name,) = operand.sources
    array = direction * (radii[name] * (1.0 - _INWARD))
    if not norm_up(array) <= radii[name]:
        array = np.zeros_like(array)
    return Operand(array, array, operand.sources)


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
        """The squared norm of the gradient of each example, or −1 where that is not a number."""
        return np.fmax(sum(self.shares.values(), start=np.zeros(len(self.at_output))), -1.0)

    def of(self, only: npt.NDArray[np.int64]) -> _Point:
        """Keep for each example the share of one step, counted from 0, or all of them for −1."""
        kept = {
            name: np.where((only < 0) | (only == number), share, 0.0)
            for number, (name, share) in enumerate(self.shares.items())
        }
        return replace(self, shares=kept)


@dataclass(frozen=True, slots=True, eq=False)
class _Search:
    """A search. plain: the operands whose gradients count; others can only lengthen the whole."""

    program: Program
    loss: Loss
    clip: float | None
    domain: Domain
    plain: frozenset[Operand]
    starts: int
    rounds: int
    labels: int

    def best(self) -> Witness:
        """Return the largest norms at the best examples of an ascent and an evolution after it."""
        rng = np.random.default_rng(0)
        x, labels = self._starts(rng)
        climbed = self._climbed(x.copy(), labels.copy(), rng)
        evolved = self._evolved(climbed, x, labels, rng)
        reached = [self._norms(at, label) for _, at, label in (climbed, evolved)]
        return Witness(*map(_lessened, np.fmax.reduce(reached)))

    def _climbed(self, x: Array, labels: _Labels, rng: np.random.Generator) -> _Found:
        """Examples move to the farthest point uphill, or less far if they did not rise.

        At first every other one climbs for the gradient of a single step.
        """
        only = rng.integers(max(len(self.plain), 1), size=len(x))
        only[::2] = -1
        ahead, uphill, best = x.copy(), np.zeros_like(x), (-1.0, x[0], 0)
        heights, reach = np.full(len(x), -1.0), np.ones(len(x))
        for turn in range(1, self.rounds + 1):
            point = self._point(ahead, labels)
            best = _better(best, point.squares, ahead, labels)
            point = point.of(only)
            risen = point.squares > heights
            x[risen], heights[risen] = ahead[risen], point.squares[risen]
            uphill[risen] = self._uphill(point, labels)[risen]
            reach = np.where(risen, np.minimum(2.0 * reach + 0.1, 1.0), reach / 3.0)
            if turn % _RENEWAL == 0:
                heights[only >= 0] = -1.0
                only[:] = -1
                low = self._renew(x, labels, np.argsort(heights), rng)
                heights[low], reach[low] = -1.0, 0.0
            way = self.domain.farthest(uphill) - x
            ahead = self.domain.projected(x + _rows_times(reach, way))
        return best

    def _evolved(self, best: _Found, x: Array, labels: _Labels, rng: np.random.Generator) -> _Found:
        """Evolve from the best example and some others: samples see beyond kinks, where norms jump.

        Each middle moves to the mean of the best quarter of its samples, which lie closer and
        closer to it; there are a quarter as many rounds as of the ascent.
        """
        size, shape = min(_SAMPLES, len(x)), x.shape[1:]
        starts = np.argsort(-self._point(x, labels).squares)[: len(x) // size - 1]
        middle = np.concatenate([best[1][None], x[starts]])[:, None]
        labels = np.append(best[2], labels[starts]).repeat(size)
        scale = self.domain.width / math.prod(shape) ** 0.5
        for length in np.geomspace(*_LENGTHS, self.rounds // 4):
            steps = length * scale * rng.standard_normal((len(middle), size, *shape))
            samples = self.domain.projected((middle + steps).reshape(-1, *shape))
            squares_ = self._point(samples, labels).squares
            best = _better(best, squares_, samples, labels)
            chosen = np.argsort(-squares_.reshape(-1, size))[:, : size // 4]
            middle += steps[np.arange(len(middle))[:, None], chosen].mean(axis=1, keepdims=True)
        return best

    def _norms(self, at: Array, label: int) -> tuple[float, float]:
        """Return the norms of the gradient and of the Jacobian at an example; NaN for none."""
        example = self.domain.admitted(at)
        if example is None:
            return math.nan, math.nan
        point = self._point(example[None], np.array([label]))
        return float(np.sqrt(point.squares[0])), self._jacobian_norm(point.jacobians)

    def _starts(self, rng: np.random.Generator) -> tuple[Array, _Labels]:
        """Return dense, signed and corner directions; for each, the label that is most wrong."""
        shape = (self.starts // 4, *self.program.shapes[self.program.input])
        dense = rng.random(shape)
        corners = np.where(rng.random(shape) < _rows_times(rng.random(shape[0]), dense), 1, -1)
        signed = rng.standard_normal(shape)
        x = self.domain.farthest(np.concatenate([dense, signed, corners, -dense]))
        gradients = self._loss_gradients(evaluate_batch(self.program, x)[self.program.output])
        lengths = np.sum(gradients**2, axis=tuple(range(2, gradients.ndim)))
        return x, np.argmax(np.nan_to_num(lengths, nan=-1.0), axis=0)

    def _renew(
        self, x: Array, labels: _Labels, order: _Labels, rng: np.random.Generator
    ) -> _Labels:
        """Restart the lower half of the examples near the upper one, with its labels or any."""
        low, high = np.split(order, 2)
        way = self.domain.farthest(rng.standard_normal(x[high].shape)) - x[high]
        shares = _NEAR * rng.random(len(high))
        x[low] = self.domain.projected(x[high] + _rows_times(shares, way))
        others = rng.integers(self.labels, size=len(low))
        labels[low] = np.where(rng.random(len(low)) < 0.5, labels[high], others)
        return low

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
        """Return loss gradients [labels, examples, *shape], clipped if training clips them."""
        found = worst_gradients(self.loss, logits)
        if found is None:
            raise TypeError("the gradient of the loss is not known")
        if self.clip is None:
            return found
        axes = tuple(range(2, found.ndim))
        length = np.sqrt(np.sum(found * found, axis=axes, keepdims=True))
        return np.asarray(found * (self.clip / np.maximum(length, self.clip)))

    def _uphill(self, point: _Point, labels: _Labels) -> Array:
        """Return ascent directions: gradients of the squared norm, as if Jacobians were constant.

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

    def _jacobian_norm(self, jacobians: Mapping[str, Pull]) -> float:
        """Return the largest singular value of the Jacobian of the output at one example."""
        program = with_real_inputs(self.program)
        shape = program.shapes[program.output]
        outputs = math.prod(shape)
        if outputs > _MOST_CLASSES:
            return math.nan
        units = np.eye(outputs).reshape(outputs, *shape)
        rows = cotangents(program, jacobians, {program.output: units})[program.input]
        jacobian = rows.reshape(outputs, -1)
        return float(np.linalg.norm(jacobian, 2)) if np.all(np.isfinite(jacobian)) else math.nan


def _better(best: _Found, squares_: Array, x: Array, labels: _Labels) -> _Found:
    leader = int(np.argmax(squares_))
    height = float(squares_[leader])
    return (height, x[leader], int(labels[leader])) if height > best[0] else best


def _lessened(norm: float) -> float | None:
    return float(norm) * (1.0 - _ROUNDING) if math.isfinite(norm) else None


def _length(values: Array) -> float:
    return float(np.linalg.norm(values))


def _least(squares_: Array) -> Array:
    return np.maximum(squares_, np.finfo(np.float64).tiny)


def _rows_times(factors: Array, array: Array) -> Array:
    return factors.reshape(-1, *[1] * (array.ndim - 1)) * array
