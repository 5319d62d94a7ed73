"""norm/run and pull/run: affine steps in a row, as one map."""

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
    """Of affine steps in a row, as one map. values: what they compute, in order."""

    rule: Literal["norm/run"] = "norm/run"
    about: ClassVar[str] = "values"
    values: tuple[str, ...]

    def evaluate(self, proof: Proof) -> float:
        """By `norms.fused`, which checks that the steps follow one another."""
        steps = tuple(proof.step(value) for value in self.values)
        if len(steps) < 2:
            raise NotProved("one step is not a run")
        return self._proved(steps, proof)

    def keep(self, proof: Proof, found: float) -> None:
        """For lines that name the run."""
        proof.runs[self.values] = found


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class RunPull(ShareLine):
    """Through a run of affine steps, by its norm.

    Hypotheses (checked): nothing else reads what lies between. If a sum of the run has the value
    itself as its other term, nothing but the first step and the sum reads the value, and all that
    it receives comes that way.
    Proof: a cotangent that enters at the end of x ↦ Ax + c reaches x as Aᵀ times it.
    """

    rule: Literal["pull/run"] = "pull/run"
    about: ClassVar[str] = "values"
    values: tuple[str, ...]

    def evaluate(self, proof: Proof) -> float:
        """The norm of the run times that of the cotangent at its end."""
        norm = proof.runs[self.values]
        if any(proof.reads[value] != 1 for value in self.values[:-1]):
            raise NotProved("something else reads a value within the run")
        if self._is_sum(proof) and proof.reads[proof.steps[self.values[0]].inputs[0]] != 2:
            raise NotProved("something else reads the value at the start of the run")
        return multiply_up(norm, proof.passes[self.of].cotangents[self.values[-1]].norm)

    def entry(self, proof: Proof) -> tuple[str, str | None]:
        """The start of the run, and its first step; with a sum in it, all readers."""
        first = proof.steps[self.values[0]]
        return first.inputs[0], None if self._is_sum(proof) else first.output

    def _is_sum(self, proof: Proof) -> bool:
        return any(isinstance(proof.steps[value].op, Add) for value in self.values)
