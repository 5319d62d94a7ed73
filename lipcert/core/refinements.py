"""Refinements: what runs of affine steps and chains of layers say besides the rule of each step.

What enters: a program, proved norms of runs, multipliers of chains. What leaves: `Witnessed`, which
the passes ask. A run is bounded by its norm, a chain by a quadratic form that is proved here from
its multipliers and the slopes that the facts allow.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Final, final

import numpy as np

from lipcert.core.arithmetic import add_up, multiply_up
from lipcert.core.certificate import ChainWitness
from lipcert.core.coverage import tensors_read
from lipcert.core.interval import Interval, exact
from lipcert.core.paths import is_only_way, steps_between
from lipcert.core.program import Activation, Add, PRelu, Program, Step
from lipcert.core.rules.facts import Cotangent, Fact
from lipcert.core.rules.passes import Refinement, rule_at, step_fact
from lipcert.core.rules.weights import Point, Weights
from lipcert.core.witnesses import Evidence

if TYPE_CHECKING:
    from lipcert.core.forms.form import Form

VALUES: Final = "values"
COTANGENTS: Final = "cotangents"
"""what a chain is used for"""

_LARGEST_POINTS: Final = 1 << 20
_LARGEST_SQUARED: Final = 1e100
"""far below numbers whose squares overflow"""


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
    """Proved forms: for a value and its reader, the values where chains end, with their forms.

    unused: chains that prove nothing.
    """

    forms: Mapping[tuple[str, str], Sequence[tuple[str, Form]]] = field(default_factory=dict)
    unused: tuple[ChainWitness, ...] = ()

    @classmethod
    def of(cls, program: Program, facts: Mapping[str, Fact], evidence: Evidence) -> Chains:
        """Of all chains through which alone the cotangents pass from their ends to their starts."""
        forms: dict[tuple[str, str], list[tuple[str, Form]]] = {}
        unused = []
        for witness in evidence.chains:
            if witness.use != COTANGENTS:
                continue
            steps = _steps(program, witness, evidence)
            form = None
            if steps is not None and is_only_way(program, steps):
                form = _form(program, steps, witness, facts, evidence)
            if steps is None or form is None:
                unused.append(witness)
            else:
                key = (witness.start, steps[0].output)
                forms.setdefault(key, []).append((witness.stop, form))
        return cls(forms, tuple(unused))


@final
@dataclass(frozen=True, slots=True, eq=False)
class Witnessed(Refinement):
    """All that is known besides the rules. centred: facts of values near that of one input."""

    program: Program
    weights: Weights
    runs: Runs
    centred: Mapping[str, Fact] = field(default_factory=dict)
    chains: Chains = field(default_factory=Chains)

    def fact(self, value: str, found: Fact, facts: Mapping[str, Fact]) -> Fact:
        """Of a run x ↦ Ax + c: ‖A‖·‖x‖ + ‖c‖, where c is its value at 0."""
        shape = self.program.shapes[value]
        if value in self.centred:
            found = found.meet(self.centred[value], shape)
        if value not in self.runs.ends:
            return found
        steps, bound = self.runs.ends[value]
        start = steps[0].inputs[0]
        rank = len(self.program.shapes[start])
        zero = Fact.of(self.program.shapes[start], 0.0, exact(np.zeros((1,) * rank)))
        at_zero = {start: zero}
        for step in steps:
            at_zero[step.output] = step_fact(self.program, step, at_zero, self.weights)
        norm = add_up(multiply_up(bound, facts[start].norm), at_zero[value].norm)
        return found.meet(Fact.of(shape, norm), shape)

    def share(self, value: str, reader: str, cotangents: Mapping[str, Cotangent]) -> float:
        """Through a run, its norm times the cotangent at its end; through a chain, by its form."""
        found = _pulled(self.runs.shares.get((value, reader)), cotangents)
        for stop, form in self.chains.forms.get((value, reader), ()):
            if stop in cotangents:
                found = min(found, form.cotangent(cotangents[stop]))
        return found

    def whole(self, value: str, cotangents: Mapping[str, Cotangent]) -> float:
        """Through a run that ends in a sum with the value itself."""
        return _pulled(self.runs.sums.get(value), cotangents)


def centred_facts(
    program: Program, facts: Mapping[str, Fact], weights: Weights, evidence: Evidence
) -> dict[str, Fact]:
    """Facts of the values where chains from the input end; see `forms.centred`."""
    start = program.input
    witnesses = [chain for chain in evidence.chains if chain.use == VALUES]
    shape = program.shapes[start]
    too_large = math.prod(shape) > _LARGEST_POINTS or facts[start].norm > _LARGEST_SQUARED
    if not witnesses or too_large:
        return {}
    from lipcert.core.forms.centred import enclosing_ball, fact_around  # noqa: PLC0415  for chains

    balls = [enclosing_ball(facts[start], shape, share) for share in _shares(facts[start], shape)]
    points = [({start: ball.point()}, ball.radius) for ball in balls if ball is not None]
    found: dict[str, Fact] = {}
    for witness in witnesses:
        steps = _steps(program, witness, evidence) if witness.start == start else None
        form = None if steps is None else _form(program, steps, witness, facts, evidence)
        if steps is None or form is None:
            continue
        stop = program.shapes[witness.stop]
        for point, radius in points:
            for step in steps:
                if step.output not in point:
                    point[step.output] = step_fact(program, step, point, weights)
            near = fact_around(point[witness.stop].box, stop, form, radius)
            known = found.get(witness.stop, near)
            found[witness.stop] = known.meet(near, stop)
    return found


def _shares(fact: Fact, shape: tuple[int, ...]) -> Iterator[Fraction]:
    """Which balls are tried: the smallest, the one around 0, and one between; none is trusted."""
    box = fact.box.broadcast(shape)
    if not (np.isfinite(box.lo).all() and np.isfinite(box.hi).all()):
        return
    middle = 0.5 * box.lo + 0.5 * box.hi
    curvature = 2.0 * float(np.sum(middle * middle))
    slope = max(fact.norm * fact.norm + float(np.sum(box.lo * box.hi)), 0.0)
    best = 1.0 - min(slope / curvature, 1.0) if curvature > 0.0 else 1.0
    for share in {best, 0.5 + 0.5 * best, 1.0}:
        yield Fraction(share)


def _steps(program: Program, witness: ChainWitness, evidence: Evidence) -> tuple[Step, ...] | None:
    """The steps of a chain, all of whose operands are those of the file."""
    if witness.start not in program.shapes or witness.stop not in program.shapes:
        return None
    steps = steps_between(program, witness.start, witness.stop)
    if steps is None:
        return None
    return None if tensors_read(steps) & evidence.free else steps


def _form(
    program: Program,
    steps: Sequence[Step],
    witness: ChainWitness,
    facts: Mapping[str, Fact],
    evidence: Evidence,
) -> Form | None:
    """The form that the multipliers of a chain prove, with the slopes that the facts allow."""
    found: dict[str, Interval] = {}
    for step in steps:
        if isinstance(step.op, Activation | PRelu):
            range_ = rule_at(program, step, facts, Point(evidence.norms)).slopes()
            if range_ is None:
                return None
            found[step.output] = range_
    from lipcert.core.forms.chain import chain_form  # noqa: PLC0415  for chains only

    return chain_form(steps, program.shapes, found, witness.multipliers, evidence.engine.definite)


def _pulled(end: tuple[str, float] | None, cotangents: Mapping[str, Cotangent]) -> float:
    if end is None or end[0] not in cotangents:
        return math.inf
    return multiply_up(end[1], cotangents[end[0]].norm)
