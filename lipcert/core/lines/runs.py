"""norm/run, pull/run and fact/affine: affine steps, one or several in a row, as one map."""

import math
from dataclasses import dataclass
from typing import ClassVar

from lipcert.core.arithmetic import add_up, multiply_up
from lipcert.core.coverage import is_relu
from lipcert.core.interval import clip
from lipcert.core.line import NotProved
from lipcert.core.lines.chains import ShareLine
from lipcert.core.lines.norms import NormLine
from lipcert.core.lines.proof import Proof
from lipcert.core.lines.steps import FactLine
from lipcert.core.program import Dense, Step
from lipcert.core.rules.facts import Fact
from lipcert.core.token_kinds import Add
from lipcert.core.window_kinds import Conv


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class RunNorm(NormLine):
    """The norm of consecutive affine steps as one map. values: their outputs, in order."""

    about: ClassVar[str] = "values"
    values: tuple[str, ...]

    def evaluate(self, proof: Proof) -> float:
        """Return the bound, if `norms.fused` proves that the steps are consecutive and have it."""
        steps = tuple(proof.step(value) for value in self.values)
        if len(steps) < 2:
            raise NotProved("one step is not a run")
        return self._proved(steps, proof)

    def keep(self, proof: Proof, found: float) -> None:
        """Keep the norm for lines that name the run."""
        proof.runs[self.values] = found


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class RunPull(ShareLine):
    """The norm of a run of affine steps bounds the cotangent that the run passes down.

    Hypotheses (checked): no other step reads a value within the run. If a sum of the run has the
    start of the run as its other term, only the first step and the sum read the start, and the
    bound holds for its whole cotangent.
    Proof: x ↦ Ax + c passes the cotangent g of its output down as Aᵀg.
    """

    about: ClassVar[str] = "values"
    values: tuple[str, ...]

    def evaluate(self, proof: Proof) -> float:
        """Return the norm of the run times that of the cotangent at its end."""
        norm = proof.runs[self.values]
        if any(proof.reads[value] != 1 for value in self.values[:-1]):
            raise NotProved("something else reads a value within the run")
        if self._is_sum(proof) and proof.reads[proof.steps[self.values[0]].inputs[0]] != 2:
            raise NotProved("something else reads the value at the start of the run")
        return multiply_up(norm, proof.passes[self.of].cotangents[self.values[-1]].norm)

    def entry(self, proof: Proof) -> tuple[str, str | None]:
        """Return the start and the first step of the run; None for all readers, if it has a sum."""
        first = proof.steps[self.values[0]]
        return first.inputs[0], None if self._is_sum(proof) else first.output

    def _is_sum(self, proof: Proof) -> bool:
        return any(isinstance(proof.steps[value].op, Add) for value in self.values)


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
