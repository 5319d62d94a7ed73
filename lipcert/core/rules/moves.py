"""Move: entries of x in other places, dropped, repeated or 0."""

import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from lipcert.core.arithmetic import multiply_up
from lipcert.core.interval import Interval
from lipcert.core.program import Move, Shape
from lipcert.core.rules.base import Rule
from lipcert.core.rules.facts import Cotangent, Fact, root_up, token_axis

_Indices = npt.NDArray[np.int64]


class MoveRule(Rule[Move]):
    """y.flat[k] = x.flat[sources[k]], or 0."""

    def fact(self) -> Fact:
        """‖y‖ ≤ √m‖x‖, also for runs and tokens of y that lie in one run of x; entries keep their
        interval.

        Proof for spreads: runs of y that take the same places of runs of x near one point are near
        those places of it.
        """
        sources, x, before = self.op.sources, self.x, self.before
        if sources.shape != self.shape or int(np.max(sources, initial=-1)) >= np.prod(before):
            raise ValueError("a move does not fit its shapes")
        stretch = self.lipschitz(0)
        lines = ((_line_of(before, -1), x.row_norm), (_line_of(before, -2), x.column_norm))
        run, column = (
            min(
                multiply_up(stretch, length)
                for line, length in ((None, x.norm), *lines)
                if line is None or (length < x.norm and _stays_in(line, sources, axis))
            )
            for axis in (-1, -2)
        )
        box = _moved(x.box, sources, before)
        near, column_near = self._spread(-1, run), self._spread(-2, column)
        token, may_gain = math.inf, len(self.shape) > 2 and x.row_norm < x.norm
        if may_gain and _stays_in(_line_of(before, -1), self._by_place(-2), -1):
            token = multiply_up(stretch, x.row_norm)
        norm = multiply_up(stretch, x.norm)
        return Fact.of(self.shape, norm, box, run, column, near, column_near, token)

    def _spread(self, axis: int, known: float) -> float:
        """That of the runs of y along an axis, if it is below what is known of their norm."""
        found, sources, before = known, self.op.sources, self.before
        for own, spread in ((-1, self.x.row_spread), (-2, self.x.column_spread)):
            least = multiply_up(self.lipschitz(0), spread)
            if least < found and has_alike_runs(sources, axis, before, own):
                found = least
        return found

    def lipschitz(self, _: int) -> float:
        """√m, m the largest number of times that one entry of x occurs: the norm of the map.

        Proof: its columns are disjoint, with that many ones. Attained always.
        """
        used = self.op.sources[self.op.sources >= 0]
        return root_up(int(np.max(np.bincount(used), initial=0)))

    def pulled(self, index: int, cotangent: Cotangent) -> Cotangent:
        """L·l; with what else is known of it where nothing but the shape changes. Sums: √r times
        those of tokens of which no one takes more than r entries of a channel.

        Proof: what y has at a place sends to a channel numbers that add up, in magnitude, to √r
        times the norm of those of its entries at most; and norms add.
        """
        norm, sums = multiply_up(self.lipschitz(index), cotangent.norm), math.inf
        if cotangent.tokens is not None and len(self.before) > 2:
            rows, (_, total) = self._by_place(cotangent.tokens[0]), cotangent.tokens
            channels = np.maximum(rows, 0) // math.prod(self.before[2:]) % self.before[1]
            channels += self.before[1] * np.arange(len(rows))[:, np.newaxis]
            most = np.max(np.bincount(channels[rows >= 0]), initial=0)
            sums = multiply_up(root_up(int(most)), total)
        if not keeps_order(self.op, self.before):
            return Cotangent(norm, sums=sums)
        same = self.shape[-1:] == self.before[-1:]
        peaks = cotangent.peaks if same else math.inf
        return replace(cotangent, norm=norm, sums=sums, peaks=peaks)

    def tokens_pulled(self, index: int, cotangent: Cotangent) -> tuple[int, float] | None:
        """Along an axis of x at one place of which lies all that y takes at a place along its own,
        or, where no tokens of y are known, all that y takes.

        Proof: what y has at a place sends to one place of x a gradient no longer than L times its
        own, and several to one add up.
        """
        before = self.before
        rows = self._by_place(cotangent.tokens[0] if cotangent.tokens else None)
        total = cotangent.tokens[1] if cotangent.tokens else cotangent.norm
        for found in range(-1, -len(before) - 1, -1):
            numbers = np.arange(before[found]).reshape(-1, *(1,) * (-found - 1))
            line = np.broadcast_to(numbers, before).ravel()
            if before[found] > 1 and _stays_in(line, rows, -1):
                return found, multiply_up(self.lipschitz(index), total)
        return None

    def _by_place(self, axis: int | None) -> _Indices:
        """The sources of what y has at each place along an axis; of all of y for None."""
        sources = self.op.sources[np.newaxis]
        if axis is not None:
            sources = np.moveaxis(self.op.sources, axis, 0)
        return sources.reshape(len(sources), -1)

    def longest_part(self, operand: Shape) -> float:
        """√m times the longest run of x, if what each entry of the operand meets lies in one.

        Proof: it holds each entry of that run at most m times.
        """
        from lipcert.core.rules.broadcasting import met_rows  # noqa: PLC0415  factors only

        line = _line_of(self.before, -1)
        inside = _stays_in(line, met_rows(self.op.sources, operand), -1)
        return multiply_up(self.lipschitz(0), self.x.row_norm) if inside else math.inf


def keeps_order(op: Move, before: Shape) -> bool:
    """Whether nothing but the shape changes."""
    size, sources = math.prod(before), op.sources.ravel()
    return len(sources) == size and bool((sources == np.arange(size)).all())


def _line_of(shape: Shape, axis: int) -> _Indices:
    """For each entry, the run along the axis in which it lies, as a number."""
    if len(shape) < -axis:
        return np.arange(np.prod(shape), dtype=np.int64)
    places = np.arange(np.prod(shape), dtype=np.int64).reshape(shape)
    first = np.take(places, [0], axis=axis)
    return np.broadcast_to(first, shape).ravel()


def has_alike_runs(sources: _Indices, axis: int, before: Shape, own: int) -> bool:
    """Whether every run of y along an axis lies in a run of x along `own`, and runs of y near
    one point, as in `Fact`, take the same places of runs of x near one point.
    """
    if min(len(before), sources.ndim) < 2 or not sources.size:
        return False
    if not _stays_in(_line_of(before, own), sources, axis):
        return False
    entries = np.arange(np.prod(before), dtype=np.int64).reshape(before)
    first = np.broadcast_to(np.take(entries, [0], axis=_across(before, own)), before).ravel()
    places = np.where(sources < 0, -1, first[sources])
    return bool((places == np.take(places, [0], axis=_across(sources.shape, axis))).all())


def _across(shape: Shape, axis: int) -> int:
    """The axis along which runs along another differ."""
    return token_axis(shape) if axis == -1 else -1


def _stays_in(line: _Indices, sources: _Indices, axis: int) -> bool:
    """Whether the entries of each run of y along the axis lie in one line of x."""
    if sources.ndim < -axis or not len(line):
        return False
    lines = line[np.maximum(sources, 0)]
    lowest = np.min(np.where(sources < 0, len(line), lines), axis=axis, initial=len(line))
    highest = np.max(np.where(sources < 0, -1, lines), axis=axis, initial=-1)
    return bool((lowest >= highest).all())


def _moved(box: Interval, sources: _Indices, before: Shape) -> Interval:
    """The interval of each entry; of length 1 along axes on which nothing changes."""
    outside = sources < 0
    ends = []
    for end in (box.lo, box.hi):
        full = np.append(np.broadcast_to(end, before).ravel(), 0.0)
        ends.append(np.where(outside, 0.0, full[np.where(outside, 0, sources)]))
    low, high = ends
    for axis in range(low.ndim):
        first = [np.take(end, [0], axis=axis) for end in (low, high)] if low.size else [low, high]
        if (low == first[0]).all() and (high == first[1]).all():
            low, high = first
    return Interval(low, high)
