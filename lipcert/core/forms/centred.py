"""Centred facts: f(x) is near f(c), where c is an input in the middle that is allowed itself.

Of several inputs, c is allowed where each of them is, and all of them together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, final

import numpy as np

from lipcert.core.arithmetic import round_down, round_up, sqrt_up
from lipcert.core.forms.form import Form
from lipcert.core.interval import Array, Interval, exact, norm_up
from lipcert.core.program import Program, Shape
from lipcert.core.rules.facts import Fact, lengths_up

_LARGEST_POINTS: Final = 1 << 20
LARGEST_SQUARED: Final = 1e100
"""far below numbers whose squares overflow"""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Ball:
    """A ball that holds every value of which a fact is known, around one of these values."""

    centre: Array
    radius: float

    def point(self) -> Fact:
        """A fact of the centre alone."""
        return Fact.of(self.centre.shape, norm_up(self.centre), exact(self.centre))


def input_balls(program: Program, known: Mapping[str, Fact]) -> Iterator[Ball]:
    """Balls that hold all inputs, around inputs that are allowed.

    known: all that is assumed of the input and, of several, of each, as in `derive.input_facts`.
    Of several inputs: their own balls side by side, and balls of the whole around a centre of which
    every part is allowed.
    """
    shape, at_input = program.shapes[program.input], known[program.input]
    if math.prod(shape) > _LARGEST_POINTS or at_input.norm > LARGEST_SQUARED:
        return
    found = (enclosing_ball(at_input, shape, share) for share in set(shares_of(at_input, shape)))
    whole = (ball for ball in found if ball is not None)
    if not program.parts:
        yield from whole
        return
    from lipcert.core.forms.several_inputs import balls_of_parts  # noqa: PLC0415  for these only

    yield from balls_of_parts(program, known, whole)


def shares_of(fact: Fact, shape: Shape) -> tuple[Fraction, ...]:
    """Which balls are tried: the smallest, one between, the one around 0; none is trusted."""
    box = fact.box.broadcast(shape)
    if not (np.isfinite(box.lo).all() and np.isfinite(box.hi).all()):
        return ()
    middle = 0.5 * box.lo + 0.5 * box.hi
    curvature = 2.0 * float(np.sum(middle * middle))
    slope = max(fact.norm * fact.norm + float(np.sum(box.lo * box.hi)), 0.0)
    best = 1.0 - min(slope / curvature, 1.0) if curvature > 0.0 else 1.0
    return Fraction(best), Fraction(0.5 + 0.5 * best), Fraction(1)


def enclosing_ball(fact: Fact, shape: Shape, share: Fraction) -> Ball | None:
    """The ball around (1 − share)·middle of the box, for 0 ≤ share ≤ 1; None if none is known.

    None also where the centre is not known to satisfy the fact itself, all parts of it.
    Proof: for 0 ≤ t ≤ 1 and ‖x‖ ≤ R, ‖x − c‖² ≤ tR² + Σ((x_i − c_i)² − t·x_i²), and each term is
    convex in x_i, hence largest at an end of the box.
    Attained: for cubes [0, a]^n, and for t = 0 or 1.
    """
    box = fact.box.broadcast(shape)
    if not (0 <= share <= 1 and np.isfinite(box.lo).all() and np.isfinite(box.hi).all()):
        return None
    centre = np.clip((1.0 - float(share)) * (0.5 * box.lo + 0.5 * box.hi), box.lo, box.hi)
    if not is_allowed(centre, fact):
        return None
    weight = Interval(np.array(round_down(share)), np.array(round_up(share)))
    ends = [
        _square(exact(end) - exact(centre)) - weight * _square(exact(end)) for end in _ends(box)
    ]
    worst = exact(np.maximum(ends[0].hi, ends[1].hi).reshape(-1)).sum((0,))
    square = Fraction(float(worst.hi[0])) + share * Fraction(fact.norm) ** 2
    return Ball(centre, sqrt_up(max(square, Fraction(0))))


def fact_around(value: Interval, shape: Shape, form: Form, radius: float) -> Fact:
    """What is known of f(x) for ‖x − c‖ ≤ radius.

    value: f(c), of this shape. form: of the steps from x to f(x), with slopes that hold for all
    inputs allowed, c among them.
    Proof: f(x) − f(c) = J(x − c), where J is made of the matrices of the steps and of slopes of
    chords; its form bounds each entry by `swing`, and the norm by `reach`.
    """
    flat = value.broadcast(shape)
    rows = Interval(flat.lo.reshape(form.runs, -1), flat.hi.reshape(form.runs, -1))
    swing = form.swing(radius)
    box = rows + Interval(-swing, swing)
    norm = form.reach(rows, radius)
    return Fact.of(shape, norm, Interval(box.lo.reshape(shape), box.hi.reshape(shape)))


def is_allowed(centre: Array, fact: Fact) -> bool:
    """Whether a point satisfies a fact, all parts of it."""
    runs = float(np.max(lengths_up(centre), initial=0.0))
    columns = (
        centre.ndim < 2
        or float(np.max(lengths_up(np.swapaxes(centre, -1, -2)), initial=0.0)) <= fact.column_norm
    )
    box = fact.box.broadcast(centre.shape)
    inside = bool((centre >= box.lo).all() and (centre <= box.hi).all())
    return bool(
        inside and norm_up(centre) <= fact.norm < np.inf and runs <= fact.row_norm and columns
    )


def _ends(box: Interval) -> tuple[Array, Array]:
    return box.lo, box.hi


def _square(interval: Interval) -> Interval:
    return interval * interval
