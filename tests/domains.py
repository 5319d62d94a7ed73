"""Input domains for tests: real numbers in a box, a ball, or both; several side by side."""

import math

import numpy as np

from lipcert.core.interval import Interval
from lipcert.core.program import Part, Program
from lipcert.core.rules.facts import Fact
from lipcert.graph.domain import Domain


def box_and_ball(
    size: int, radius: float = math.inf, ends: tuple[float, float] | None = None
) -> Domain:
    """So many numbers."""
    return side_by_side([(size, radius, ends)])


def side_by_side(
    inputs: list[tuple[int, float, tuple[float, float] | None]], radius: float = math.inf
) -> Domain:
    """Inputs of so many numbers each, and a ball for all of them together."""
    facts, parts, ends = {}, [], []
    for place, (size, norm, box) in enumerate(inputs):
        name, shape = f"x{place}", (1, size)
        interval = None if box is None else Interval(*(np.full((1, 1), end) for end in box))
        facts[name] = Fact.of(shape, norm, interval)
        parts.append(Part(name, shape))
        ends.append(facts[name].box.broadcast(shape))
    low = np.concatenate([box.lo for box in ends], axis=1)
    high = np.concatenate([box.hi for box in ends], axis=1)
    if len(inputs) == 1:
        shapes = {"x": parts[0].shape}
        return Domain.of(Program("x", "x", shapes, (), None, ()), {"x": facts["x0"]})
    shapes = {"x": low.shape, **{part.name: part.shape for part in parts}}
    facts["x"] = Fact.of(low.shape, radius, Interval(low, high))
    return Domain.of(Program("x", "x", shapes, (), None, (), parts=tuple(parts)), facts)
