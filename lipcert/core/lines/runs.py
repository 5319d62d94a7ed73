"""norm/run and pull/run: consecutive affine steps as one map."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from lipcert.core.arithmetic import multiply_up
from lipcert.core.line import NotProved
from lipcert.core.lines.chains import ShareLine
from lipcert.core.lines.norms import NormLine
from lipcert.core.lines.proof import Proof
from lipcert.core.token_kinds import Add


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class RunNorm(NormLine):
    """The norm of consecutive affine steps as one map. values: their outputs, in order."""

    rule: Literal["norm/run"] = "norm/run"
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

    rule: Literal["pull/run"] = "pull/run"
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
