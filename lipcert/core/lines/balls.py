"""ball/input and fact/ball: every value lies near the value of one example."""

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

    shares: the number of `forms.centred.enclosing_ball`, or one for each of several inputs, whose
    balls stand side by side. Every number from 0 to 1 proves a ball.
    """

    rule: Literal["ball/input"] = "ball/input"
    stage: ClassVar[int] = 4
    shares: tuple[Bound, ...]

    @property
    def subject(self) -> str:
        """The input of the network."""
        return "the input"

    def evaluate(self, proof: Proof) -> Ball:
        """Return the ball; its centre has to satisfy all assumptions on the inputs."""
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
        """Keep the centre and the radius under the number of the line."""
        start = proof.program.input
        proof.balls[proof.number] = {start: found.point()}
        proof.radii[proof.number, start] = self.stated


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class NearFact(FactLine):
    """A form bounds the distance of f(x) from a known value.

    level: the λ of `forms.centred.reach`, which is not trusted. Without it, the norm of f(x) is at
    most that of the known value plus the norm of the form times the radius.
    Proof: `forms.centred.fact_around`.
    """

    form: int
    level: Bound | None = None

    def evaluate(self, proof: Proof) -> Fact:
        """Return the fact that the form proves around the known value."""
        chain = of_values(proof, self.form)
        if chain.stop != self.value:
            raise NotProved(f"the form ends at {chain.stop}")
        value, radius = self.middle(proof, chain)
        return fact_around(value, proof.program.shapes[chain.stop], chain.form, radius, self.level)

    @abstractmethod
    def middle(self, proof: Proof, chain: Chain) -> tuple[Interval, float]:
        """Return the known value, and the radius at the start of the form."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class BallFact(NearFact):
    """f(x) lies near f(c), for a ball around c and a form that starts where its radius is known.

    Proof: facts hold for the example in the middle, too, and so do the slopes of the form, because
    facts only become tighter after its line.
    """

    rule: Literal["fact/ball"] = "fact/ball"
    ball: int

    def middle(self, proof: Proof, chain: Chain) -> tuple[Interval, float]:
        """Return the image of the centre, and the radius."""
        radius = proof.radii[self.ball, chain.start]
        return proof.carried(proof.balls[self.ball], chain.steps)[chain.stop].box, radius


def of_values(proof: Proof, number: int) -> Chain:
    """Return the chain of a line; raise NotProved if it is one of cotangents."""
    chain = proof.forms[number]
    if chain.use == COTANGENTS:
        raise NotProved("the form is one of cotangents")
    return chain
