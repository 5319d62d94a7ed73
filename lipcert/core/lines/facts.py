"""fact/input and fact/step: what the premises say of the input, and a rule of what it computes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal, final

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


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class InputFact(FactLine):
    """Of the input of the network, from the premises: its norm, or that of its box."""

    rule: Literal["fact/input"] = "fact/input"

    def evaluate(self, proof: Proof) -> Fact:
        """What `inputs.input_facts` says of it."""
        if self.value != proof.program.input:
            raise NotProved("it is not the input of the network")
        return proof.known[self.value]


@final
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
