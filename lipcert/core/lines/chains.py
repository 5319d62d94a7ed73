"""form/chain and pull/form: a quadratic form that bounds every Jacobian of the steps between two
values, and what the lower one receives through them; and every such share of a cotangent."""

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Final, Literal, TypeAlias

from lipcert.core.arithmetic import multiply_up
from lipcert.core.codec import Bound, member
from lipcert.core.coverage import tensors_read
from lipcert.core.forms.chain import Form, chain_form
from lipcert.core.interval import Interval, hull
from lipcert.core.line import Line, NotProved
from lipcert.core.lines.proof import LOSS, Proof, Seed
from lipcert.core.paths import is_only_way, reads_of, steps_between, steps_on_ways
from lipcert.core.program import Program, Step
from lipcert.core.rules.base import Weights
from lipcert.core.rules.facts import Fact
from lipcert.core.rules.steps import rule_at

Use: TypeAlias = Literal["values", "chords", "cotangents"]
VALUES: Final = "values"
CHORDS: Final = "chords"
COTANGENTS: Final = "cotangents"
"""what a chain is used for: how far a value is from that of another example, from the image of 0,
or what a cotangent becomes on its way down"""


@dataclass(frozen=True, slots=True, eq=False)
class Chain:
    """A form that is proved, with the steps it is of and the slopes it allows them."""

    start: str
    stop: str
    steps: tuple[Step, ...]
    slopes: Mapping[str, Interval]
    form: Form
    use: str


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ChainForm(Line[Chain]):
    """JJᵀ ≤ P for the Jacobians J of all steps from one value up to another, by `forms.chain`.

    use: "values" for the steps that the upper value needs besides the lower one, with the slopes
    that the facts allow; "chords" for the same steps with slopes of chords from the image of 0;
    "cotangents" for the steps on the ways between the two. multipliers: one list per step that acts
    entry by entry, and per round of a step that picks or orders entries, from below; one number per
    entry. They are not trusted: P follows from them, and is proved. bound ≥ ‖J‖ for all of them,
    for lines that use it.
    """

    rule: Literal["form/chain"] = "form/chain"
    stage: ClassVar[int] = 4
    about: ClassVar[str] = "stop"
    use: Use
    start: str
    stop: str
    multipliers: tuple[tuple[Bound, ...], ...]

    def evaluate(self, proof: Proof) -> Chain:
        """The form, with the operands of the file."""
        program = proof.program
        steps = chain_steps(program, self.use, self.start, self.stop, proof.free)
        if steps is None:
            raise NotProved("no chain of fixed steps leads from its start to its stop")
        slopes = slopes_at(proof, self.use, self.start, steps)
        form = None
        if slopes is not None:
            shapes, numbers = program.shapes, self.multipliers
            proves = proof.engine.definite
            form = chain_form(self.start, steps, shapes, slopes, numbers, proof=proves)
        if slopes is None or form is None:
            raise NotProved(f"its multipliers prove no form from {self.start} to {self.stop}")
        if self.bound is not None and not form.has_norm(self.bound):
            raise NotProved(f"its form from {self.start} to {self.stop} proves no such norm")
        return Chain(self.start, self.stop, steps, slopes, form, self.use)

    def least(self, _: Chain) -> float:
        """The bound itself, which is proved."""
        return 0.0 if self.bound is None else self.bound

    def keep(self, proof: Proof, found: Chain) -> None:
        """By the number of the line."""
        form = replace(found.form, norm=self.stated)
        proof.forms[proof.number] = replace(found, form=form)


def slopes_at(
    proof: Proof, use: str, start: str, steps: Sequence[Step]
) -> dict[str, Interval] | None:
    """The slopes of the steps of a chain that facts allow, for its use."""
    points = proof.images(steps, start) if use == CHORDS else None
    return slopes_between(steps, proof.facts, points)


def chain_steps(
    program: Program, use: str, start: str, stop: str, free: frozenset[str]
) -> tuple[Step, ...] | None:
    """The steps of a chain, all of whose operands are those of the file; None for none.

    Values change with all that they depend on, cotangents pass through what lies between.
    """
    if start not in program.shapes or stop not in program.shapes:
        return None
    between = steps_on_ways if use == COTANGENTS else steps_between
    steps = between(program, start, stop)
    return None if steps is None or tensors_read(steps) & free else steps


def slopes_between(
    steps: Sequence[Step], facts: Mapping[str, Fact], points: Mapping[str, Fact] | None = None
) -> dict[str, Interval] | None:
    """The slopes of each step that acts entry by entry, wherever facts hold.

    points: with them, the slopes of chords from a point, which need not be one of these values.
    Proof: the ends of such a chord lie in the hull of both intervals, entry by entry, and the
    slope of a chord is one of the derivatives between its ends, or a mean of them.
    """
    found: dict[str, Interval] = {}
    for step in steps:
        if not step.op.is_function:
            continue
        (name,) = step.inputs
        below = facts[name]
        if points is not None:
            below = replace(below, box=hull(below.box, points[name].box))
        known = rule_at({name: step.shape}, step, {name: below}, Weights({})).slopes()
        if known is None:
            return None
        found[step.output] = known
    return found


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
    ‖Jᵀg‖ over the hull of the cotangent, by whichever of the form and `others`, forms of the same
    steps, says least at each vertex.
    Proof: ‖Jᵀg‖² ≤ gᵀPg.
    """

    rule: Literal["pull/form"] = "pull/form"
    form: int
    by: Literal["norm", "hull"]
    others: tuple[int, ...] = field(default=(), metadata=member(optional=True))

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
        ends = chain.use, chain.start, chain.stop
        above = proof.passes[self.of].cotangents[chain.stop]
        if self.by == "norm":
            return multiply_up(chain.form.norm, above.norm)
        if above.hull is None:
            raise NotProved("no hull of the cotangent is known")
        others = [proof.forms[number] for number in self.others]
        if any((other.use, other.start, other.stop) != ends for other in others):
            raise NotProved("the other forms are of other steps")
        return chain.form.over_hull(above.hull, *(other.form for other in others))

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
