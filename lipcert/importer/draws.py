"""Draws: the inputs on which an imported graph is compared with onnxruntime.

What enters: the domain that the user declares, if any. What leaves: batches of examples: of
ordinary size, and from the domain itself, where alone the bounds are to hold.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, final

import numpy as np

from lipcert.core.program import Shape
from lipcert.upper import FloatArray

_SEED: Final = 20_240_817


@final
@dataclass(frozen=True, slots=True)
class Domain:
    """Examples with ‖x‖₂ ≤ input_norm and every entry in input_box, whichever are declared."""

    input_norm: float | None = None
    input_box: tuple[float, float] | None = None

    def draw(self, shape: Shape, generator: np.random.Generator) -> FloatArray:
        """Examples [examples, *shape of one], of all sizes up to the largest."""
        low, high = self.input_box or (-math.inf, math.inf)
        if self.input_box is not None:
            found = low + (high - low) * generator.random(shape)
        else:
            found = generator.standard_normal(shape)
        if self.input_norm is None:
            return found
        centre = min(max(0.0, low), high)  # the shortest admissible example
        lengths = np.linspace(1.0, 0.0, shape[0], endpoint=False)
        return np.stack(
            [
                centre + _share(row - centre, centre, self.input_norm, self.input_box) * size
                for row, size in zip(found, lengths, strict=True)
            ]
        )


def _share(
    step: FloatArray, centre: float, radius: float, box: tuple[float, float] | None
) -> FloatArray:
    """The longest multiple of a step away from the centre that the ball holds; 1 in a box."""
    squares = [float(np.sum(step * step)), 2.0 * centre * float(np.sum(step))]
    rest = step.size * centre * centre - radius * radius
    if squares[0] == 0.0:
        return step
    root = math.sqrt(max(squares[1] ** 2 - 4.0 * squares[0] * rest, 0.0))
    longest = max((root - squares[1]) / (2.0 * squares[0]), 0.0)
    return step * (longest if box is None else min(longest, 1.0))


NOWHERE: Final = Domain()


def draws(shape: Shape, domain: Domain) -> Iterator[tuple[FloatArray, bool]]:
    """Batches of examples, and whether they come from the declared domain."""
    generator = np.random.default_rng(_SEED)
    yield generator.standard_normal(shape), False
    yield generator.random(shape), False
    if domain != NOWHERE:
        yield domain.draw(shape, generator), True
