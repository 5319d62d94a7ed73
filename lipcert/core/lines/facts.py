"""fact/input, fact/step and grad/tensor: what the premises say of the input, and what the rules of
steps say of what they compute, and of the gradients of their tensors."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from lipcert.core.arithmetic import add_up
from lipcert.core.budget import spend
from lipcert.core.coverage import rule_of
from lipcert.core.line import Line, NotProved
from lipcert.core.lines.proof import Proof
from lipcert.core.reader.records import shown
from lipcert.core.rules.facts import Fact
from lipcert.core.rules.steps import step_fact


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
