"""fact/input, fact/step, pull/loss, pull/value and grad/tensor: bounds step by step.

The premises bound the input. The rule of each step bounds the value that the step computes, the
cotangents that it passes down, and the gradients of its tensors. A cotangent is ∂loss/∂value, or
the image of a unit vector at the output; each line names one of the two, "loss" or "output". The
Lipschitz constant is the norm of the second kind of cotangent at the input.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from lipcert.core.arithmetic import add_up, multiply_up, sqrt_up
from lipcert.core.budget import spend
from lipcert.core.coverage import rule_of
from lipcert.core.line import Line, NotProved
from lipcert.core.lines.proof import LOSS, Pass, Proof, Seed
from lipcert.core.losses.base import loss_cotangent, read_loss
from lipcert.core.program import Move, Step
from lipcert.core.reader.records import shown
from lipcert.core.rules.base import Weights, rule_at, step_fact
from lipcert.core.rules.facts import Cotangent, Fact


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class FactLine(Line[Fact]):
    """‖value‖₂ ≤ bound for every admissible example and all weights in scope.

    The proof also keeps what the line does not state: a box of the entries, and the norms of runs.
    A further line about the same value adds to what is known of it.
    """

    value: str

    def keep(self, proof: Proof, found: Fact) -> None:
        """Join the fact with all that is known of the value."""
        stated = replace(found, norm=self.stated)
        if self.value in proof.facts:
            stated = proof.facts[self.value].meet(stated, proof.program.shapes[self.value])
        proof.facts[self.value] = stated


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class InputFact(FactLine):
    """The premises bound the input of the network: they state its norm, or a box."""

    def evaluate(self, proof: Proof) -> Fact:
        """Return the fact of `proof.input_facts`."""
        if self.value != proof.program.input:
            raise NotProved("it is not the input of the network")
        return proof.known[self.value]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class StepFact(FactLine):
    """The rule of a step bounds its output, from facts of its inputs.

    step: the name of the rule, for the reader of the certificate; it is compared.
    """

    step: str

    def evaluate(self, proof: Proof) -> Fact:
        """Return the fact of the rule; the premises may say more of one of several inputs."""
        step = proof.step(self.value)
        if rule_of(step.op) != self.step:
            raise NotProved(f"{shown(self.value)} is computed by {rule_of(step.op)}")
        found = step_fact(proof.program, step, proof.facts, proof.weights)
        stated = proof.known.get(self.value)
        return found if stated is None else found.meet(stated, step.shape)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PullLine(Line[Cotangent]):
    """‖cotangent of value‖₂ ≤ bound. The proof also keeps what the line does not state."""

    of: Seed = LOSS
    value: str

    def keep(self, proof: Proof, found: Cotangent) -> None:
        """Keep the cotangent for lines about values below."""
        cotangents = proof.passes[self.of].cotangents
        if self.value in cotangents:
            raise NotProved("the cotangent is bounded twice")
        cotangents[self.value] = replace(found, norm=self.stated)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class LossPull(PullLine):
    """The cotangent of the output is the gradient of the loss, clipped where training clips it."""

    def evaluate(self, proof: Proof) -> Cotangent:
        """Return the bound of `losses`, from the fact of the output."""
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
    """The rules of the steps that read a value bound its cotangent, from those of their outputs.

    Hypotheses (checked): the value is not the output, which the loss reads besides all steps.
    Earlier lines may bound the share of one reader, or the sum of all shares, by a run or a form.
    The smallest of these bounds holds.
    """

    def evaluate(self, proof: Proof) -> Cotangent:
        """Return the cotangent that `received` finds."""
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
    """Return the cotangent of a value, from those of the outputs of its readers.

    but: outputs of readers whose shares are left out.
    Proof: the chain rule. The cotangent of a value is the sum of shares, one for each step that
    reads it: the transposed Jacobian times the cotangent of the output of the step. The rules bound
    all generalised Jacobians. The shares of several `Move`s that read different entries are
    perpendicular, as each is 0 where another is not. A value without readers has cotangent 0. An
    earlier line may bound the share of a step that reads the value once. For tokens see
    `with_tokens`, for shares that come from inputs of one `Concat` `put_together`.
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
            tokens, joined = rule.tokens_pulled(index, above), rule.joined_pulled(index, above)
            share = replace(rule.pulled(index, above), tokens=tokens, joined=joined)
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
    if len(shares) > 1 and all(share.joined for share in shares):
        from lipcert.core.rules.concat import put_together  # noqa: PLC0415  for such alone

        moved = apart and all(isinstance(step.op, Move) for step in readers)
        found = put_together(found, shares, own.cotangents, moved)
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

    Proof: the gradient is the sum of the gradients through each use of the tensor, and the rule of
    the step bounds each of them. No rule bounds the gradient of a tensor that enters a step as a
    plain number.
    """

    about: ClassVar[str] = "tensor"
    tensor: str

    def evaluate(self, proof: Proof) -> float:
        """Sum the bounds of all uses, each from the facts below it and the cotangent above it."""
        if self.tensor in proof.program.untracked:
            raise NotProved("no rule bounds the gradient of a plain number")
        found = 0.0
        for step in proof.users.get(self.tensor, ()):
            spend()
            for name, share in proof.shares(step):
                found = add_up(found, share) if name == self.tensor else found
        return found

    def keep(self, proof: Proof, _: float) -> None:
        """Keep the gradient for claims about parameters."""
        proof.gradients[self.tensor] = self.stated
