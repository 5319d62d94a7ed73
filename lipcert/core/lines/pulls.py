"""pull/…: norms of cotangents, ∂loss/∂value, or of what a unit vector at the output becomes.

Each line says of which of the two it is: of "loss", or of "output", from which the Lipschitz
constant follows as the cotangent of the input.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, final

from lipcert.core.arithmetic import multiply_up
from lipcert.core.line import Line, NotProved
from lipcert.core.lines.chains import COTANGENTS
from lipcert.core.lines.proof import LOSS, Proof, Seed
from lipcert.core.losses.base import loss_cotangent, read_loss
from lipcert.core.paths import is_only_way, reads_of
from lipcert.core.program import Add, Program, Step
from lipcert.core.rules.facts import Cotangent
from lipcert.core.rules.steps import received


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PullLine(Line[Cotangent]):
    """‖cotangent of value‖₂ ≤ bound. What else follows of it is kept as it follows."""

    stage: ClassVar[int] = 5
    of: Seed = LOSS
    value: str

    @property
    def subject(self) -> str:
        """The value that is bounded."""
        return self.value

    def keep(self, proof: Proof, found: Cotangent) -> None:
        """For the lines of values below."""
        cotangents = proof.passes[self.of].cotangents
        if self.value in cotangents:
            raise NotProved("the cotangent is bounded twice")
        cotangents[self.value] = replace(found, norm=self.stated)


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class LossPull(PullLine):
    """Of the output: the gradient of the loss, clipped where training clips it."""

    rule: Literal["pull/loss"] = "pull/loss"

    def evaluate(self, proof: Proof) -> Cotangent:
        """By `losses`, from the fact of the output."""
        program, premises = proof.program, proof.premises
        if self.of != LOSS or self.value != program.output:
            raise NotProved("it is not of the output that the loss reads")
        if premises.loss_parts or program.heads:
            from lipcert.core.losses.joint import joint_cotangent, joint_loss  # noqa: PLC0415

            joint = joint_loss(premises.loss_parts, program.heads)
            found = joint_cotangent(joint, program, proof.facts)
        else:
            loss = read_loss(premises.loss, dict(premises.loss_parameters))
            shape = program.shapes[program.output]
            found = loss_cotangent(loss, proof.facts[program.output], shape)
        return found if premises.loss_clip is None else found.clipped(premises.loss_clip)


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ValuePull(PullLine):
    """Of a value, from the cotangents of what its readers compute, by the rules of those steps.

    Hypotheses (checked): it is not the output, which the loss reads besides all steps.
    Where lines before it bound what arrives through one reader, or in all, by a run or a form, that
    bounds it too.
    """

    rule: Literal["pull/value"] = "pull/value"

    def evaluate(self, proof: Proof) -> Cotangent:
        """What `rules.steps.received` says of it."""
        own = proof.passes[self.of]
        if self.value not in proof.program.shapes:
            raise NotProved("there is no such value")
        if self.value == proof.program.output:
            raise NotProved("the loss reads the output, too")
        found = received(
            own.program,
            self.value,
            own.readers.get(self.value, ()),
            proof.facts,
            proof.weights,
            own.cotangents,
            own.edges,
        )
        total = own.totals.get(self.value, math.inf)
        return replace(found, norm=min(found.norm, total))


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ShareLine(Line[float]):
    """‖what a value receives‖₂ ≤ bound, through one of its readers or through all of them."""

    stage: ClassVar[int] = 5
    of: Seed = LOSS

    @abstractmethod
    def entry(self, proof: Proof) -> tuple[str, str | None]:
        """The value, and the only reader through which it receives this; None: all are meant."""

    def keep(self, proof: Proof, found: float) -> None:
        """For a line about the value."""
        del found
        own, (start, reader) = proof.passes[self.of], self.entry(proof)
        if reader is None:
            own.totals[start] = min(own.totals.get(start, math.inf), self.stated)
        else:
            known = own.edges.get((start, reader), math.inf)
            own.edges[start, reader] = min(known, self.stated)


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class RunPull(ShareLine):
    """Through a run of affine steps, by its norm.

    Hypotheses (checked): nothing else reads what lies between. If a sum of the run has the value
    itself as its other term, nothing but the first step and the sum reads the value, and all that
    it receives comes that way.
    Proof: a cotangent that enters at the end of x ↦ Ax + c reaches x as Aᵀ times it.
    """

    rule: Literal["pull/run"] = "pull/run"
    values: tuple[str, ...]

    @property
    def subject(self) -> str:
        """The last value of the run."""
        return self.values[-1] if self.values else ""

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


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class FormPull(ShareLine):
    """Through the steps of a chain, by its form, from the cotangent where the chain ends.

    Hypotheses (checked): what reaches the values between these steps reaches them through these
    steps alone; one of the steps reads the value at the start, once, or all its readers are among
    them. What else the steps read does not matter: it is held as it is.
    by: "norm" for the norm that the form states times that of the cotangent, "hull" for the largest
    ‖Jᵀg‖ over the hull of the cotangent.
    Proof: ‖Jᵀg‖² ≤ gᵀPg.
    """

    rule: Literal["pull/form"] = "pull/form"
    form: int
    by: Literal["norm", "hull"]

    @property
    def subject(self) -> str:
        """The form, by its line."""
        return f"the chain of line {self.form}"

    def evaluate(self, proof: Proof) -> float:
        """The form over what is known of the cotangent."""
        chain = proof.forms[self.form]
        if chain.use != COTANGENTS:
            raise NotProved("the form is not one of cotangents")
        first_reader(proof.program, chain.steps, chain.start)
        above = proof.passes[self.of].cotangents[chain.stop]
        if self.by == "norm":
            return multiply_up(chain.form.norm, above.norm)
        if above.hull is None:
            raise NotProved("no hull of the cotangent is known")
        return chain.form.over_hull(above.hull)

    def entry(self, proof: Proof) -> tuple[str, str | None]:
        """The start of the chain, and the only step of it that reads the start, if one does."""
        chain = proof.forms[self.form]
        return chain.start, first_reader(proof.program, chain.steps, chain.start)


def first_reader(program: Program, steps: Sequence[Step], start: str) -> str | None:
    """The only one of these steps, on the ways up from a value, that reads it; None where several
    are all its readers. NotProved where others read it too, or what lies between."""
    if not is_only_way(program, steps):
        raise NotProved("cotangents reach the chain in other ways")
    reads = reads_of(steps, start)
    if reads.total() == 1:
        return next(iter(reads))
    if start == program.output or reads != reads_of(program.steps, start):
        raise NotProved("the value at the start of the chain has other readers")
    return None
