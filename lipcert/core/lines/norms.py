"""norm/…: bounds of the norms of linear maps."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lipcert.core.budget import spend
from lipcert.core.coverage import tensors_read
from lipcert.core.interval import Interval
from lipcert.core.line import Line, NotProved
from lipcert.core.lines.proof import Proof
from lipcert.core.norms.claim import NormCheck, NormWitness, all_at_most, matrix_of
from lipcert.core.program import Dense, Shape, Step


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class NormLine(Line[float]):
    """‖A‖₂ ≤ bound, A the linear part of steps whose tensors are those of the file.

    method: how the norm is proved ("dense", "windows", "absolute", "explicit" or "torus"). twists,
    counts: of a torus. The line proves the bound itself, or nothing (inf).
    """

    method: str
    twists: tuple[int, ...] = ()
    counts: tuple[int, ...] = ()

    def _proved(self, steps: Sequence[Step], proof: Proof) -> float:
        if self.bound is None:
            raise NotProved("it states no norm")
        witness = NormWitness(self.method, self.twists, self.counts)
        shapes, check = proof.program.shapes, proof.engine.norms
        fixed = not proof.free & tensors_read(steps)
        holds = fixed and norm_holds(steps, shapes, self.stated, witness, check)
        return self.stated if holds else math.inf


def matrix_holds(entries: Interval, bound: float, check: NormCheck) -> bool:
    """Whether the norm of a matrix is proved; a matrix beyond the limits of a proof is not."""
    spend()
    try:
        return all_at_most(entries, 1.0, bound, check)
    except NotProved:
        return False


def norm_holds(
    steps: Sequence[Step],
    shapes: Mapping[str, Shape],
    bound: float,
    witness: NormWitness,
    check: NormCheck,
) -> bool:
    """Whether the norm of consecutive steps is proved; it is not if they do not fit together."""
    spend()
    step = steps[0]
    try:
        if len(steps) == 1 and isinstance(step.op, Dense) and witness.method == "dense":
            before = shapes[step.inputs[0]]
            return all_at_most(matrix_of(step.op, before, step.shape), 1.0, bound, check)
        from lipcert.core.norms.convolution import kernel_of  # noqa: PLC0415  for others only

        return kernel_of(steps, shapes).norm_at_most(bound, witness, check)
    except NotProved:
        return False


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class StepNorm(NormLine):
    """The norm of the linear step that computes a value."""

    value: str

    def evaluate(self, proof: Proof) -> float:
        """Return the bound, if `norms.claim` proves it."""
        return self._proved((proof.step(self.value),), proof)

    def keep(self, proof: Proof, found: float) -> None:
        """Keep the norm for every rule that uses the norm of the step."""
        proof.norms[self.value] = found
