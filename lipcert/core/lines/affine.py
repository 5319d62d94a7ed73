"""fact/affine: the norm of an affine map bounds its output, or that of a ReLU behind it."""

import math
from dataclasses import dataclass
from typing import Literal

from lipcert.core.arithmetic import add_up, multiply_up
from lipcert.core.coverage import is_relu
from lipcert.core.interval import clip
from lipcert.core.line import NotProved
from lipcert.core.lines.proof import Proof
from lipcert.core.lines.steps import FactLine
from lipcert.core.program import Dense, Step
from lipcert.core.rules.facts import Fact
from lipcert.core.window_kinds import Conv


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class AffineFact(FactLine):
    """‖Ax + c‖ ≤ ‖A‖·‖x‖ + ‖c‖, c the image of 0; behind a ReLU ‖c⁺‖ takes the place of ‖c‖.

    values: those of a run whose norm is proved, or of one linear step. value: the last of them, or
    the output of a ReLU that reads it.
    Proof: relu(u + c) ≤ relu(u) + relu(c) entry by entry, and no entry is negative; an upper limit
    of the ReLU makes entries smaller; ‖relu(Ax)‖ ≤ ‖Ax‖. If A is a matrix that acts on runs of x,
    the same holds for each run of the output.
    Attained: A = I, c = x ≥ 0.
    """

    rule: Literal["fact/affine"] = "fact/affine"
    values: tuple[str, ...]

    def evaluate(self, proof: Proof) -> Fact:
        """Return the fact that follows from the input of the first step."""
        steps = tuple(proof.step(value) for value in self.values)
        if not steps:
            raise NotProved("it names no steps")
        bound, start, shape = self._norm(steps, proof), steps[0].inputs[0], steps[-1].shape
        at_zero = proof.images(steps, start)[steps[-1].output]
        if self.value != self.values[-1]:
            above = proof.step(self.value)
            if not is_relu(above) or above.inputs != self.values[-1:]:
                raise NotProved("it is not of the run, nor of a ReLU behind it")
            at_zero = Fact.of(shape, box=clip(at_zero.box, 0.0, math.inf))
        below = proof.facts[start]
        norm = add_up(multiply_up(bound, below.norm), at_zero.norm)
        run = math.inf
        if len(steps) == 1 and isinstance(steps[0].op, Dense):
            run = add_up(multiply_up(bound, below.row_norm), at_zero.row_norm)
        return Fact.of(shape, norm, row_norm=run)

    def _norm(self, steps: tuple[Step, ...], proof: Proof) -> float:
        """Return ‖A‖; for a run, the norm that an earlier line proves."""
        if len(steps) > 1:
            return proof.runs[self.values]
        (step,) = steps
        if not isinstance(step.op, Dense | Conv):
            raise NotProved("it names a step that is not linear")
        before = proof.program.shapes[step.inputs[0]]
        return proof.weights.operator_norm(step.output, step.op, before, step.shape)
