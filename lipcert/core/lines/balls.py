"""ball/input and fact/ball: values near that of one example."""

import math
from abc import abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, Literal

from lipcert.core.codec import Bound
from lipcert.core.forms.centred import Ball, enclosing_ball, fact_around, is_allowed
from lipcert.core.interval import Interval
from lipcert.core.line import Line, NotProved
from lipcert.core.lines.chains import COTANGENTS, Chain
from lipcert.core.lines.proof import Proof
from lipcert.core.lines.steps import FactLine
from lipcert.core.rules.facts import Fact

_LARGEST_POINTS = 1 << 20


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class InputBall(Line[Ball]):
    """‖x − c‖₂ ≤ bound for every admissible input x, around an input c that is admissible itself.

    shares: one number of `forms.centred.enclosing_ball`, or one for each of several inputs, whose
    balls stand side by side; any from 0 to 1 is as good a proof.
    """

    rule: Literal["ball/input"] = "ball/input"
    stage: ClassVar[int] = 4
    shares: tuple[Bound, ...]

    @property
    def subject(self) -> str:
        """The input of the network."""
        return "the input"

    def evaluate(self, proof: Proof) -> Ball:
        """Hypotheses: the centre satisfies all that is assumed, of the whole and of each input."""
        program, known = proof.program, proof.known
        shape = program.shapes[program.input]
        if math.prod(shape) > _LARGEST_POINTS:
            raise NotProved("the input is too large for a centre")
        if len(self.shares) == 1:
            ball = enclosing_ball(known[program.input], shape, Fraction(self.shares[0]))
        elif program.parts and len(self.shares) == len(program.parts):
            from lipcert.core.lines.several_inputs import ball_of_several  # noqa: PLC0415

            ball = ball_of_several(program, known, self.shares)
        else:
            raise NotProved("it has neither one share nor one for each input")
        if ball is None or not is_allowed(ball.centre, program, known):
            raise NotProved("its centre is not known to be an admissible input")
        return ball

    def least(self, found: Ball) -> float:
        """The radius of the ball."""
        return found.radius

    def keep(self, proof: Proof, found: Ball) -> None:
        """By the number of the line."""
        start = proof.program.input
        proof.balls[proof.number] = {start: found.point()}
        proof.radii[proof.number, start] = self.stated


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class NearFact(FactLine):
    """Of f(x) near a value that is known, by a form.

    level: λ of `forms.centred.reach`, which is not trusted. Without it the norm is that of the
    known value and what the norm of the form adds.
    Proof: `forms.centred.fact_around`.
    """

    form: int
    level: Bound | None = None

    def evaluate(self, proof: Proof) -> Fact:
        """By the form, around that value."""
        chain = of_values(proof, self.form)
        if chain.stop != self.value:
            raise NotProved(f"the form ends at {chain.stop}")
        value, radius = self.middle(proof, chain)
        return fact_around(value, proof.program.shapes[chain.stop], chain.form, radius, self.level)

    @abstractmethod
    def middle(self, proof: Proof, chain: Chain) -> tuple[Interval, float]:
        """The known value, and how far the starts of the form are from each other."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class BallFact(NearFact):
    """Of f(x) near f(c), of a ball and a form that begins where its radius is known.

    Proof: the example in the middle is one of those that the facts are about, and so are the slopes
    of the form: facts only grow tighter after its line.
    """

    rule: Literal["fact/ball"] = "fact/ball"
    ball: int

    def middle(self, proof: Proof, chain: Chain) -> tuple[Interval, float]:
        """The image of the centre."""
        radius = proof.radii[self.ball, chain.start]
        return proof.carried(proof.balls[self.ball], chain.steps)[chain.stop].box, radius


def of_values(proof: Proof, number: int) -> Chain:
    """The chain of a line; NotProved for one of cotangents."""
    chain = proof.forms[number]
    if chain.use == COTANGENTS:
        raise NotProved("the form is one of cotangents")
    return chain
