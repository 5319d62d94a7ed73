"""ball/input and fact/ball: every value lies near the value of one example.

f(x) is near f(c), where c is an input in the middle that is allowed itself. Of several inputs, c is
allowed where each of them is, and all of them together.
"""

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np

from lipcert.core.arithmetic import add_up, multiply_up, sqrt_up
from lipcert.core.codec import Bound
from lipcert.core.forms.chain import Form, below_level
from lipcert.core.interval import Array, Interval, enclosed, exact, norm_up, up
from lipcert.core.line import Line, NotProved
from lipcert.core.lines.chains import COTANGENTS, Chain
from lipcert.core.lines.proof import Proof
from lipcert.core.lines.steps import FactLine
from lipcert.core.norms.claim import MAX_SIZE, is_semidefinite, room_for
from lipcert.core.program import Program, Shape
from lipcert.core.rules.facts import Fact

LARGEST_SQUARED: Final = 1e100
"""far below numbers whose squares overflow"""

_LARGEST_POINTS = 1 << 20


@dataclass(frozen=True, slots=True, eq=False)
class Ball:
    """A ball around one admissible value that contains all admissible values."""

    centre: Array
    radius: float

    def point(self) -> Fact:
        """Return a fact of the centre alone."""
        return Fact.of(self.centre.shape, norm_up(self.centre), exact(self.centre))


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class InputBall(Line[Ball]):
    """‖x − c‖₂ ≤ bound for every admissible input x, around an input c that is admissible itself.

    shares: the number of `enclosing_ball`, or one for each of several inputs, whose
    balls stand side by side. Every number from 0 to 1 proves a ball.
    """

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
        if not is_allowed(ball.centre, program, known):
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

    level: the λ of `reach`, which is not trusted. Without it, the norm of f(x) is at
    most that of the known value plus the norm of the form times the radius.
    Proof: `fact_around`.
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


def is_allowed(centre: Array, program: Program, known: Mapping[str, Fact]) -> bool:
    """Whether an input satisfies all assumptions, on itself and on each of several inputs in it."""
    parts = zip(program.parts, program.inputs_of(centre), strict=True) if program.parts else ()
    return _satisfies(centre, known[program.input]) and all(
        _satisfies(own, known[part.name]) for part, own in parts
    )


def enclosing_ball(fact: Fact, shape: Shape, share: Fraction) -> Ball:
    """The ball around (1 − share)·middle of the box, for 0 ≤ share ≤ 1.

    fact: of an input, its norm and its box. Raise NotProved where squares might overflow. Whether
    the centre satisfies the fact itself, `is_allowed` says.
    Proof: for 0 ≤ t ≤ 1 and ‖x‖ ≤ R, ‖x − c‖² ≤ tR² + Σ((x_i − c_i)² − t·x_i²), and each term is
    convex in x_i, hence largest at an end of the box.
    Attained: for cubes [0, a]^n, and for t = 0 or 1.
    """
    box = fact.box.broadcast(shape)
    if not (0 <= share <= 1 and fact.norm <= LARGEST_SQUARED):
        raise NotProved("no ball around all inputs is known")
    centre = np.clip((1.0 - float(share)) * (0.5 * box.lo + 0.5 * box.hi), box.lo, box.hi)
    rows = [(end - exact(centre), end) for end in (exact(box.lo), exact(box.hi))]
    ends = [far * far - enclosed(share) * (end * end) for far, end in rows]
    worst = exact(np.maximum(ends[0].hi, ends[1].hi).reshape(-1)).sum((0,))
    square = Fraction(float(worst.hi[0])) + share * Fraction(fact.norm) ** 2
    return Ball(centre, sqrt_up(max(square, Fraction(0))))


def fact_around(
    value: Interval, shape: Shape, form: Form, radius: float, level: float | None
) -> Fact:
    """Return a fact of f(x) for ‖x − c‖ ≤ radius.

    value: f(c), of this shape. form: of the steps from x to f(x), with slopes that hold for all
    inputs allowed, c among them. level: of `reach`; None: ‖f(c)‖ + ‖J‖·radius bounds the norm.
    Proof: f(x) − f(c) = J(x − c), where J is made of the matrices of the steps and of slopes of
    chords; its form bounds each entry by `swing`, and the norm by `reach`.
    """
    flat = value.broadcast(shape)
    rows = Interval(flat.lo.reshape(form.runs, -1), flat.hi.reshape(form.runs, -1))
    swing = form.swing(radius)
    box = rows + Interval(-swing, swing)
    if level is None:
        norm = add_up(multiply_up(form.norm, radius), norm_up(rows.magnitude()))
    else:
        norm = reach(form, rows, radius, level)
    return Fact.of(shape, norm, Interval(box.lo.reshape(shape), box.hi.reshape(shape)))


def reach(form: Form, value: Interval, radius: float, level: float) -> float:
    """≥ ‖v + Jd‖ for every v in `value` [runs, size] and ‖d‖ ≤ radius over all runs; inf: unproved.

    Proof: for λ > λ_max(Q), maximising over d,
        ‖v + Jd‖² ≤ λ‖d‖² + λ·vᵀ(λI − JJᵀ)⁻¹v ≤ λ‖d‖² + λ·vᵀ(λI − Q)⁻¹v,
    and the last product is at most c if [[λI − Q, v], [vᵀ, c]] is positive semidefinite (so is
    then λI − Q, and Q may be replaced by limits from below). The squares of the runs add, and
    one matrix with a border row for each v serves all: c is then a diagonal entry of its
    corner. λ = level is not trusted, nor is the corner; the distance of v to its middle is added.
    Attained: for a single matrix, up to the choice of λ.
    """
    middle = 0.5 * value.lo + 0.5 * value.hi
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        corner = _corner(form, level, middle) if math.isfinite(radius) else None
    if corner is None:
        return math.inf
    rest = norm_up(np.maximum(up(value.hi - middle), up(middle - value.lo)))
    return add_up(sqrt_up(Fraction(level) * (Fraction(radius) ** 2 + corner)), rest)


def _corner(form: Form, level: float, offsets: Array) -> Fraction | None:
    """≥ Σ vᵀ(λI − Q)⁻¹v over the rows v; None: unproved."""
    size = len(form.matrix)
    whole = size + len(offsets)
    gap, error = below_level(form.matrix, level)
    if whole > MAX_SIZE or not (gap.diagonal() > 0.0).all():
        return None
    room = 8.0 * float(room_for(whole))
    try:
        solved = np.linalg.solve(gap - room * np.diag(gap.diagonal()), offsets.T)
    except np.linalg.LinAlgError:
        return None
    corner = offsets @ solved
    corner = 0.5 * corner + 0.5 * corner.T
    more = room * corner.diagonal() + 2.0**-60 * np.max(corner.diagonal(), initial=0.0)
    corner += np.diag(more)
    matrix = np.block([[gap, offsets.T], [offsets, corner]])
    if not is_semidefinite(matrix, np.pad(error, (0, len(offsets))), form.proof):
        return None
    return sum((Fraction(c) for c in corner.diagonal().tolist()), Fraction(0))


def _satisfies(centre: Array, fact: Fact) -> bool:
    """Whether a point has the norm and lies in the box that the premises state."""
    box = fact.box.broadcast(centre.shape)
    inside = bool((centre >= box.lo).all() and (centre <= box.hi).all())
    return inside and norm_up(centre) <= fact.norm < np.inf
