"""ball/form: how far a value is from that of the example in the middle, by a form."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, final

from lipcert.core.arithmetic import multiply_up
from lipcert.core.line import Line
from lipcert.core.lines.balls import of_values
from lipcert.core.lines.proof import Proof


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class MovedBall(Line[float]):
    """‖f(x) − f(c)‖₂ ≤ bound, of a ball and a form that begins where its radius is known.

    Hypotheses (checked): the form states its norm.
    Proof: f(x) − f(c) = J(x − c), for the J of a chord.
    """

    rule: Literal["ball/form"] = "ball/form"
    stage: ClassVar[int] = 4
    ball: int
    form: int

    @property
    def subject(self) -> str:
        """The ball, by its line."""
        return f"the ball of line {self.ball}"

    def evaluate(self, proof: Proof) -> float:
        """The norm of the form times the radius."""
        chain = of_values(proof, self.form)
        return multiply_up(chain.form.norm, proof.radii[self.ball, chain.start])

    def keep(self, proof: Proof, found: float) -> None:
        """The smallest radius that is known at the value."""
        del found
        chain, points = proof.forms[self.form], proof.balls[self.ball]
        proof.carried(points, chain.steps)
        known = proof.radii.get((self.ball, chain.stop), math.inf)
        proof.radii[self.ball, chain.stop] = min(known, self.stated)
