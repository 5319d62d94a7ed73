"""fact/raised: what larger weights say of a ReLU, where no entry below them is negative."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, final

from lipcert.core.codec import Bound
from lipcert.core.coverage import is_relu
from lipcert.core.forms.raised import affine_of, raised_of
from lipcert.core.interval import Array
from lipcert.core.line import NotProved
from lipcert.core.lines.chains import VALUES, chain_steps
from lipcert.core.lines.facts import FactLine
from lipcert.core.lines.proof import Proof
from lipcert.core.program import Step
from lipcert.core.rules.facts import Fact


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class RaisedFact(FactLine):
    """Of a ReLU behind affine steps from a value without negative entries, by `forms.raised`.

    start: that value. numbers: p, q and τ, which are not trusted.
    """

    rule: Literal["fact/raised"] = "fact/raised"
    start: str
    numbers: tuple[tuple[Bound, ...], ...]

    def evaluate(self, proof: Proof) -> Fact:
        """From the norm of the value at the start, and those of its runs."""
        shapes = proof.program.shapes
        steps = chain_steps(proof.program, VALUES, self.start, self.value, proof.free)
        if steps is None or len(steps) < 2 or not is_relu(steps[-1]):
            raise NotProved("it is not of a ReLU behind fixed steps from its start")
        below = proof.facts[self.start]
        affine = affine_of(self.start, steps[:-1], shapes)
        if affine is None or not (below.box.lo >= 0.0).all():
            raise NotProved("the steps are not affine, or an entry below may be negative")
        constants = constants_of(proof, self.start, steps[:-1], affine.runs)
        raised = raised_of(affine, constants, self.numbers, proof.engine.norms)
        if raised is None:
            raise NotProved("its numbers prove nothing")
        run = math.inf
        if affine.upper.shape == (shapes[self.value][-1], shapes[self.start][-1]):
            run = raised.times(below.row_norm, 1)
        return Fact.of(shapes[self.value], raised.times(below.norm, affine.runs), row_norm=run)


def constants_of(proof: Proof, start: str, steps: Sequence[Step], runs: int) -> Array:
    """Upper limits of what steps make of 0, for every run."""
    end = steps[-1]
    box = proof.images(steps, start)[end.output].box.broadcast(end.shape)
    found: Array = box.hi.reshape(runs, -1).max(axis=0)
    return found
