"""fact/input, fact/step, pull/loss, pull/value and grad/tensor: what the premises say of the input,
and what the rules of steps say of what they compute, of cotangents, and of gradients of tensors.

A cotangent is ∂loss/∂value, or what a unit vector at the output becomes: each line says of which of
the two it is, of "loss" or of "output", from which the Lipschitz constant follows as the cotangent
of the input.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from lipcert.core.arithmetic import add_up, multiply_up, sqrt_up
from lipcert.core.budget import spend
from lipcert.core.coverage import rule_of
from lipcert.core.line import Line, NotProved
from lipcert.core.lines.proof import LOSS, Pass, Proof, Seed
from lipcert.core.losses.base import loss_cotangent, read_loss
from lipcert.core.program import Move, Step
from lipcert.core.reader.records import shown
from lipcert.core.rules.base import Weights
from lipcert.core.rules.facts import Cotangent, Fact
from lipcert.core.rules.steps import rule_at, step_fact


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class FactLine(Line[Fact]):
    """‖value‖₂ ≤ bound for every admissible example and all weights in scope.

    What else follows of the value (a box of its entries, the norms of its runs) is not stated, and
    kept as it follows. A further line about a value adds to what is known of it.
    """

    stage: ClassVar[int] = 4
    value: str

    def keep(self, proof: Proof, found: Fact) -> None:
        """With all that is known of the value."""
        stated = replace(found, norm=self.stated)
        if self.value in proof.facts:
            stated = proof.facts[self.value].meet(stated, proof.program.shapes[self.value])
        proof.facts[self.value] = stated


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class InputFact(FactLine):
    """Of the input of the network, from the premises: its norm, or that of its box."""

    rule: Literal["fact/input"] = "fact/input"

    def evaluate(self, proof: Proof) -> Fact:
        """What `proof.input_facts` says of it."""
        if self.value != proof.program.input:
            raise NotProved("it is not the input of the network")
        return proof.known[self.value]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class StepFact(FactLine):
    """From the facts of what the step reads, by the rule of its kind.

    step: that rule; it is stated for the reader, and compared.
    """

    rule: Literal["fact/step"] = "fact/step"
    step: str

    def evaluate(self, proof: Proof) -> Fact:
        """By `rules`; of one of several inputs also what the premises say of it."""
        step = proof.step(self.value)
        if rule_of(step.op) != self.step:
            raise NotProved(f"{shown(self.value)} is computed by {rule_of(step.op)}")
        found = step_fact(proof.program, step, proof.facts, proof.weights)
        stated = proof.known.get(self.value)
        return found if stated is None else found.meet(stated, step.shape)


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
        if premises.loss_clip is None:
            return found
        from lipcert.core.rules.clips import clipped  # noqa: PLC0415  for such a loss only

        return clipped(found, premises.loss_clip)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ValuePull(PullLine):
    """Of a value, from the cotangents of what its readers compute, by the rules of those steps.

    Hypotheses (checked): it is not the output, which the loss reads besides all steps.
    Where lines before it bound what arrives through one reader, or in all, by a run or a form, that
    bounds it too.
    """

    rule: Literal["pull/value"] = "pull/value"

    def evaluate(self, proof: Proof) -> Cotangent:
        """What `received` says of it."""
        own = proof.passes[self.of]
        if self.value not in proof.program.shapes:
            raise NotProved("there is no such value")
        if self.value == proof.program.output:
            raise NotProved("the loss reads the output, too")
        found = received(own, self.value, proof.facts, proof.weights)
        total = own.edges.get((self.value, None), math.inf)
        return replace(found, norm=min(found.norm, total))


def received(
    own: Pass, value: str, facts: Mapping[str, Fact], weights: Weights, but: Collection[str] = ()
) -> Cotangent:
    """The cotangent of a value, from those of what its readers compute.

    but: what readers compute through which nothing is to come.
    Proof: the chain rule. A value's cotangent is the sum, over the steps that read it, of the
    transposed Jacobian times the cotangent of the step's output; the rules bound all generalised
    Jacobians. What comes from entries that no other `Move` reads is 0 at all others, so that these
    shares are perpendicular. A value that nothing reads has cotangent 0. What it receives through
    one step is no longer than a line before says, where that step reads it once. For
    tokens see `with_tokens`.
    """
    shares: list[Cotangent] = []
    found: Cotangent | None = None
    readers = [step for step in own.readers.get(value, ()) if step.output not in but]
    square = 0.0
    apart = reads_apart(readers, own.program.size(value))
    for step in readers:
        rule = rule_at(own.program.shapes, step, facts, weights)
        places = [index for index, name in enumerate(step.inputs) if name == value]
        for index in places:
            spend()
            above = own.cotangents[step.output]
            share = replace(rule.pulled(index, above), tokens=rule.tokens_pulled(index, above))
            if len(places) == 1:
                known = own.edges.get((value, step.output), math.inf)
                share = replace(share, norm=min(share.norm, known))
            shares.append(share)
            if apart and isinstance(step.op, Move):
                square = add_up(square, multiply_up(share.norm, share.norm))
                share = Cotangent(0.0)
            found = share if found is None else found.plus(share)
    if found is None:
        return Cotangent(0.0)
    if apart:
        found = found.plus(Cotangent(sqrt_up(square)))
    if not any(share.tokens for share in shares):
        return found
    from lipcert.core.rules.broadcasting import with_tokens  # noqa: PLC0415  for such alone

    return with_tokens(found, shares, own.program.shapes[value])


def reads_apart(readers: Sequence[Step], size: int) -> bool:
    """Whether several of these steps are moves, and no two of them read the same entry."""
    moves = [step.op for step in readers if isinstance(step.op, Move)]
    if len(moves) < 2:
        return False
    read = [np.bincount(op.sources[op.sources >= 0], minlength=size) > 0 for op in moves]
    return bool(np.sum(read, axis=0).max(initial=0) <= 1)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class TensorGradient(Line[float]):
    """‖∂loss/∂tensor‖₂ ≤ bound for every admissible example and all weights in scope.

    Proof: the gradient is the sum of what reaches the tensor through each use of it, and each is
    bounded by the rule of the step that uses it. Nothing is known of a tensor that enters a step
    as a plain number.
    """

    rule: Literal["grad/tensor"] = "grad/tensor"
    stage: ClassVar[int] = 6
    about: ClassVar[str] = "tensor"
    tensor: str

    def evaluate(self, proof: Proof) -> float:
        """The sum over the uses, from the facts below each and the cotangent above it."""
        if self.tensor in proof.program.untracked:
            raise NotProved("no rule bounds the gradient of a plain number")
        found = 0.0
        for step in proof.users.get(self.tensor, ()):
            spend()
            for name, share in proof.shares(step):
                found = add_up(found, share) if name == self.tensor else found
        return found

    def keep(self, proof: Proof, _: float) -> None:
        """For the claims about parameters."""
        proof.gradients[self.tensor] = self.stated
