"""Inputs: what the premises say of one example, as facts."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from lipcert.core.arithmetic import add_up, multiply_up, sqrt_up
from lipcert.core.interval import Interval, exact
from lipcert.core.ledger.premises import Premises
from lipcert.core.lower.errors import Unsupported
from lipcert.core.program import Program, Shape
from lipcert.core.rules.facts import Fact, box_norm

_ROUNDING: Final = 2.0**-40


def input_facts(program: Program, premises: Premises) -> dict[str, Fact]:
    """What A-INPUT says of one example: of the input, and of each of several that it holds.

    Nothing is known besides of numbers that choose rows of a table: others beside them may not.
    Proof of the whole: its box is theirs side by side, and ‖x‖² the sum of their squares.
    """
    shape = program.shapes[program.input]
    if input_faults(program, premises):
        raise Unsupported("the assumptions on the inputs do not fit the inputs of the model")
    if not program.parts:
        box = _box(shape, premises.input_box)
        norm = math.inf if premises.input_norm is None else premises.input_norm
        return {program.input: _fact(shape, norm, box)}
    found, squares = {}, 0.0
    for part in premises.input_parts:
        norm = math.inf if part.norm is None else part.norm
        found[part.name] = _fact(part.shape, norm, _box(part.shape, part.box))
        own = found[part.name].norm
        squares = add_up(squares, multiply_up(own, own))
    boxes = [found[part.name].box.broadcast(part.shape) for part in program.parts]
    low, high = (
        np.concatenate([end.reshape(1, -1) for end in ends], axis=1)
        for ends in ([box.lo for box in boxes], [box.hi for box in boxes])
    )
    norm = math.inf if squares == math.inf else sqrt_up(squares)
    norm = norm if premises.input_norm is None else min(norm, premises.input_norm)
    return {program.input: _fact(shape, norm, Interval(low, high)), **found}


def input_faults(program: Program, premises: Premises) -> bool:
    """Whether premises describe other inputs than the program has."""
    stated = [(part.name, part.shape) for part in premises.input_parts]
    has_box = premises.input_box is not None
    return stated != [(part.name, part.shape) for part in program.parts] or (
        has_box and bool(stated)
    )


def _fact(shape: Shape, norm: float, box: Interval | None) -> Fact:
    """What is assumed of an input; Unsupported where the box lies outside of the ball."""
    if box is not None:
        nearest = np.clip(0.0, box.lo, box.hi)
        if box_norm(exact(nearest), shape) * (1.0 - _ROUNDING) > norm:
            raise Unsupported("no input has both the norm and the entries that are assumed")
    return Fact.of(shape, norm, box)


def _box(shape: Shape, ends: tuple[float, float] | None) -> Interval | None:
    if ends is None:
        return None
    low, high = (np.full((1,) * len(shape), end) for end in ends)
    return Interval(low, high)
