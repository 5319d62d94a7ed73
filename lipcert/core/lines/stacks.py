"""norm/stack and pull/stack: matrices that read one value, one above the other."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from lipcert.core.arithmetic import add_up, multiply_up, sqrt_up
from lipcert.core.coverage import tensors_read
from lipcert.core.interval import Interval, exact
from lipcert.core.line import Line, NotProved
from lipcert.core.lines.chains import ShareLine
from lipcert.core.lines.norms import matrix_holds
from lipcert.core.lines.proof import Proof
from lipcert.core.lines.steps import received
from lipcert.core.program import Dense, Step


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class StackNorm(Line[float]):
    """‖[W_1; …; W_k]‖₂ ≤ bound, of matrices that read one value. values: what they compute.

    Hypotheses (checked): no weight may change.
    """

    rule: Literal["norm/stack"] = "norm/stack"
    stage: ClassVar[int] = 3
    about: ClassVar[str] = "values"
    values: tuple[str, ...]

    def evaluate(self, proof: Proof) -> float:
        """Return the bound, if it is proved for the matrix of all rows."""
        steps = tuple(proof.step(value) for value in self.values)
        if self.bound is None or proof.free & tensors_read(steps):
            raise NotProved("it states no norm, or weights may change")
        matrix = stacked(steps)
        if matrix is None or not matrix_holds(matrix, self.bound, proof.engine.norms):
            raise NotProved("it is not proved of matrices that read one value")
        return self.bound

    def keep(self, proof: Proof, found: float) -> None:
        """Keep the norm for lines that name the stack."""
        proof.stacks[self.values] = found


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class StackPull(ShareLine):
    """The norm of a stack bounds the cotangent of the value that its matrices read.

    Proof: the matrices pass down W_1ᵀg_1 + … + W_kᵀg_k, the transpose of the stack times all g_i,
    one after another, whose norm is √Σ‖g_i‖². The shares of other readers are added.
    Attained: by g_i of the largest norms that lie along a singular vector of the stack.
    """

    rule: Literal["pull/stack"] = "pull/stack"
    about: ClassVar[str] = "values"
    values: tuple[str, ...]

    def evaluate(self, proof: Proof) -> float:
        """Return the norm of the stack times that of the cotangents, plus the other shares."""
        norm, own, start = proof.stacks[self.values], proof.passes[self.of], self.entry(proof)[0]
        square = 0.0
        for step in own.readers.get(start, ()):
            if step.output in self.values:
                length = own.cotangents[step.output].norm
                square = add_up(square, multiply_up(length, length))
        rest = received(own, start, proof.facts, proof.weights, self.values)
        return add_up(multiply_up(norm, sqrt_up(square)), rest.norm)

    def entry(self, proof: Proof) -> tuple[str, str | None]:
        """Return the value that the stack reads; the bound holds for all its readers together."""
        return proof.step(self.subject).inputs[0], None


def stacked(steps: Sequence[Step]) -> Interval | None:
    """The rows of matrices that read one value, one above the other; None for other steps."""
    rows = [
        step.op.weight
        for step in steps
        if isinstance(step.op, Dense) and step.inputs == steps[0].inputs
    ]
    if not 0 < len(rows) == len(steps):
        return None
    if all(weight.is_exact for weight in rows):
        return exact(np.concatenate([weight.lo for weight in rows]))
    low, high = (np.concatenate([getattr(row, end) for row in rows]) for end in ("lo", "hi"))
    return Interval(low, high)
