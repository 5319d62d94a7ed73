"""form/chain and pull/form: a quadratic form bounds every Jacobian of the steps between two values,
and the cotangent that these steps pass down."""

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, Literal, TypeAlias, cast

from lipcert.core.arithmetic import multiply_up
from lipcert.core.codec import Bound, member
from lipcert.core.coverage import tensors_read
from lipcert.core.forms.chain import Form, chain_form
from lipcert.core.interval import Interval, hull
from lipcert.core.line import Line, NotProved
from lipcert.core.lines.proof import LOSS, Proof, Seed
from lipcert.core.paths import is_only_way, reads_of, steps_between, steps_on_ways
from lipcert.core.program import Program, Step
from lipcert.core.rules.base import Entrywise, Weights, rule_at
from lipcert.core.rules.facts import Fact

Use: TypeAlias = Literal["values", "chords", "cotangents"]
VALUES: Final = "values"
CHORDS: Final = "chords"
COTANGENTS: Final = "cotangents"
"""Uses of a chain: the distance of a value from that of another example, its distance from the
image of 0, and the cotangent at the lower end."""


@dataclass(frozen=True, slots=True, eq=False)
class Chain:
    """A proved form, its steps, and the slopes that it allows them."""

    start: str
    stop: str
    steps: tuple[Step, ...]
    slopes: Mapping[str, Interval]
    form: Form
    use: str


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ChainForm(Line[Chain]):
    """JJᵀ ≤ P for the Jacobians J of all steps from one value up to another, by `forms.chain`.

    use: "values" takes the steps from which the upper value is computed, with the slopes that the
    facts allow; "chords" takes the same steps with the slopes of chords from the image of 0;
    "cotangents" takes the steps on the ways between both values. multipliers: from below, one list
    for each step that acts entry by entry, and for each round of a step that picks or orders
    entries; a list has one number for each entry. They are not trusted: P is computed from them,
    and proved. bound ≥ ‖J‖ for all these J, where a later line uses it.
    """

    about: ClassVar[str] = "stop"
    use: Use
    start: str
    stop: str
    multipliers: tuple[tuple[Bound, ...], ...]

    def evaluate(self, proof: Proof) -> Chain:
        """Prove the form for the operands of the file."""
        shapes, proves = proof.program.shapes, proof.engine.definite
        steps = chain_steps(proof.program, self.use, self.start, self.stop, proof.free)
        if steps is None:
            raise NotProved("no chain of fixed steps leads from its start to its stop")
        slopes = slopes_at(proof, self.use, self.start, steps)
        form = chain_form(self.start, steps, shapes, slopes, self.multipliers, proof=proves)
        if self.bound is not None and not form.has_norm(self.bound):
            raise NotProved(f"its form from {self.start} to {self.stop} proves no such norm")
        return Chain(self.start, self.stop, steps, slopes, form, self.use)

    def least(self, _: Chain) -> float:
        """Return the bound itself, which `evaluate` has proved."""
        return 0.0 if self.bound is None else self.bound

    def keep(self, proof: Proof, found: Chain) -> None:
        """Keep the chain under the number of the line."""
        form = replace(found.form, norm=self.stated)
        proof.forms[proof.number] = replace(found, form=form)


def slopes_at(proof: Proof, use: str, start: str, steps: Sequence[Step]) -> dict[str, Interval]:
    """Return the slopes that facts allow the steps of a chain, for its use."""
    points = proof.images(steps, start) if use == CHORDS else None
    return slopes_between(steps, proof.facts, points)


def chain_steps(
    program: Program, use: str, start: str, stop: str, free: frozenset[str]
) -> tuple[Step, ...] | None:
    """Return the steps of a chain; None if there are none, or if training changes their operands.

    A value changes with all that it depends on; a cotangent passes through the steps between.
    """
    if start not in program.shapes or stop not in program.shapes:
        return None
    between = steps_on_ways if use == COTANGENTS else steps_between
    steps = between(program, start, stop)
    return None if steps is None or tensors_read(steps) & free else steps


def slopes_between(
    steps: Sequence[Step], facts: Mapping[str, Fact], points: Mapping[str, Fact] | None = None
) -> dict[str, Interval]:
    """Return the slopes of each step that acts entry by entry, wherever facts hold.

    points: if they are given, the slopes are those of chords from these points, which need not
    satisfy the facts.
    Proof: both ends of such a chord lie in the hull of two intervals, entry by entry, and the slope
    of a chord is a derivative between its ends, or a mean of derivatives.
    """
    found: dict[str, Interval] = {}
    for step in steps:
        if not step.op.is_function:
            continue
        (name,) = step.inputs
        below = facts[name]
        if points is not None:
            below = replace(below, box=hull(below.box, points[name].box))
        rule = rule_at({name: step.shape}, step, {name: below}, Weights({}))
        found[step.output] = cast("Entrywise[Any]", rule).slopes()
    return found


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ShareLine(Line[float]):
    """‖share of the cotangent of a value‖₂ ≤ bound: the share of one reader, or of all of them."""

    of: Seed = LOSS

    @abstractmethod
    def entry(self, proof: Proof) -> tuple[str, str | None]:
        """Return the value and the reader whose share is bounded; None stands for all readers."""

    def keep(self, proof: Proof, _: float) -> None:
        """Keep the smallest bound of the share for a line about the value."""
        edges, entry = proof.passes[self.of].edges, self.entry(proof)
        edges[entry] = min(edges.get(entry, math.inf), self.stated)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class FormPull(ShareLine):
    """A form bounds the share of the steps of its chain, from the cotangent at the upper end.

    Hypotheses (checked): cotangents reach the values between these steps through these steps alone;
    either a single step of the chain reads the start, once, or all readers of the start belong to
    the chain. Other inputs of the steps are held fixed and do not matter.
    by: "norm" multiplies the norm of the form by that of the cotangent; "hull" takes the largest
    ‖Jᵀg‖ over the hull of the cotangent. others: forms of the same steps; the smallest of all forms
    counts at each vertex.
    Proof: ‖Jᵀg‖² ≤ gᵀPg.
    """

    form: int
    by: Literal["norm", "hull"]
    others: tuple[int, ...] = field(default=(), metadata=member(optional=True))

    @property
    def subject(self) -> str:
        """The number of the line of the form."""
        return f"the chain of line {self.form}"

    def evaluate(self, proof: Proof) -> float:
        """Return the bound of the form, for all cotangents that are possible at the upper end."""
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
        """Return the start of the chain, and the step that alone reads it, if there is one."""
        chain = proof.forms[self.form]
        return chain.start, first_reader(proof.program, chain.steps, chain.start)


def first_reader(program: Program, steps: Sequence[Step], start: str) -> str | None:
    """Return the step of a chain that alone reads its start; None if several are all its readers.

    Raise NotProved if other steps read the start, too, or a value between the steps.
    """
    if not is_only_way(program, steps):
        raise NotProved("cotangents reach the chain in other ways")
    reads = reads_of(steps, start)
    if reads.total() == 1:
        return next(iter(reads))
    if start == program.output or reads != reads_of(program.steps, start):
        raise NotProved("the value at the start of the chain has other readers")
    return None
