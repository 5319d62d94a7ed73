"""Links: the Jacobians between two values of a program, as a network of matrices and diagonals.

Input: the steps of a region, and the values where it begins and ends.
Output: edges, each with a known matrix or with slopes of unknown value, on runs of consecutive
entries that no step mixes. A value is the sum of what its edges bring, and so is a cotangent.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from lipcert.core.budget import spend
from lipcert.core.interval import Array, Interval
from lipcert.core.line import NotProved
from lipcert.core.program import Dense, Shape, Step
from lipcert.core.registry import Registry

MAX_ENTRIES: Final = 1 << 24
"""entries of a matrix"""
_KNOWN: Final = 2.0**-44
_COMPUTED: Final = 2.0**-20
"""relative widths of slopes that are known: with a multiplier; and without, as of a scale that is a
root or a quotient, of which float32 arithmetic has another number"""
JOINS: Final = Registry("forms", {"joins.joined": "Add Concat"})
ORDERINGS: Final = Registry("forms", {"extremes.ordered": "MaxPool ReduceMax Sort"})
"""The edges of steps that join several values, and of those that pick or order entries."""
_JACOBIANS: Final = Registry("forms", {
    "jacobians.averages": "AveragePool",
    "jacobians.centring": "Centre",
    "jacobians.convolution": "Conv",
    "jacobians.channels": "BatchNorm",
    "jacobians.factors": "Scale",
    "jacobians.move": "Move",
    "jacobians.sums": "ReduceSum",
    "jacobians.unit": "Shift",
})  # fmt: skip
"""The Jacobians of all other linear steps besides matrices."""
_DIAGONAL: Final = frozenset({"BatchNorm", "Scale", "Shift"})


@dataclass(frozen=True, slots=True, eq=False)
class Matrix:
    """A known matrix [after, before] on every run, whose entries lie in these intervals."""

    entries: Interval


@dataclass(frozen=True, slots=True, eq=False)
class Diagonal:
    """A diagonal matrix on every run, with any slopes in `entries`. weights: its multipliers.

    weighed: whether a certificate gives it a list of multipliers.
    """

    entries: Interval
    weights: Array | None = None
    weighed: bool = False

    @property
    def unknown(self) -> npt.NDArray[np.bool_]:
        """Which slopes are not known: those of which the interval is wide."""
        width = _KNOWN if self.weighed else _COMPUTED
        wide: npt.NDArray[np.bool_] = (
            self.entries.hi - self.entries.lo > width * self.entries.magnitude()
        )
        return wide


Link: TypeAlias = Matrix | Diagonal
Place: TypeAlias = tuple[str, int]
"""a value, and 0; or a stage of the step that computes it, counted from below"""


@dataclass(frozen=True, slots=True, eq=False)
class Edge:
    """The link times `source` is added to `target`. Edges into a place precede those out of it."""

    source: Place
    target: Place
    link: Link


def links_of(
    start: str,
    steps: Sequence[Step],
    shapes: Mapping[str, Shape],
    slopes: Mapping[str, Interval],
    multipliers: Sequence[Sequence[float]],
) -> tuple[tuple[Edge, ...], int]:
    """The edges, and how many runs there are; raise NotProved where a step is not a link.

    What a step adds to values that do not come from `start` has no edge.
    slopes: for each Activation and PRelu, by the value it computes, an interval that broadcasts to
    its shape and holds the slopes of chords. multipliers: from below, a list for each of these
    steps and for each round of a step that picks or orders entries, of as many numbers as a run
    has entries there, or empty.
    Proof: a step works on blocks of consecutive entries, and their numbers' common divisor counts
    the runs that all steps respect. Slopes hold for every run if they hold for their union.
    """
    found: list[tuple[Edge, int]] = []
    rest = list(multipliers)
    inside = {start, *(step.output for step in steps)}
    for step in steps:
        spend()
        for edge, blocks in edges_of(step, [shapes[name] for name in step.inputs], slopes):
            if edge.source[0] not in inside:
                continue
            link = edge.link
            if isinstance(link, Diagonal) and link.weighed and rest:
                link = replace(link, weights=np.array(rest.pop(0), dtype=np.float64))
            found.append((replace(edge, link=link), blocks))
    runs = math.gcd(*(blocks for _, blocks in found))
    if rest or runs < 1:
        raise NotProved("its multipliers are not those of its steps")
    whole = (replace(edge, link=on_run(edge.link, blocks // runs, runs)) for edge, blocks in found)
    return tuple(whole), runs


def edges_of(
    step: Step, before: Sequence[Shape], slopes: Mapping[str, Interval]
) -> list[tuple[Edge, int]]:
    """Return the edges of a step, each with the number of blocks that it keeps apart."""
    kind = type(step.op).__name__
    for table in (JOINS, ORDERINGS):
        if kind in table:
            found: list[tuple[Edge, int]] = table[kind](step, before)
            return found
    if len(step.inputs) != 1:
        raise NotProved(f"{step.output} is computed from several values")
    (name,), (shape,) = step.inputs, before
    link = link_of(step, shape, slopes)
    if step.op.is_function and isinstance(link, Diagonal):
        link = replace(link, weighed=True)
    columns = link.entries.shape[1] if isinstance(link, Matrix) else 1
    return [(Edge((name, 0), (step.output, 0), link), math.prod(shape) // max(columns, 1))]


def on_run(link: Link, blocks: int, runs: int) -> Link:
    """Return a link on a run of so many blocks; raise NotProved if its matrix is too large."""
    if isinstance(link, Diagonal):
        low, high = link.entries.lo.reshape(runs, -1), link.entries.hi.reshape(runs, -1)
        return replace(link, entries=Interval(low.min(axis=0), high.max(axis=0)))
    if link.entries.lo.size * blocks**2 > MAX_ENTRIES:
        raise NotProved("the matrix of a link is too large")
    return link if blocks == 1 else Matrix(link.entries.moved(partial(_repeated, blocks=blocks)))


def _repeated(matrix: Array, blocks: int) -> Array:
    """Return a matrix repeated so many times along a diagonal."""
    rows, columns = matrix.shape
    whole, each = np.zeros((blocks, rows, blocks, columns)), np.arange(blocks)
    whole[each, :, each] = matrix
    return whole.reshape(blocks * rows, blocks * columns)


def link_of(step: Step, shape: Shape, slopes: Mapping[str, Interval]) -> Link:
    """Return the Jacobian of a step that reads a value of this shape, in row-major order."""
    if step.op.is_function:
        return diagonal(slopes[step.output], shape)
    if isinstance(step.op, Dense):
        return matrix(Interval(step.op.weight.lo, step.op.weight.hi))
    kind, entries = type(step.op).__name__, math.prod(shape) * math.prod(step.shape)
    if kind not in _JACOBIANS or (kind not in _DIAGONAL and entries > MAX_ENTRIES):
        raise NotProved(f"{step.output} is computed by {kind}, which has not a link of this size")
    found: Link = _JACOBIANS[kind](step.op, shape, step.shape)
    return found


def diagonal(slopes: Interval, shape: Shape) -> Diagonal:
    """The slopes, all of which are finite."""
    return Diagonal(finite(slopes.broadcast(shape).moved(np.ravel)))


def matrix(entries: Interval) -> Matrix:
    """The entries, all of which are finite."""
    return Matrix(finite(entries))


def finite(entries: Interval) -> Interval:
    """Return the entries; raise NotProved if one is not finite."""
    if not np.isfinite(entries.magnitude()).all():
        raise NotProved("a slope or an entry is not bounded")
    return entries
