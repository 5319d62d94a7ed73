"""The weights that the bounds allow, as a set to move in, and the ascent over them.

Weights returned by `settled` are proved to obey every constraint, by certified norms; those
returned by `projected` obey them only approximately. Trained parameters without a constraint move
only if the bounds hold for all their values. In the ascent, steps of the weights and of the
examples alternate; a step of the weights that does not help is undone.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Self

import numpy as np

from lipcert.analysis.observing import spectral_norm
from lipcert.analysis.pipeline import aligned
from lipcert.analysis.premises import constraints_of
from lipcert.audit.attack.ascent import Best, Rows, SearchSpace, climb, starting_rows
from lipcert.audit.bounds import Claims
from lipcert.audit.weight_norms import MODEL, excesses
from lipcert.core.interval import norm_up
from lipcert.core.program import Dense, FloatArray, operands
from lipcert.errors import NoVerdictError, UsageError
from lipcert.graph.ir import Graph, Operand, Use, graph_at
from lipcert.settings.settings import ConstraintSpec

Weights = Mapping[str, FloatArray]

_TRIES: Final = 8
_INWARD: Final = 2.0**-23
_STRETCH: Final = 4.0


@dataclass(frozen=True, slots=True, eq=False)
class WeightSet:
    """Weights within constraints, by parameter.

    free: the parameters that no constraint holds.
    """

    claims: Claims
    graph: Graph
    constraints: Mapping[str, ConstraintSpec]
    free: frozenset[str]

    @classmethod
    def of(cls, claims: Claims) -> Self:
        """Return the set; raise UsageError if the bounds apply only to the weights of the file."""
        settings, graph = claims.settings, claims.engine.graph
        if settings.scope != "constraint-set":
            raise UsageError(
                "attack-weights: the bounds apply to one set of weights only (scope point), so "
                "others would show nothing; declare constraints (--constraint), or omit this option"
            )
        constraints = constraints_of(graph, settings)
        trained = {name for name, parameter in graph.parameters.items() if parameter.trainable}
        free = frozenset(trained - constraints.keys() if settings.weights_are_free else ())
        if not (constraints or free):
            raise UsageError("attack-weights: no trained parameter of the model has a constraint")
        return cls(claims, graph, constraints, free)

    @property
    def movable(self) -> tuple[str, ...]:
        """The parameters that may move."""
        held = self.constraints.keys() | self.free
        return tuple(name for name in self.graph.parameters if name in held)

    def aligned(self) -> Weights:
        """Return the weights that the search for witnesses proposes, if it finds better ones."""
        engine = self.claims.engine
        program = aligned(engine)
        steps = () if program is None else program.steps
        arrays = {
            name: operand.lo
            for step in steps
            for operand in operands(step.op)
            for name in operand.sources
        }
        return {
            name: _shown(use.operand, arrays[tensor], self.graph.parameters[name].shape)
            for name in self.movable
            for tensor in engine.tensors.get(name, ())
            for use in self.graph.uses(name)
            if tensor in arrays and arrays[tensor].shape == use.operand.shape
        }

    def projected(self, weights: Weights) -> Weights:
        """Return weights of the set near these: singular values are clipped, all others scaled
        down."""
        found = dict(weights)
        for name, use in self._plain_matrices():
            found[name] = _clipped(found[name], use, self.constraints[name].radius)
        for name, factor in self._factors(found).items():
            found[name] = min(factor, 1.0) * found[name]
        return found

    def stretched(self, weights: Weights) -> Weights:
        """Return weights with the same directions, as far out as the set reaches."""
        stretched = {n: factor * weights[n] for n, factor in self._factors(weights).items()}
        return {**weights, **stretched, **{name: _STRETCH * weights[name] for name in self.free}}

    def settled(self, weights: Weights) -> Weights:
        """Return weights near these that provably obey every constraint, rounded to float32.

        They are rounded so that replaying them in any precision rounds nothing more.
        """
        found = {name: _single(weights[name]) for name in self.movable if name in weights}
        inward = _INWARD
        for _ in range(_TRIES):
            outside: dict[str, float] = {}
            for excess in excesses(self.claims, {**weights, **found}, MODEL, 0.0):
                if excess.upper > 1.0:
                    name = excess.parameter
                    outside[name] = max(outside.get(name, 1.0), excess.upper)
            if not outside:
                return {**weights, **found}
            for name, upper in outside.items():
                margin = 1.0 - inward * max(1.0, float(np.sqrt(found[name].size)))
                found[name] = _single(max(margin, 0.5) / upper * found[name])
            inward *= 2.0
        raise NoVerdictError(
            f"attack: weights within the constraint of {next(iter(outside))!r} were not found; "
            "attack without moving weights"
        )

    def _factors(self, weights: Weights) -> Mapping[str, float]:
        """Estimate the factor by which each constrained parameter may be scaled and still obey.

        A spectral constraint is taken in the stricter of its readings: for the op, and for the
        parameter behind a scaled view.
        """
        at = graph_at(self.graph, weights)
        found = {}
        for name, constraint in self.constraints.items():
            if constraint.kind == "frobenius":
                norms = [norm_up(weights[name])]
            else:
                norms = [
                    spectral_norm(use) / min(1.0, abs(use.operand.scale))
                    for use in at.uses(name)
                    if use.operand.scale != 0.0
                ]
            largest = max(norms, default=0.0)
            found[name] = constraint.radius / largest if largest > 0.0 else 1.0
        return found

    def _plain_matrices(self) -> Iterator[tuple[str, Use]]:
        """Yield spectrally constrained parameters that are the matrix of one dense layer."""
        for name, constraint in self.constraints.items():
            uses = list(self.graph.uses(name))
            if constraint.kind != "spectral" or len(uses) != 1:
                continue
            operand = uses[0].operand
            whole = operand.array.size == self.graph.parameters[name].size
            plain = whole and operand.is_plain and operand.gain == 1.0
            if plain and uses[0].slot == "weight" and isinstance(uses[0].node.op, Dense):
                yield name, uses[0]


def _clipped(whole: FloatArray, use: Use, radius: float) -> FloatArray:
    """Return the matrix with its singular values clipped at the radius."""
    places = use.operand.places
    flat = whole.reshape(-1)
    matrix = (flat if places is None else flat[places]).reshape(use.operand.shape)
    left, values, right = np.linalg.svd(matrix, full_matrices=False)
    clipped = (left * np.minimum(values, radius)) @ right
    if places is None:
        return np.asarray(clipped.reshape(whole.shape))
    found = np.empty_like(flat)
    found[places] = clipped
    return found.reshape(whole.shape)


def _shown(operand: Operand, array: FloatArray, shape: tuple[int, ...]) -> FloatArray:
    """Return the parameter of which an operand shows every entry, given these numbers of the
    operand."""
    found = np.zeros(shape)
    places = np.arange(array.size) if operand.places is None else operand.places
    np.put(found, places, array)
    return found


def _single(array: FloatArray) -> FloatArray:
    return array.astype(np.float32).astype(np.float64)


_ROWS: Final = 4
_BURST: Final = 3
_LONGER: Final = 2.0
_SHORTER: Final = 0.25
_LONGEST: Final = 8.0
_SHORTEST: Final = 1e-4


@dataclass(frozen=True, slots=True, eq=False)
class WeightStart:
    """Weights to start from, with rows that are promising there."""

    weights: Weights
    rows: Rows
    best: Best


def weight_starts(space: SearchSpace, held: WeightSet, examples: Rows) -> list[WeightStart]:
    """Return the given weights, the same farther out, and aligned ones if they are known."""
    own = space.field.weights
    weights = [held.projected(own), held.projected(held.stretched(own))]
    aligned = held.aligned()
    if aligned:
        weights.append(held.projected({**own, **aligned}))
    return [_start(space, held.settled(found), examples) for found in weights]


def climb_weights(
    space: SearchSpace,
    held: WeightSet,
    start: WeightStart,
    climbed: tuple[int, int],
    observe: Callable[[int], None],
) -> tuple[Weights, Rows]:
    """Return the best weights found for an objective, settled, and the best rows of all objectives
    there.

    climbed: the objective, and the number of steps of its weights.
    """
    (objective, steps), field = climbed, space.field
    weights, best = start.weights, start.best
    field.at(weights)
    rows = start.rows.chosen(start.rows.wanted == objective).chosen(np.arange(_ROWS))
    length = 1.0
    for step in range(steps):
        rows, best = _examples(space, rows, objective)
        x, label = best.example(objective)
        slopes = field.weight_slopes(x, label, objective, held.movable)
        trial = held.projected(_moved(weights, slopes, length))
        field.at(trial)
        if field.norms(x[None], label[None])[objective, 0] > best.norms[objective]:
            weights, length = trial, min(length * _LONGER, _LONGEST)
        else:
            field.at(weights)
            length *= _SHORTER
        observe(step + 1)
        if length < _SHORTEST:
            break
    weights = held.settled(weights)
    field.at(weights)
    found = _examples(space, rows, objective)[1]
    if found.norms[objective] < start.best.norms[objective]:
        return start.weights, start.best.rows()
    return weights, found.rows()


def _start(space: SearchSpace, weights: Weights, examples: Rows) -> WeightStart:
    space.field.at(weights)
    best = Best(space.field.objectives)
    rows = starting_rows(space, (examples.x, examples.labels), best, _ROWS)
    return WeightStart(weights, rows, best)


def _examples(space: SearchSpace, rows: Rows, objective: int) -> tuple[Rows, Best]:
    """Take a few steps of the examples at the present weights; the best example becomes the first
    row."""
    best = Best(space.field.objectives)
    rows = climb(space, rows, best, _BURST)
    rows.x[0], rows.labels[0] = best.example(objective)
    return rows, best


def _moved(weights: Weights, slopes: Mapping[str, FloatArray], length: float) -> Weights:
    """Take a step uphill, measured in lengths of each parameter."""
    found = dict(weights)
    for name, slope in slopes.items():
        steepness, size = np.linalg.norm(slope), max(float(np.linalg.norm(weights[name])), 1e-3)
        if steepness > 0.0:
            found[name] = weights[name] + (length * size / steepness) * slope
    return found
