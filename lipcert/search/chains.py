"""Chains: where quadratic forms help, in windows of a size that can be handled.

What enters: a program and the facts that the core has derived. What leaves: a `ChainWitness` for
each chain worth a form, which the core proves or does without.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, final

import numpy as np
import numpy.typing as npt

from lipcert.core.certificate import ChainWitness
from lipcert.core.coverage import operands
from lipcert.core.derive import Derived, derive
from lipcert.core.forms.chain import at_the_bottom
from lipcert.core.forms.descent import unknowns
from lipcert.core.forms.links import Edge, Matrix, links_of
from lipcert.core.interval import Interval as Slopes
from lipcert.core.ledger import Premises
from lipcert.core.program import (
    Activation,
    Add,
    BatchNorm,
    Dense,
    MaxPool,
    Move,
    PRelu,
    Program,
    Scale,
    Shift,
    Softmax,
    Sort,
    Step,
)
from lipcert.core.refinements import (
    COTANGENTS,
    VALUES,
    chain_steps,
    images_of_zero,
    slopes_between,
)
from lipcert.core.rules.facts import Fact
from lipcert.core.rules.moves import keeps_order
from lipcert.core.rules.weights import Point
from lipcert.core.witnesses import Evidence
from lipcert.search.multipliers import multipliers

_LARGEST: Final = {COTANGENTS: 1600, VALUES: 1600}
_LARGEST_SPARSE: Final = {COTANGENTS: 800, VALUES: 400}
"""unknown slopes, and entries at the top, of one form; with matrices that are mostly zero"""
_SMALL: Final = 400
"""unknown slopes up to which a chain has multipliers of its own for the Lipschitz constant"""
_LARGEST_MATRIX: Final = 1 << 21
_CLASSES: Final = frozenset({"cross-entropy", "nll", "focal"})


def with_chains(
    program: Program, premises: Premises, evidence: Evidence
) -> tuple[Evidence, Derived]:
    """With multipliers for chains, chosen in the derivation itself; what is derived comes along.

    Chains that prove nothing are left out.
    """
    search = _Search(program, evidence, hull=premises.loss in _CLASSES)
    derived = derive(program, premises, evidence, search)
    return replace(evidence, chains=derived.chains), derived


@final
class _Search:
    """Proposes chains to a derivation."""

    def __init__(self, program: Program, evidence: Evidence, *, hull: bool) -> None:
        self._program = program
        self._free = evidence.free
        self._weights = Point(evidence.norms)
        self._hull = hull
        self._reached = False
        self._readers = _readers(program)
        self._above = _cuts_above(program, self._readers)
        self._below = _cuts_below(program)
        self._makers = {step.output: step for step in program.steps}
        self._tops = frozenset(_tops(program, self._makers))
        self._links: dict[str, bool] = {}
        self._slopes: dict[str, Slopes] = {}

    def of_value(self, value: str, facts: Mapping[str, Fact]) -> Sequence[ChainWitness]:
        """The longest window that ends at a value."""
        if isinstance(self._makers[value].op, Move):
            return []
        ends = ((start, value) for start in self._below[value])
        return self._longest(VALUES, ends, facts)

    def of_cotangents(self, facts: Mapping[str, Fact]) -> Sequence[ChainWitness]:
        """The longest windows that begin where a cotangent is asked for, and where windows end.

        Where none begins, it is tried above what is computed next.
        """
        found: list[ChainWitness] = []
        wanted = {self._program.input}
        for step in self._program.steps:
            starts = [*operands(step.op)] or isinstance(step.op, MaxPool | Sort | Add)
            if starts or not self._can_link(step, facts):
                wanted.add(step.output)
        for start in (self._program.input, *self._makers):
            readers = self._readers.get(start, ())
            if start not in wanted and len(readers) < 2:
                continue
            chains = self._longest(
                COTANGENTS, ((start, stop) for stop in self._above[start]), facts
            )
            if not chains and len(readers) > 1:
                for reader in readers:
                    ends = ((start, stop) for stop in (reader, *self._above[reader]))
                    chains.extend(self._longest(COTANGENTS, ends, facts))
            found.extend(chains)
            wanted.update((chain.stop for chain in chains) if chains else readers)
        return found

    def _longest(
        self, use: str, ends: Iterable[tuple[str, str]], facts: Mapping[str, Fact]
    ) -> list[ChainWitness]:
        """Of windows from the shortest on, the last one that can be handled."""
        possible: list[tuple[ChainWitness, tuple[Step, ...]]] = []
        for start, stop in ends:
            witness = ChainWitness(use, start, stop, ())
            steps = chain_steps(self._program, witness, self._free)
            if steps is None or not all(self._can_link(step, facts) for step in steps):
                break
            possible.append((witness, steps))
        low, high, best = 0, len(possible), None
        middle = high - 1
        while low < high:
            edges = self._edges(*possible[middle], facts)
            if edges is None:
                high = middle
            else:
                best, low = (possible[middle][0], edges), middle + 1
            middle = (low + high) // 2
        return [] if best is None else list(self._tuned(*best))

    def _can_link(self, step: Step, facts: Mapping[str, Fact]) -> bool:
        """Whether a step is known to be a link, of a size that can be handled."""
        if step.output not in self._links:
            shapes = self._program.shapes
            sizes = [math.prod(shapes[name]) for name in step.inputs]
            dense = isinstance(
                step.op, Dense | Add | Scale | Shift | BatchNorm | Activation | PRelu
            )
            same = isinstance(step.op, Move) and keeps_order(step.op, shapes[step.inputs[0]])
            large = not (dense or same) and max(sizes) * math.prod(step.shape) > _LARGEST_MATRIX
            known = slopes_between((step,), facts)
            self._links[step.output] = (
                known is not None and not large and self._is_link(step, known)
            )
            self._slopes.update(known or {})
        return self._links[step.output]

    def _is_link(self, step: Step, known: Mapping[str, Slopes]) -> bool:
        try:
            return links_of(step.inputs[0], (step,), self._program.shapes, known, ()) is not None
        except ValueError:
            return False

    def _edges(
        self, witness: ChainWitness, steps: Sequence[Step], facts: Mapping[str, Fact]
    ) -> tuple[Edge, ...] | None:
        """The links of a chain; None where it takes too long."""
        start = witness.start
        known = {
            step.output: self._slopes[step.output] for step in steps if step.output in self._slopes
        }
        if witness.use == VALUES and start != self._program.input:
            points = images_of_zero(self._program, steps, start, self._weights)
            chords = slopes_between(steps, facts, points)
            known = known if chords is None else chords
        linked = links_of(start, steps, self._program.shapes, known, ())
        if linked is None:
            return None
        edges = at_the_bottom(linked[0])
        matrices = [edge.link.centre for edge in edges if isinstance(edge.link, Matrix)]
        size = unknowns(edges) + self._program.size(witness.stop) // linked[1]
        limits = _LARGEST_SPARSE if any(map(_is_sparse, matrices)) else _LARGEST
        large = size > limits[witness.use] or any(m.size > _LARGEST_MATRIX for m in matrices)
        return None if large else edges

    def _tuned(self, witness: ChainWitness, edges: Sequence[Edge]) -> Iterator[ChainWitness]:
        """With multipliers, where there is more than one matrix or slopes between."""
        matrices = sum(isinstance(edge.link, Matrix) for edge in edges)
        if not matrices or len(edges) < 2:
            return
        at_output = witness.stop in self._tops
        hulls = {witness.use == COTANGENTS and self._hull and at_output}
        if witness.use == COTANGENTS and at_output:
            if not self._reached or unknowns(edges) <= _SMALL:
                hulls.add(False)  # for the Lipschitz constant, the longest way at any price
            self._reached = True
        proposed = (multipliers(edges, hull=hull) for hull in sorted(hulls))
        for found in dict.fromkeys(proposed):
            if found is not None:
                yield replace(witness, multipliers=found)


def _tops(program: Program, makers: Mapping[str, Step]) -> Iterator[str]:
    """The output, and what it is a new shape or the logarithm of a softmax of."""
    value = program.output
    yield value
    while value in makers and isinstance(makers[value].op, Move | Softmax):
        (value,) = makers[value].inputs
        yield value


def _is_sparse(matrix: npt.NDArray[np.float64]) -> bool:
    """Whether most of a matrix is zero, as of a convolution."""
    return int(np.count_nonzero(matrix)) < matrix.size // 2


def _cuts_below(program: Program) -> Mapping[str, Sequence[str]]:
    """For each value, those on every way from the input to it, the nearest first."""
    inputs = {step.output: step.inputs for step in program.steps}
    return _cuts(program.input, ((value, below) for value, below in inputs.items()))


def _readers(program: Program) -> Mapping[str, Sequence[str]]:
    """For each value, what is computed from it directly."""
    found: dict[str, list[str]] = {}
    for step in program.steps:
        for name in set(step.inputs):
            found.setdefault(name, []).append(step.output)
    return found


def _cuts_above(
    program: Program, readers: Mapping[str, Sequence[str]]
) -> Mapping[str, Sequence[str]]:
    """For each value, those on every way from it to the output, the nearest first."""
    values = [program.input, *(step.output for step in program.steps)]
    upwards = ((value, readers[value]) for value in reversed(values) if value in readers)
    return _cuts(program.output, upwards)


def _cuts(root: str, nodes: Iterable[tuple[str, Sequence[str]]]) -> Mapping[str, Sequence[str]]:
    """What the chains of nodes that all neighbours have to the root have in common."""
    nearest: dict[str, str | None] = {root: None}
    depth = {root: 0}
    for node, neighbours in nodes:
        if node == root:
            continue
        common = neighbours[0]
        for neighbour in neighbours[1:]:
            one, other = common, neighbour
            while one != other:
                if depth[one] < depth[other]:
                    one, other = other, one
                one = nearest[one] or root
            common = one
        nearest[node], depth[node] = common, depth[common] + 1

    return {node: tuple(_way(node, nearest)) for node in nearest}


def _way(node: str, nearest: Mapping[str, str | None]) -> Iterator[str]:
    following = nearest[node]
    while following is not None:
        yield following
        following = nearest[following]
