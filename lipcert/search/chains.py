"""Chains: where quadratic forms help, in windows of a size that can be handled.

What enters: a program and the facts that the core has derived. What leaves: a `ChainWitness` for
each chain worth a form, which the core proves or does without.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, final

import numpy as np

from lipcert.core.certificate import ChainWitness
from lipcert.core.coverage import operands
from lipcert.core.derive import Derived, derive
from lipcert.core.forms.chain import at_the_bottom
from lipcert.core.forms.descent import unknowns
from lipcert.core.forms.links import Edge, Matrix, links_of
from lipcert.core.ledger import Premises
from lipcert.core.program import Move, Program
from lipcert.core.refinements import (
    COTANGENTS,
    VALUES,
    chain_steps,
    images_of_zero,
    slopes_between,
)
from lipcert.core.rules.facts import Fact
from lipcert.core.rules.weights import Point
from lipcert.core.witnesses import Evidence
from lipcert.search.multipliers import multipliers

_LARGEST_FORM: Final = 1600
"""unknown slopes, and entries at the top, of one form"""
_LARGEST_RUN: Final = 1024
_LARGEST_MATRIX: Final = 1 << 21
_WORK: Final = 4e9
"""floating-point operations of one factorisation of all chains together, roughly"""
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
        self._above = _cuts_above(program)
        self._below = _cuts_below(program)
        self._makers = {step.output: step for step in program.steps}

    def of_value(self, value: str, facts: Mapping[str, Fact]) -> Sequence[ChainWitness]:
        """The longest window that ends at a value."""
        if isinstance(self._makers[value].op, Move):
            return []
        best = None
        for start in self._below[value]:
            found = self._edges(VALUES, start, value, facts)
            if found is None:
                break
            if found is not _TOO_LARGE:
                best = (start, found)
        return [] if best is None else list(self._witness(VALUES, best[0], value, best[1]))

    def of_cotangents(self, facts: Mapping[str, Fact]) -> Sequence[ChainWitness]:
        """The longest windows that begin where a cotangent is asked for, and where windows end."""
        wanted = {self._program.input}
        found: list[ChainWitness] = []
        for step in self._program.steps:
            if any(True for _ in operands(step.op)):
                wanted.add(step.output)
        for start in (self._program.input, *(step.output for step in self._program.steps)):
            if start not in wanted:
                continue
            best = None
            for stop in self._above[start]:
                edges = self._edges(COTANGENTS, start, stop, facts)
                if edges is None:
                    break
                if edges is not _TOO_LARGE:
                    best = (stop, edges)
            if best is not None:
                wanted.add(best[0])
                found.extend(self._witness(COTANGENTS, start, *best))
        return found

    def _edges(
        self, use: str, start: str, stop: str, facts: Mapping[str, Fact]
    ) -> tuple[Edge, ...] | None:
        """The links of a chain; None where there is none, `_TOO_LARGE` where it takes too long."""
        steps = chain_steps(self._program, ChainWitness(use, start, stop, ()), self._free)
        if steps is None:
            return None
        points = None
        if use == VALUES and start != self._program.input:
            points = images_of_zero(self._program, steps, start, self._weights)
        known = slopes_between(steps, facts, points)
        if known is None:
            return None
        try:
            linked = links_of(start, steps, self._program.shapes, known, ())
        except ValueError:
            return None
        if linked is None:
            return None
        edges = at_the_bottom(linked[0])
        sizes = [edge.link.centre.shape for edge in edges if isinstance(edge.link, Matrix)]
        size = self._program.size(stop) // linked[1]
        large = unknowns(edges) + size > _LARGEST_FORM or size > _LARGEST_RUN
        large = large or any(rows * columns > _LARGEST_MATRIX for rows, columns in sizes)
        return _TOO_LARGE if large else edges

    def _witness(
        self, use: str, start: str, stop: str, edges: Sequence[Edge]
    ) -> Iterator[ChainWitness]:
        """With multipliers, where there is more than one matrix or slopes between."""
        matrices = sum(isinstance(edge.link, Matrix) for edge in edges)
        if not matrices or len(edges) < 2:
            return
        hull = use == COTANGENTS and self._hull and stop == self._program.output
        found = multipliers(edges, hull=hull)
        if found is not None:
            yield ChainWitness(use, start, stop, found)


_TOO_LARGE: Final[tuple[Edge, ...]] = (Edge(("", 0), ("", 0), Matrix(np.zeros((0, 0)), None)),)


def _cuts_below(program: Program) -> Mapping[str, Sequence[str]]:
    """For each value, those on every way from the input to it, the nearest first."""
    inputs = {step.output: step.inputs for step in program.steps}
    return _cuts(program.input, ((value, below) for value, below in inputs.items()))


def _cuts_above(program: Program) -> Mapping[str, Sequence[str]]:
    """For each value, those on every way from it to the output, the nearest first."""
    readers: dict[str, list[str]] = {}
    for step in program.steps:
        for name in step.inputs:
            readers.setdefault(name, []).append(step.output)
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
