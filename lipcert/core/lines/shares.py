"""pull/form: what a value receives through the steps of a chain, and every such share of it."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from lipcert.core.arithmetic import multiply_up
from lipcert.core.line import Line, NotProved
from lipcert.core.lines.chains import COTANGENTS
from lipcert.core.lines.proof import LOSS, Proof, Seed
from lipcert.core.paths import is_only_way, reads_of
from lipcert.core.program import Program, Step


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ShareLine(Line[float]):
    """‖what a value receives‖₂ ≤ bound, through one of its readers or through all of them."""

    stage: ClassVar[int] = 5
    of: Seed = LOSS

    @abstractmethod
    def entry(self, proof: Proof) -> tuple[str, str | None]:
        """The value, and the only reader through which it receives this; None: all are meant."""

    def keep(self, proof: Proof, _: float) -> None:
        """For a line about the value."""
        edges, entry = proof.passes[self.of].edges, self.entry(proof)
        edges[entry] = min(edges.get(entry, math.inf), self.stated)


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
