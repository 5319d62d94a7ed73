"""Activations: a function of one number, entry by entry, and PRelu with its trained slope."""

from __future__ import annotations

import math

import numpy as np

from lipcert.core.arithmetic import add_up, multiply_up
from lipcert.core.interval import Interval, exact
from lipcert.core.program import Activation, PRelu, Shape
from lipcert.core.rules.curves import hull
from lipcert.core.rules.enclosures import clip
from lipcert.core.rules.facts import Fact, root_up
from lipcert.core.rules.functions import function
from lipcert.core.rules.weights import Weights


def activated(op: Activation, x: Fact, shape: Shape) -> Fact:
    """√n·|f(0)| + c·X for n entries, also for runs, and the image of the box.

    Proof: ‖f(x)‖ ≤ ‖f(0)‖ + ‖f(x) − f(0)‖, and c bounds the slopes of the chords from 0.
    Attained: f(0) = 0 and |f(x)| = c|x| on one entry; at X = 0 always.
    """
    known = function(op.name, op.numbers)
    chord, at_zero = known.chord(x.box), known.at_zero

    def grown(length: float, entries: Shape) -> float:
        fixed = multiply_up(root_up(math.prod(entries)), at_zero)
        return add_up(fixed, multiply_up(chord, length))

    return Fact.of(
        shape,
        grown(x.norm, shape),
        known.image(x.box),
        grown(x.run, shape[-1:]),
        grown(x.column, shape[-2:-1]),
    )


def prelu_fact(op: PRelu, x: Fact, shape: Shape, weights: Weights) -> Fact:
    """c·X with c = max(1, |s|), entries known to be ≥ 0 counting 1, and the image of the box.

    Proof: |y_i| ≤ max(1, |s_i|)·|x_i|, and y_i = x_i where x_i ≥ 0.
    Attained: on one negative entry with the largest |s| ≥ 1, or on a positive one.
    """
    slopes = prelu_slopes(op, x, weights)
    steepest = max(1.0, float(np.max(slopes.magnitude(), initial=0.0)))
    below = clip(x.box, -math.inf, 0.0) * weights.entries(op.slope)
    above = clip(x.box, 0.0, math.inf)
    image = _either(x.box, below, above)
    norm, run, column = (multiply_up(steepest, length) for length in (x.norm, x.run, x.column))
    return Fact.of(shape, norm, image, run, column)


def prelu_slopes(op: PRelu, x: Fact, weights: Weights) -> Interval:
    """1 where x > 0, the slope where x < 0, anything between at 0."""
    return _either(x.box, weights.entries(op.slope), exact(1.0))


def _either(box: Interval, below: Interval, above: Interval) -> Interval:
    """One answer for numbers ≤ 0, one for numbers ≥ 0, both where a box holds 0."""
    both = hull(below, above)
    low = np.where(box.lo > 0.0, above.lo, np.where(box.hi < 0.0, below.lo, both.lo))
    high = np.where(box.lo > 0.0, above.hi, np.where(box.hi < 0.0, below.hi, both.hi))
    return Interval(low, high)
