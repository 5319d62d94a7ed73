"""pull/…: norms of cotangents, ∂loss/∂value, or of what a unit vector at the output becomes.

Each line says of which of the two it is: of "loss", or of "output", from which the Lipschitz
constant follows as the cotangent of the input.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, final

from lipcert.core.line import Line, NotProved
from lipcert.core.lines.proof import LOSS, Proof, Seed
from lipcert.core.losses.base import loss_cotangent, read_loss
from lipcert.core.rules.facts import Cotangent
from lipcert.core.rules.steps import received


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PullLine(Line[Cotangent]):
    """‖cotangent of value‖₂ ≤ bound. What else follows of it is kept as it follows."""

    stage: ClassVar[int] = 5
    of: Seed = LOSS
    value: str

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
