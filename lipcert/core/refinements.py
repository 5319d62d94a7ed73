"""Refinements: what runs of affine steps and chains of layers say besides the rule of each step.

Input: a program, proved norms of runs, multipliers of chains. Output: `Witnessed`, which the passes
query. A run is bounded by its norm, a chain by a quadratic form that is proved here from its
multipliers and the slopes that the facts allow.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Protocol, final

import numpy as np

from lipcert.core.arithmetic import add_up, multiply_up
from lipcert.core.certificate import ChainWitness
from lipcert.core.coverage import tensors_read
from lipcert.core.interval import Array, Interval, clip, exact, hull
from lipcert.core.norm_evidence import Evidence
from lipcert.core.paths import is_only_way, reads_of, steps_between, steps_on_ways
from lipcert.core.program import Activation, Add, Conv, Dense, PRelu, Program, Step
from lipcert.core.rules.facts import Cotangent, Fact
from lipcert.core.rules.passes import Refinement, step_fact
from lipcert.core.rules.table import rule_class
from lipcert.core.rules.weights import Point, Weights

if TYPE_CHECKING:
    from lipcert.core.forms.form import Form

VALUES: Final = "values"
RAISED: Final = "raised"
COTANGENTS: Final = "cotangents"
"""what a chain is used for"""
USES: Final = frozenset({VALUES, RAISED, COTANGENTS})


class Proposals(Protocol):
    """Chains with multipliers, none of which is trusted."""

    def of_value(
        self, value: str, use: str, found: Fact, facts: Mapping[str, Fact]
    ) -> Sequence[ChainWitness]:
        """That may say more of a value than what was found, from the facts of what lies below."""
        ...

    def of_cotangents(self, facts: Mapping[str, Fact]) -> Sequence[ChainWitness]:
        """That may say more of cotangents."""
        ...


@final
class Listed:
    """The chains of a certificate."""

    def __init__(self, chains: Sequence[ChainWitness]) -> None:
        self._values: dict[tuple[str, str], list[ChainWitness]] = {}
        self._cotangents = [chain for chain in chains if chain.use == COTANGENTS]
        for chain in chains:
            if chain.use != COTANGENTS:
                self._values.setdefault((chain.stop, chain.use), []).append(chain)

    def of_value(
        self, value: str, use: str, found: Fact, facts: Mapping[str, Fact]
    ) -> Sequence[ChainWitness]:
        """The listed chains of this use that end at the value."""
        del found, facts
        return self._values.get((value, use), ())

    def of_cotangents(self, facts: Mapping[str, Fact]) -> Sequence[ChainWitness]:
        """All listed chains that bound cotangents."""
        del facts
        return self._cotangents


@final
@dataclass(frozen=True, slots=True, eq=False)
class Runs:
    """Runs of affine steps by where they end, and what they pass down.

    shares: from a value through its reader, the end and the norm; sums: the same for a value all
    of whose readers belong to the run.
    """

    ends: Mapping[str, tuple[tuple[Step, ...], float]]
    shares: Mapping[tuple[str, str], tuple[str, float]]
    sums: Mapping[str, tuple[str, float]]

    @classmethod
    def of(cls, program: Program, evidence: Evidence) -> Runs:
        """Of proved norms.

        Proof: a cotangent that enters at the end of x ↦ Ax + c reaches its input as Aᵀ times it, if
        nothing else reads what lies between; with a sum in the run, all that the input receives
        comes that way, if nothing but the first step and the sum reads it.
        """
        steps = {step.output: step for step in program.steps}
        readers = Counter(name for step in program.steps for name in step.inputs)
        readers[program.output] += 1
        ends: dict[str, tuple[tuple[Step, ...], float]] = {}
        shares: dict[tuple[str, str], tuple[str, float]] = {}
        sums: dict[str, tuple[str, float]] = {}
        for run in evidence.runs:
            chain = tuple(steps[value] for value in run.values)
            start, end = chain[0].inputs[0], (run.values[-1], run.norm.bound)
            if run.values[-1] not in ends or ends[run.values[-1]][1] > run.norm.bound:
                ends[run.values[-1]] = (chain, run.norm.bound)
            if any(readers[value] != 1 for value in run.values[:-1]):
                continue
            if not any(isinstance(step.op, Add) for step in chain):
                shares[start, run.values[0]] = end
            elif readers[start] == 2:
                sums[start] = end
        return cls(ends, shares, sums)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Chains:
    """Proved forms, each with the value where its chain ends.

    shares: of what a value receives from one reader; sums: from all of them together. used: the
    chains that prove something.
    """

    shares: Mapping[tuple[str, str], Sequence[tuple[str, Form]]] = field(default_factory=dict)
    sums: Mapping[str, Sequence[tuple[str, Form]]] = field(default_factory=dict)
    used: tuple[ChainWitness, ...] = ()

    @classmethod
    def of(
        cls,
        program: Program,
        facts: Mapping[str, Fact],
        evidence: Evidence,
        witnesses: Sequence[ChainWitness],
    ) -> Chains:
        """Of all chains through which alone the cotangents pass from their ends to their starts.

        What else their steps read does not matter: it is held as it is.
        """
        shares: dict[tuple[str, str], list[tuple[str, Form]]] = {}
        sums: dict[str, list[tuple[str, Form]]] = {}
        used = []
        for witness in witnesses:
            steps = chain_steps(program, witness, evidence.free)
            if steps is None or not is_only_way(program, steps):
                continue
            reads = reads_of(steps, witness.start)
            is_sum = witness.start != program.output
            is_sum = is_sum and reads == reads_of(program.steps, witness.start)
            known = slopes_between(steps, facts)
            if known is None or not (is_sum or reads.total() == 1):
                continue
            form = _form(program, steps, witness, known, evidence)
            if form is None:
                continue
            used.append(witness)
            if reads.total() == 1:
                (reader,) = reads
                shares.setdefault((witness.start, reader), []).append((witness.stop, form))
            else:
                sums.setdefault(witness.start, []).append((witness.stop, form))
        return cls(shares, sums, tuple(used))


@final
@dataclass(frozen=True, slots=True, eq=False)
class Zeros:
    """Facts of the values that steps compute where the one that they read is 0, each found once."""

    program: Program
    weights: Weights
    found: dict[str, dict[str, Fact]] = field(default_factory=dict)

    def images(self, steps: Sequence[Step], start: str) -> Mapping[str, Fact]:
        """Of all steps that their values need besides the one where they start."""
        if start not in self.found:
            shape = self.program.shapes[start]
            self.found[start] = {start: Fact.of(shape, 0.0, exact(np.zeros((1,) * len(shape))))}
        found = self.found[start]
        for step in steps:
            if step.output not in found:
                found[step.output] = step_fact(self.program, step, found, self.weights)
        return found


@final
@dataclass(frozen=True, slots=True, eq=False)
class Witnessed(Refinement):
    """All that is known besides the rules. centred: facts of values near that of one input."""

    program: Program
    weights: Weights
    runs: Runs
    centred: Centres
    makers: Mapping[str, Step]
    chains: Chains = field(default_factory=Chains)

    def fact(self, value: str, found: Fact, facts: Mapping[str, Fact]) -> Fact:
        """What chains, a run of affine steps, and a ReLU behind one say of a value."""
        shape = self.program.shapes[value]
        if value in self.runs.ends:
            found = found.meet(self._affine(*self.runs.ends[value], facts, clips=False), shape)
        step = self.makers[value]
        if is_relu(step):
            for steps, bound in self._affine_below(step.inputs[0]):
                found = found.meet(self._affine(steps, bound, facts, clips=True), shape)
        return self.centred.fact(value, found, facts)

    def _affine_below(self, value: str) -> Iterator[tuple[tuple[Step, ...], float]]:
        """Runs of affine steps that end at a value, with their norms."""
        if value in self.runs.ends:
            yield self.runs.ends[value]
        step = self.makers.get(value)
        if step is not None and isinstance(step.op, Dense | Conv):
            before = self.program.shapes[step.inputs[0]]
            yield (step,), self.weights.operator_norm(value, step.op, before, step.shape)

    def _affine(
        self,
        steps: tuple[Step, ...],
        bound: float,
        facts: Mapping[str, Fact],
        *,
        clips: bool,
    ) -> Fact:
        """Of Ax + c, where c is the value at 0, or of what a ReLU makes of it: ‖A‖·‖x‖ + ‖c⁺‖.

        Proof: entry by entry relu(u + c) ≤ relu(u) + relu(c), and no entry of these is negative;
        ‖relu(Ax)‖ ≤ ‖Ax‖. The same holds for a run of y, where A is a matrix of runs of x.
        Attained: A = I, c = x ≥ 0.
        """
        start, shape = steps[0].inputs[0], steps[-1].shape
        at_zero = self.centred.zeros.images(steps, start)[steps[-1].output]
        if clips:
            at_zero = Fact.of(shape, box=clip(at_zero.box, 0.0, math.inf))
        norm = add_up(multiply_up(bound, facts[start].norm), at_zero.norm)
        run = math.inf
        if len(steps) == 1 and isinstance(steps[0].op, Dense):
            run = add_up(multiply_up(bound, facts[start].row_norm), at_zero.row_norm)
        return Fact.of(shape, norm, row_norm=run)

    def edge_cotangent(self, value: str, reader: str, cotangents: Mapping[str, Cotangent]) -> float:
        """Through a run, its norm times the cotangent at its end; through a chain, by its form."""
        found = _pulled(self.runs.shares.get((value, reader)), cotangents)
        return min(found, _through(self.chains.shares.get((value, reader), ()), cotangents))

    def total_cotangent(self, value: str, cotangents: Mapping[str, Cotangent]) -> float:
        """Through a run that ends in a sum with the value itself, or through a chain."""
        found = _pulled(self.runs.sums.get(value), cotangents)
        return min(found, _through(self.chains.sums.get(value, ()), cotangents))


def chain_steps(
    program: Program, witness: ChainWitness, free: frozenset[str]
) -> tuple[Step, ...] | None:
    """The steps of a chain, all of whose operands are those of the file.

    Values change with all that they depend on, cotangents pass through what lies between.
    """
    if witness.start not in program.shapes or witness.stop not in program.shapes:
        return None
    found = steps_on_ways if witness.use == COTANGENTS else steps_between
    steps = found(program, witness.start, witness.stop)
    return None if steps is None or tensors_read(steps) & free else steps


def is_relu(step: Step) -> bool:
    """Whether it is max(x, 0), entry by entry."""
    return isinstance(step.op, Activation) and step.op.name == "relu"


def constants_of(zeros: Zeros, start: str, steps: Sequence[Step], runs: int) -> Array:
    """Upper limits of what steps make of 0, for every run."""
    end = steps[-1]
    box = zeros.images(steps, start)[end.output].box.broadcast(end.shape)
    return np.asarray(box.hi.reshape(runs, -1).max(axis=0))


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
        if not isinstance(step.op, Activation | PRelu):
            continue
        below = facts[step.inputs[0]]
        if points is not None:
            box = hull(below.box, points[step.inputs[0]].box)
            below = replace(below, box=box)
        known = rule_class(type(step.op))(
            op=step.op,
            inputs=(below,),
            shapes=(step.shape,),
            shape=step.shape,
            weights=Point({}),
            output=step.output,
        ).slopes()
        if known is None:
            return None
        found[step.output] = known
    return found


@final
@dataclass(slots=True)
class Centres:
    """Balls that hold every value of which a fact is known, carried along chains for values.

    Each ball of inputs has an allowed input in its middle, so that the value at this input is the
    middle of a ball too, of a radius that the forms of chains bound. A chain may also begin at a
    ball around 0, whether 0 is one of the values or not. known: what is assumed of the input, and
    of each of several.
    """

    program: Program
    zeros: Zeros
    evidence: Evidence
    proposals: Proposals
    known: Mapping[str, Fact]
    balls: list[tuple[dict[str, Fact], dict[str, float]]] | None = None
    used: list[ChainWitness] = field(default_factory=list)

    def fact(self, value: str, found: Fact, facts: Mapping[str, Fact]) -> Fact:
        """What the chains that end here say besides."""
        for use, said in ((RAISED, self._raised), (VALUES, self._near)):
            for witness in self.proposals.of_value(value, use, found, facts):
                steps = chain_steps(self.program, witness, self.evidence.free)
                if steps is None:
                    continue
                before = found
                for more in said(witness, steps, facts):
                    found = found.meet(more, self.program.shapes[value])
                same = _equal({"": found.box}, {"": before.box})
                if found.norm < before.norm or not same:
                    self.used.append(witness)
        return found

    def _begun(self) -> Iterator[tuple[dict[str, Fact], dict[str, float]]]:
        from lipcert.core.forms.centred import input_balls  # noqa: PLC0415  for chains only

        start = self.program.input
        for ball in input_balls(self.program, self.known):
            yield {start: ball.point()}, {start: ball.radius}

    def _near(
        self, witness: ChainWitness, steps: tuple[Step, ...], facts: Mapping[str, Fact]
    ) -> Iterator[Fact]:
        """From each ball whose radius at the start is known, and from the one around 0."""
        from lipcert.core.forms.centred import LARGEST_SQUARED, fact_around  # noqa: PLC0415  chains

        start, stop = witness.start, witness.stop
        shape = self.program.shapes[stop]
        if self.balls is None:
            self.balls = list(self._begun())
        known, form = slopes_between(steps, facts), None
        balls = [ball for ball in self.balls if start in ball[1]]
        if known is not None and balls:
            form = _form(self.program, steps, witness, known, self.evidence)
        if form is not None:
            for points, radii in balls:
                self._carry(points, steps)
                radius = multiply_up(form.over_ball(), radii[start])
                radii[stop] = min(radii.get(stop, math.inf), radius)
                yield fact_around(points[stop].box, shape, form, radii[start])
        if start == self.program.input or not facts[start].norm <= LARGEST_SQUARED:
            return
        images = self.zeros.images(steps, start)
        chords = slopes_between(steps, facts, images)
        if chords is None:
            return
        if form is None or known is None or not _equal(known, chords):
            form = _form(self.program, steps, witness, chords, self.evidence)
        if form is not None:
            yield fact_around(images[stop].box, shape, form, facts[start].norm)

    def _raised(
        self, witness: ChainWitness, steps: tuple[Step, ...], facts: Mapping[str, Fact]
    ) -> Iterator[Fact]:
        """Of a ReLU behind affine steps, where no entry below them is negative."""
        from lipcert.core.forms.raised import affine_of, raised_of  # noqa: PLC0415  for these only

        start, stop = witness.start, witness.stop
        shapes = self.program.shapes
        below = facts[start]
        if not is_relu(steps[-1]) or len(steps) < 2 or not (below.box.lo >= 0.0).all():
            return
        affine = affine_of(start, steps[:-1], shapes)
        if affine is None:
            return
        constants = constants_of(self.zeros, start, steps[:-1], affine.runs)
        norms = self.evidence.engine.norms
        raised = raised_of(affine, constants, witness.multipliers, norms)
        if raised is None:
            return
        run = math.inf
        if affine.upper.shape == (shapes[stop][-1], shapes[start][-1]):
            run = raised.times(below.row_norm, 1)
        yield Fact.of(shapes[stop], raised.times(below.norm, affine.runs), row_norm=run)

    def _carry(self, points: dict[str, Fact], steps: Sequence[Step]) -> None:
        """The values of a point, as far as these steps go."""
        for step in steps:
            if step.output not in points:
                points[step.output] = step_fact(self.program, step, points, self.zeros.weights)


def _equal(one: Mapping[str, Interval], other: Mapping[str, Interval]) -> bool:
    """Whether all ends of intervals are the same."""
    return one.keys() == other.keys() and all(
        np.array_equal(one[name].lo, other[name].lo)
        and np.array_equal(one[name].hi, other[name].hi)
        for name in one
    )


def _form(
    program: Program,
    steps: Sequence[Step],
    witness: ChainWitness,
    known: Mapping[str, Interval],
    evidence: Evidence,
) -> Form | None:
    """The form that the multipliers of a chain prove, with these slopes."""
    from lipcert.core.forms.chain import chain_form  # noqa: PLC0415  for chains only

    proof = evidence.engine.definite
    shapes, numbers = program.shapes, witness.multipliers
    return chain_form(witness.start, steps, shapes, known, numbers, proof=proof)


def _through(forms: Sequence[tuple[str, Form]], cotangents: Mapping[str, Cotangent]) -> float:
    """The least of what several chains leave of the cotangents at their ends."""
    found = math.inf
    for stop, form in forms:
        if stop in cotangents:
            found = min(found, form.cotangent(cotangents[stop]))
    return found


def _pulled(end: tuple[str, float] | None, cotangents: Mapping[str, Cotangent]) -> float:
    if end is None or end[0] not in cotangents:
        return math.inf
    return multiply_up(end[1], cotangents[end[0]].norm)
