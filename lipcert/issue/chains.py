"""Chains for certificates: where quadratic forms help, and the multipliers that shape them.

What enters: the checker's program and facts. What leaves: a `ChainWitness` for each chain worth a
form, with the engine's multipliers as the numbers that the checker asks for. Nothing is trusted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from lipcert.core.certificate import ChainWitness
from lipcert.core.coverage import operands, tensors_read
from lipcert.core.forms.links import Diagonal, Link, Matrix, links_of
from lipcert.core.interval import Interval as Slopes
from lipcert.core.program import Activation, Dense, PRelu, Program, Step
from lipcert.core.refinements import COTANGENTS, VALUES
from lipcert.core.rules.facts import Fact
from lipcert.core.rules.passes import rule_at
from lipcert.core.rules.weights import Point
from lipcert.forms.multipliers import tuned
from lipcert.forms.quadratic import (
    Multipliers,
    QuadraticForm,
    default_multipliers,
    middle_and_radius,
)
from lipcert.interval import Interval
from lipcert.upper import FloatArray

_LARGEST_RUN: Final = 600
_LARGEST_CONVOLVED: Final = 800
_LARGEST_REPEATED: Final = 300
_LARGEST_FORM: Final = 1600
_LARGEST_MATRIX: Final = 1 << 21
_ROOM: Final = 1.0 + 2.0**-20
_WORK: Final = 30.0
_TUNED_WORK: Final = 3e9
"""floating-point operations of a form, roughly, up to which multipliers are tuned; as in chains"""
_Number = FloatArray | Interval


def forward_chains(
    program: Program, facts: Mapping[str, Fact], free: frozenset[str]
) -> list[ChainWitness]:
    """From the input up to every value of the chain that begins there, behind its first matrix."""
    for steps in _paths(program, facts, free, only_way=False):
        if steps[0].inputs[0] == program.input:
            return list(_upwards(program, steps, facts))
    return []


def _upwards(
    program: Program, steps: Sequence[Step], facts: Mapping[str, Fact]
) -> Iterator[ChainWitness]:
    """Multipliers are tuned anew behind each matrix, and kept above it until the next."""
    links = _links(program, steps, facts) or ()
    tuned_to = 0
    found: ChainWitness | None = None
    for stop in range(2, len(steps) + 1):
        if isinstance(links[stop - 1], Matrix) or found is None:
            tuned_to = stop
        found = _witness(program, steps[:stop], facts, hull=False, tuned_to=tuned_to)
        if found is not None:
            yield replace(found, use=VALUES)


def backward_chains(
    program: Program, facts: Mapping[str, Fact], free: frozenset[str], *, hull: bool
) -> list[ChainWitness]:
    """From the start of each chain, and from above each trained step in it, to its end.

    hull: whether the loss sends class differences into the output.
    """
    found = []
    for steps in _paths(program, facts, free, only_way=True):
        for start in range(len(steps) - 1):
            if start and not any(True for _ in operands(steps[start - 1].op)):
                continue
            at_output = hull and steps[-1].output == program.output
            found.append(_witness(program, steps[start:], facts, hull=at_output))
    return [witness for witness in found if witness is not None]


def _paths(
    program: Program, facts: Mapping[str, Fact], free: frozenset[str], *, only_way: bool
) -> Iterator[tuple[Step, ...]]:
    """The longest rows of steps that can be links, of sizes that can be handled.

    only_way: nothing else may read what lies between.
    """
    readers = Counter(name for step in program.steps for name in step.inputs)
    readers[program.output] += 1
    growing: dict[str, tuple[Step, ...]] = {}
    for step in program.steps:
        if len(step.inputs) != 1 or not _can_link(program, step, facts, free):
            continue
        below = step.inputs[0]
        unread = not only_way or readers[below] == 1
        longer = (*growing[below], step) if below in growing and unread else (step,)
        if len(longer) > 1 and not _fits(program, longer, facts, only_way=only_way):
            longer = (step,)
        if len(longer) > 1 and only_way:
            del growing[below]
        growing[step.output] = longer
    ended = {steps[-2].output for steps in growing.values() if len(steps) > 1}
    for value, steps in growing.items():
        if len(steps) > 1 and (only_way or value not in ended):
            yield steps


def _can_link(
    program: Program, step: Step, facts: Mapping[str, Fact], free: frozenset[str]
) -> bool:
    if free & tensors_read([step]):
        return False
    return _links(program, (step,), facts) is not None


def _fits(
    program: Program, steps: Sequence[Step], facts: Mapping[str, Fact], *, only_way: bool
) -> bool:
    """Whether the form of these steps is of a size that the checker, and patience, allow."""
    links = _links(program, steps, facts)
    if links is None:
        return False
    sizes = [_length(link) for link in links[_first_matrix(links) + 1 :]]
    matrices = [link.centre.size for link in links if isinstance(link, Matrix)]
    if matrices and max(matrices) > _LARGEST_MATRIX:
        return False
    unknown = sum(_unknown(link) for link in links)
    if any(map(_is_repeated, steps, links)):
        return max(sizes, default=0) <= _LARGEST_REPEATED
    limit = _LARGEST_RUN
    if any(map(_is_sparse, links)):
        limit = _LARGEST_CONVOLVED if only_way else _LARGEST_REPEATED
    return max(sizes, default=0) <= limit and unknown <= _LARGEST_FORM


def _links(
    program: Program, steps: Sequence[Step], facts: Mapping[str, Fact]
) -> tuple[Link, ...] | None:
    found: dict[str, Slopes] = {}
    for step in steps:
        if isinstance(step.op, Activation | PRelu):
            known = rule_at(program, step, facts, Point({})).slopes()
            if known is None:
                return None
            found[step.output] = known
    try:
        linked = links_of(steps, program.shapes, found, ())
    except ValueError:
        return None
    return None if linked is None else linked[0]


def _witness(
    program: Program,
    steps: Sequence[Step],
    facts: Mapping[str, Fact],
    *,
    hull: bool,
    tuned_to: int | None = None,
) -> ChainWitness | None:
    """Multipliers for the unknown slopes of a chain; None where a product of norms says as much.

    tuned_to: how many of the links they are tuned for; the others have default ones.
    """
    links = _links(program, steps, facts)
    if links is None:
        return None
    first = _first_matrix(links)
    if first == len(links) or len(links) - first < 2:
        return None
    numbers = [_number(link) for link in links]
    form = QuadraticForm.of(_with_slopes(links[: first + 1]))
    work = sum(_WORK * _length(link) ** 3 for link in links[first:] if isinstance(link, Diagonal))
    worth_it = work <= _TUNED_WORK
    proposals = tuned(form.matrix, numbers[first + 1 : tuned_to], hull) if worth_it else []
    proposals += [None] * (len(numbers) - first - 1 - len(proposals))
    multipliers: list[tuple[float, ...]] = []
    for index, step in enumerate(steps):
        chosen: tuple[float, ...] = ()
        if index > first:
            link, proposal = numbers[index], proposals[index - first - 1]
            if isinstance(link, Interval):
                chosen = _multipliers(form, link, proposal)
            form = form.through(link, proposal)
        if isinstance(step.op, Activation | PRelu):
            multipliers.append(chosen)
    return ChainWitness(COTANGENTS, steps[0].inputs[0], steps[-1].output, tuple(multipliers))


def _multipliers(
    form: QuadraticForm, link: Interval, proposal: Multipliers | None
) -> tuple[float, ...]:
    """t = κ/p², κ = ratio·λ_max(PQP), for slopes m ± r and δ = Ms + Pf; 1 for known slopes.

    The constraints f² ≤ (r/p)²s² with multiplier κ are t(w − αs)(βs − w) ≥ 0.
    """
    middle, radius, _ = middle_and_radius(link)
    if proposal is None or not proposal.is_usable(radius):
        proposal = default_multipliers(form.matrix, middle, radius)
    weights = np.where(radius > 0.0, proposal.weights, 0.0)
    largest = float(np.linalg.eigvalsh(np.outer(weights, weights) * form.matrix)[-1])
    level = max(largest, 1e-300) * max(proposal.ratio, _ROOM) * 4.0**form.scale
    found = np.divide(level, weights**2, out=np.ones_like(weights), where=weights > 0.0)
    return tuple(float(number) for number in found)


def _first_matrix(links: Sequence[Link]) -> int:
    return next((i for i, link in enumerate(links) if isinstance(link, Matrix)), len(links))


def _length(link: Link) -> int:
    return len(link.centre) if isinstance(link, Matrix) else link.slopes.lo.size


def _with_slopes(links: Sequence[Link]) -> FloatArray:
    """The matrix at the end of links, behind the largest slopes of the diagonals before it."""
    last = links[-1]
    if not isinstance(last, Matrix):
        raise TypeError("the links do not end in a matrix")
    reach = np.ones(last.centre.shape[1])
    for link in links[:-1]:
        if isinstance(link, Diagonal):
            reach = reach * link.slopes.magnitude()
    return np.asarray(last.centre * reach)


def _is_repeated(step: Step, link: Link) -> bool:
    """Whether a matrix stands for several runs, because other steps mix them."""
    if not (isinstance(link, Matrix) and isinstance(step.op, Dense)):
        return False
    return link.centre.shape != step.op.weight.shape


def _is_sparse(link: Link) -> bool:
    """Whether most of a matrix is zero, as of a convolution."""
    if not isinstance(link, Matrix):
        return False
    return int(np.count_nonzero(link.centre)) < link.centre.size // 2


def _unknown(link: Link) -> int:
    """Entries of a diagonal that the facts leave open."""
    if isinstance(link, Matrix):
        return 0
    return int(np.count_nonzero(link.slopes.lo < link.slopes.hi))


def _number(link: Link) -> _Number:
    if isinstance(link, Matrix):
        return link.centre
    return Interval(link.slopes.lo, link.slopes.hi)
