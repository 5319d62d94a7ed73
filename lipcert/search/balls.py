"""Balls of inputs that are tried: the smallest, one between, and the one around 0."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from lipcert.core.forms.centred import LARGEST_SQUARED
from lipcert.core.lines.proof import Proof
from lipcert.core.program import Shape
from lipcert.core.rules.facts import Fact


def shares_of_balls(proof: Proof) -> Iterator[tuple[float, ...]]:
    """Shares as of `core.lines.balls.InputBall`: of the whole input, and of each of several."""
    program, known = proof.program, proof.known
    yield from dict.fromkeys(
        (share,) for share in _shares(known[program.input], program.shapes[program.input])
    )
    own = [_shares(known[part.name], part.shape) for part in program.parts]
    if own:
        yield from zip(*own, strict=False)


def _shares(fact: Fact, shape: Shape) -> tuple[float, ...]:
    """Of one input; none where its norm is not bounded, or its square is not a number."""
    box = fact.box.broadcast(shape)
    if not fact.norm <= LARGEST_SQUARED:
        return ()
    middle = 0.5 * box.lo + 0.5 * box.hi
    curvature = 2.0 * float(np.sum(middle * middle))
    slope = max(fact.norm * fact.norm + float(np.sum(box.lo * box.hi)), 0.0)
    best = 1.0 - min(slope / curvature, 1.0) if curvature > 0.0 else 1.0
    return best, 0.5 + 0.5 * best, 1.0
