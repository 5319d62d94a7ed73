"""ball/form and fact/zero: a form bounds the distance of a value from that of the example in the
middle, or from the image of 0."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from lipcert.core.arithmetic import multiply_up
from lipcert.core.interval import Interval
from lipcert.core.line import Line, NotProved
from lipcert.core.lines.balls import LARGEST_SQUARED, NearFact, of_values
from lipcert.core.lines.chains import CHORDS, Chain, slopes_between
from lipcert.core.lines.proof import Proof


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class MovedBall(Line[float]):
    """‖f(x) − f(c)‖₂ ≤ bound, for a ball around c and a form that starts where its radius is known.

    Hypotheses (checked): the form states its norm.
    Proof: f(x) − f(c) = J(x − c), for the Jacobian J of a chord.
    """

    ball: int
    form: int

    @property
    def subject(self) -> str:
        """The number of the line of the ball."""
        return f"the ball of line {self.ball}"

    def evaluate(self, proof: Proof) -> float:
        """Return the norm of the form times the radius."""
        chain = of_values(proof, self.form)
        return multiply_up(chain.form.norm, proof.radii[self.ball, chain.start])

    def keep(self, proof: Proof, _: float) -> None:
        """Keep the smallest radius that is known at the value."""
        chain, points = proof.forms[self.form], proof.balls[self.ball]
        proof.carried(points, chain.steps)
        known = proof.radii.get((self.ball, chain.stop), math.inf)
        proof.radii[self.ball, chain.stop] = min(known, self.stated)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ZeroFact(NearFact):
    """f(x) lies near f(0); the value at the start of the form need not be able to be 0.

    Hypotheses (checked): the form is proved for the slopes of chords from 0.
    """

    def middle(self, proof: Proof, chain: Chain) -> tuple[Interval, float]:
        """Return the image of 0, and the norm of the value at the start."""
        images, radius = proof.images(chain.steps, chain.start), proof.facts[chain.start].norm
        if chain.use != CHORDS and not is_proved_for(
            chain, slopes_between(chain.steps, proof.facts, images)
        ):
            raise NotProved("the form is not proved for the slopes of chords from 0")
        if not radius <= LARGEST_SQUARED:
            raise NotProved("the value at the start of the form is not bounded")
        return images[chain.stop].box, radius


def is_proved_for(chain: Chain, slopes: Mapping[str, Interval]) -> bool:
    """Whether the form of a chain is proved for all these slopes of its steps."""
    return all(
        np.all(chain.slopes[name].lo <= found.lo) and np.all(found.hi <= chain.slopes[name].hi)
        for name, found in slopes.items()
    )
