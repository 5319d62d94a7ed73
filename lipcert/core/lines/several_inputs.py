"""Several inputs: the assumptions on all together, and the ball around one example of each."""

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction

import numpy as np

from lipcert.core.arithmetic import add_up, multiply_up, sqrt_up
from lipcert.core.interval import Interval
from lipcert.core.ledger.premises import Premises
from lipcert.core.lines.balls import Ball, enclosing_ball
from lipcert.core.lines.proof import input_box, input_fact
from lipcert.core.program import Program, Shape
from lipcert.core.rules.facts import Fact


def facts_of_several(program: Program, premises: Premises) -> dict[str, Fact]:
    """Return what A-INPUT states of each input, and of all inputs one after another.

    Proof: the box of all inputs consists of their boxes side by side, and ‖x‖² is the sum of the
    squares of their norms.
    """
    shape = program.shapes[program.input]
    found, squares = {}, 0.0
    for part in premises.input_parts:
        norm = math.inf if part.norm is None else part.norm
        found[part.name] = input_fact(part.shape, norm, input_box(part.shape, part.box))
        own = found[part.name].norm
        squares = add_up(squares, multiply_up(own, own))
    boxes = [found[part.name].box.broadcast(part.shape) for part in program.parts]
    low, high = (
        np.concatenate([end.reshape(1, -1) for end in ends], axis=1)
        for ends in ([box.lo for box in boxes], [box.hi for box in boxes])
    )
    norm = math.inf if squares == math.inf else sqrt_up(squares)
    norm = norm if premises.input_norm is None else min(norm, premises.input_norm)
    return {program.input: input_fact(shape, norm, Interval(low, high)), **found}


def ball_of_several(program: Program, known: Mapping[str, Fact], shares: Sequence[float]) -> Ball:
    """Return the balls of several inputs, one share for each, as one ball of all inputs."""
    rows = zip(program.parts, shares, strict=True)
    balls = [enclosing_ball(known[p.name], p.shape, Fraction(s)) for p, s in rows]
    return side_by_side(balls, program.shapes[program.input])


def side_by_side(balls: Sequence[Ball], shape: Shape) -> Ball:
    """Return one ball for inputs that stand one after another in an input of this shape.

    Proof: the square of a distance is the sum of the squares of the distances of the parts.
    """
    centre = np.concatenate([ball.centre.reshape(-1) for ball in balls]).reshape(shape)
    square = sum((Fraction(ball.radius) ** 2 for ball in balls), start=Fraction(0))
    return Ball(centre, sqrt_up(square))
