"""The ascent over weights: for one objective, weights within their set, and the examples there.

What enters: a field, the set, examples to begin with. What leaves: settled weights with rows that
are bad for the bound there. Steps of the weights and of the examples take turns; a step of the
weights that does not help is taken back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, final

import numpy as np

from lipcert.audit.attack.ascent import Best, Ground, Rows, climb, starting_rows
from lipcert.audit.attack.weight_set import Weights, WeightSet
from lipcert.upper import FloatArray

_ROWS: Final = 4
_BURST: Final = 3
_LONGER: Final = 2.0
_SHORTER: Final = 0.25
_LONGEST: Final = 8.0
_SHORTEST: Final = 1e-4


@final
@dataclass(frozen=True, slots=True, eq=False)
class WeightStart:
    """Weights to start from, with the rows that are promising there."""

    weights: Weights
    rows: Rows
    best: Best


def weight_starts(ground: Ground, held: WeightSet, examples: Rows) -> list[WeightStart]:
    """The given weights, the same farther out, aligned ones where they are known."""
    own = ground.field.weights
    weights = [held.projected(own), held.projected(held.stretched(own))]
    aligned = held.aligned()
    if aligned:
        weights.append(held.projected({**own, **aligned}))
    return [_start(ground, held.settled(found), examples) for found in weights]


def climb_weights(
    ground: Ground,
    held: WeightSet,
    start: WeightStart,
    climbed: tuple[int, int],
    observe: Callable[[int], None],
) -> tuple[Weights, Rows]:
    """The best weights met for an objective, settled, and the best rows of all objectives there.

    climbed: the objective, and how many steps its weights may take.
    """
    (objective, steps), field = climbed, ground.field
    weights, best = start.weights, start.best
    field.at(weights)
    rows = start.rows.chosen(start.rows.wanted == objective).chosen(np.arange(_ROWS))
    length = 1.0
    for step in range(steps):
        rows, best = _examples(ground, rows, objective)
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
    found = _examples(ground, rows, objective)[1]
    if found.norms[objective] < start.best.norms[objective]:
        return start.weights, start.best.rows()
    return weights, found.rows()


def _start(ground: Ground, weights: Weights, examples: Rows) -> WeightStart:
    ground.field.at(weights)
    best = Best(ground.field.objectives)
    rows = starting_rows(ground, (examples.x, examples.labels), best, _ROWS)
    return WeightStart(weights, rows, best)


def _examples(ground: Ground, rows: Rows, objective: int) -> tuple[Rows, Best]:
    """A few steps of the examples at the present weights; the best of them takes the first row."""
    best = Best(ground.field.objectives)
    rows = climb(ground, rows, best, _BURST, _nobody)
    rows.x[0], rows.labels[0] = best.example(objective)
    return rows, best


def _moved(weights: Weights, slopes: Mapping[str, FloatArray], length: float) -> Weights:
    """A step uphill, in lengths of each parameter."""
    found = dict(weights)
    for name, slope in slopes.items():
        steepness, size = np.linalg.norm(slope), max(float(np.linalg.norm(weights[name])), 1e-3)
        if steepness > 0.0:
            found[name] = weights[name] + (length * size / steepness) * slope
    return found


def _nobody(step: int) -> None:
    del step
