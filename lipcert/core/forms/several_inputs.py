"""Balls of one input that holds several, as in `centred`: of the whole, and of parts joined."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction

import numpy as np

from lipcert.core.arithmetic import sqrt_up
from lipcert.core.forms.centred import Ball, enclosing_ball, is_allowed, shares_of
from lipcert.core.interval import Array
from lipcert.core.program import Program, Shape
from lipcert.core.rules.facts import Fact


def balls_of_parts(
    program: Program, known: Mapping[str, Fact], whole: Iterable[Ball]
) -> Iterator[Ball]:
    """Balls of the whole around a centre of which every part is allowed; balls of parts, joined.

    known: what is assumed of the input and of each part. whole: balls that hold all inputs.
    """
    yield from (ball for ball in whole if _has_allowed_parts(ball.centre, program, known))
    shape, at_input = program.shapes[program.input], known[program.input]
    own = [(known[part.name], part.shape, shares_of(known[part.name], part.shape))
           for part in program.parts]  # fmt: skip
    for index in range(min((len(shares) for _, _, shares in own), default=0)):
        balls = [enclosing_ball(fact, size, shares[index]) for fact, size, shares in own]
        found = [ball for ball in balls if ball is not None]
        if len(found) == len(balls):
            joined = side_by_side(found, shape)
            if is_allowed(joined.centre, at_input):
                yield joined


def side_by_side(balls: Sequence[Ball], shape: Shape) -> Ball:
    """The ball of inputs that one input of this shape holds one after another.

    Proof: the square of a distance is the sum of those of the parts.
    """
    centre = np.concatenate([ball.centre.reshape(-1) for ball in balls]).reshape(shape)
    square = sum((Fraction(ball.radius) ** 2 for ball in balls), start=Fraction(0))
    return Ball(centre, sqrt_up(square))


def _has_allowed_parts(centre: Array, program: Program, known: Mapping[str, Fact]) -> bool:
    """Whether each of several inputs satisfies what is assumed of it alone."""
    return all(
        is_allowed(own, known[part.name])
        for part, own in zip(program.parts, program.inputs_of(centre), strict=True)
    )
