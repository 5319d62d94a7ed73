"""Torus: choose the frequencies that give a convolution's symbol a low peak, and find that peak.

What `core.norms.torus` can prove is the largest norm of the symbol over the frequencies of a
torus. Small maps have a choice among tori, whose peaks differ; on a large one all are alike.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lipcert.core.norms.convolution import Convolution
from lipcert.core.norms.lines import Axis, axes_of, phases_of
from lipcert.core.norms.symbol import GramSymbol, Symbol, symbol_of
from lipcert.core.norms.torus import MAX_COUNT
from lipcert.search.eigenvalues import (
    Array,
    Matrices,
    estimated_eigenvalues,
    estimated_squares,
    spectral_norm,
)

IndexArray = npt.NDArray[np.int64]

_SMALL: Final = 20
"""Frequencies along an axis up to which one more than the fewest is tried, too."""
_LARGE: Final = 40
"""Frequencies along an axis beyond which the twist hardly matters."""
_FEW: Final = 1024
"""Most frequencies that are all evaluated."""
_TRIES: Final = 32
_PER_TAP: Final = 4
"""Frequencies for each tap along an axis, when many are evaluated for the first time."""
_PROMISING: Final = 12
_PEAKS: Final = 3
_PART: Final = 8
"""The share of another torus's frequencies that is evaluated."""
_AT_ONCE: Final = 1 << 20
_ROUGH, _FINE = 1e-3, 1e-5
_AWAY: Final = 10.0
"""How far an estimate may be from the largest, as a multiple of its accuracy."""


@dataclass(frozen=True, slots=True)
class TorusNorm:
    """A norm, and the torus that gives it."""

    norm: float
    twists: tuple[int, ...] = ()
    counts: tuple[int, ...] = ()


def torus_norm(convolution: Convolution) -> TorusNorm | None:
    """Return the lowest norm found among tori that carry the convolution; None if none does."""
    axes = axes_of(convolution)
    if any(not axis.taps for axis in axes):
        return TorusNorm(0.0)
    extended = [axis for axis in axes if axis.length > 1]
    if not all(axis.length > 1 or axis.fits_alone() for axis in axes):
        return None
    tori = list(_choices(extended))
    if extended and not tori:
        return None
    kernel = phases_of(convolution, axes)
    exponent = int(np.frexp(np.abs(kernel).max())[1])
    lengths = tuple(axis.length for axis in extended)
    points = min(math.prod(tori[0].shape) if tori else 1, _FEW)
    symbol = _Symbol.of(np.ldexp(kernel, -exponent), lengths, points)
    torus, numbers, squares = _chosen(symbol, tori or [_Torus((), ())])
    peak = symbol.peak(torus, numbers[_highest(squares, _PROMISING, _ROUGH)])
    with np.errstate(over="ignore"):
        norm = float(np.ldexp(peak, exponent))
    return TorusNorm(norm, torus.twists, torus.counts)


def _choices(axes: Sequence[Axis]) -> Iterator[_Torus]:
    """Yield tori that carry all axes and are worth a look, the most promising first."""
    least = [_least(axis) for axis in axes]
    fewest = tuple(count for count in least if count is not None)
    if not len(fewest) == len(axes) > 0:
        return
    twists = itertools.product((1, 0), repeat=len(axes))
    if max(fewest) > _LARGE:
        sizes = [tuple(n + n % 2 for n in fewest), fewest]
    else:
        sizes = [fewest, tuple(n + (n <= _SMALL) for n in fewest)]
    for counts, twist in dict.fromkeys(itertools.product(sizes, twists)):
        pairs = zip(axes, counts, twist, strict=True)
        if all(n <= MAX_COUNT and axis.fits(n, turn) for axis, n, turn in pairs):
            yield _Torus(counts, twist)
            if max(fewest) > _LARGE:
                return


def _least(axis: Axis) -> int | None:
    """Return the smallest number of frequencies that carries an axis, if it is found."""
    start = -(-len(axis.outputs) // axis.apart)
    tries = (*range(start, start + _TRIES), start + axis.length, start + 2 * axis.length)
    return next((n for n in tries if axis.fits(n, 1) or axis.fits(n, 0)), None)


@dataclass(frozen=True, slots=True)
class _Torus:
    """The frequencies π(2k + twist)/count along each axis; half of the last axis suffices."""

    counts: tuple[int, ...]
    twists: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """How many numbers k there are along each axis."""
        if not self.counts:
            return ()
        return (*self.counts[:-1], (self.counts[-1] - self.twists[-1]) // 2 + 1)

    def angles(self, numbers: IndexArray) -> Array:
        """Return the frequencies at these places of the flat grid: [n, axes]."""
        if not self.counts:
            return np.zeros((len(numbers), 0))
        places = np.stack(np.unravel_index(numbers, self.shape), axis=1)
        return np.asarray(np.pi * (2 * places + self.twists) / self.counts, dtype=np.float64)

    def neighbours(self, numbers: IndexArray, step: int) -> IndexArray:
        """Return the places at these distances along any axes, and the places themselves."""
        places = np.stack(np.unravel_index(numbers, self.shape), axis=1)
        moves = np.array(list(itertools.product((-step, 0, step), repeat=len(self.shape))))
        moved = (places[:, None] + moves).reshape(-1, len(self.shape))
        sizes = np.array(self.shape)
        moved[:, :-1] %= sizes[:-1]
        moved[:, -1] = np.clip(moved[:, -1], 0, sizes[-1] - 1)
        return np.unique(np.ravel_multi_index(tuple(moved.T), self.shape)).astype(np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class _Symbol:
    """Estimates norms of P(w) = Σ_j K_j·exp(i·Σ_a j_a·w_a). lengths: as in `fine`.

    rough: P or PP* in single precision, if that suffices.
    """

    rough: Symbol | GramSymbol
    fine: Symbol
    lengths: tuple[int, ...]

    @classmethod
    def of(cls, kernel: Array, lengths: tuple[int, ...], points: int) -> _Symbol:
        """Return the symbol of a kernel, as in `Symbol`, for a look at this many frequencies."""
        single: Any = kernel.astype(np.float32) if min(kernel.shape[2:]) > 1 else kernel
        return cls(symbol_of(single, lengths, points), Symbol(kernel, lengths), lengths)

    def squares(
        self, torus: _Torus, numbers: IndexArray, accuracy: float, least: float = 0.0
    ) -> Array:
        """Return estimates of ‖P(w)‖² from below, the largest of all groups: [n].

        Those below `least`, or far from the largest, are less accurate.
        """
        form = self.rough if accuracy >= _ROUGH else self.fine
        estimated = estimated_eigenvalues if isinstance(form, GramSymbol) else estimated_squares
        step = max(1, _AT_ONCE // form.size)
        found = [np.zeros(0)]
        for start in range(0, len(numbers), step):
            some = numbers[start : start + step]
            squares = estimated(_matrices(form, torus, some), accuracy, least)
            found.append(squares.reshape(len(some), -1).max(axis=1))
            least = max(least, float(squares.max()))
        return np.concatenate(found)

    def peak(self, torus: _Torus, numbers: IndexArray) -> float:
        """Return max ‖P(w)‖ over a few frequencies, almost exact at those that come closest."""
        squares = self.squares(torus, numbers, _FINE)
        numbers = numbers[_highest(squares, _PEAKS, _FINE)]
        stack = _matrices(self.fine, torus, numbers)
        if len(stack) > _PEAKS:
            stack = stack[np.argsort(-estimated_squares(stack, _FINE, 0.0))[:_PEAKS]]
        return max(map(spectral_norm, stack))

    def look(self, torus: _Torus) -> tuple[IndexArray, Array]:
        """Return frequency indices, and estimates there: at all, or around the peaks among many."""
        points = math.prod(torus.shape)
        if points <= _FEW:
            numbers = np.arange(points, dtype=np.int64)
            return numbers, self.squares(torus, numbers, _ROUGH)
        steps = [
            max(1, n // (_PER_TAP * taps))
            for n, taps in zip(torus.counts, self.lengths, strict=True)
        ]
        lines = [np.arange(0, n, step) for n, step in zip(torus.shape, steps, strict=True)]
        grid = np.ravel_multi_index(np.ix_(*lines), torus.shape).ravel().astype(np.int64)
        seen = dict(zip(grid.tolist(), self.squares(torus, grid, _ROUGH).tolist(), strict=True))
        step = max(steps)
        while True:
            best = sorted(seen, key=lambda number: -seen[number])[:_PROMISING]
            near = torus.neighbours(np.array(best, dtype=np.int64), step)
            new = np.array([n for n in near.tolist() if n not in seen], dtype=np.int64)
            if not len(new) and step == 1:
                break
            values = self.squares(torus, new, _ROUGH).tolist()
            seen.update(zip(new.tolist(), values, strict=True))
            step = max(1, step // 2)
        return np.array(list(seen), dtype=np.int64), np.array(list(seen.values()))


def _chosen(symbol: _Symbol, tori: Sequence[_Torus]) -> tuple[_Torus, IndexArray, Array]:
    """Return the torus whose peak is lowest, by rough estimates; and these, by frequency.

    The first one is evaluated everywhere, the others close to its peaks, and the best of them
    everywhere.
    """
    first = tori[0]
    numbers, squares = symbol.look(first)
    least = float(squares.max())
    if len(tori) == 1 or math.prod(first.shape) > _FEW:
        return first, numbers, squares
    peaks = first.angles(numbers[np.argsort(-squares)[:_PROMISING]])
    other: _Torus | None = None
    for torus in tori[1:]:
        angles = torus.angles(np.arange(math.prod(torus.shape), dtype=np.int64))
        some = min(2 * _PROMISING, _PEAKS + len(angles) // _PART)
        near = np.argsort(_distances(angles, peaks), kind="stable")[:some]
        highest = 0.0
        for part in (near[:_PEAKS], near[_PEAKS:]):
            if len(part) and highest < least:
                highest = max(highest, float(symbol.squares(torus, part, _ROUGH).max()))
        if highest < least:
            least, other = highest, torus
    if other is None:
        return first, numbers, squares
    seen = symbol.look(other)
    better = float(seen[1].max()) < float(squares.max())
    return (other, *seen) if better else (first, numbers, squares)


def _highest(squares: Array, most: int, accuracy: float) -> IndexArray:
    """Return which estimates, accurate to this, may be the largest: not too many, in order."""
    order = np.argsort(-squares)[:most]
    near: IndexArray = order[squares[order] >= (1.0 - _AWAY * accuracy) * squares.max()]
    return near


def _matrices(form: Symbol | GramSymbol, torus: _Torus, numbers: IndexArray) -> Matrices:
    """Return P or PP* at frequencies, in all groups: [n · groups, ...]."""
    powers = np.exp(1j * (torus.angles(numbers) @ form.exponents.T))
    entries = form.even if isinstance(form, GramSymbol) else form.kernel
    return form.matrices(powers.astype(np.result_type(entries, np.complex64)))


def _distances(angles: Array, peaks: Array) -> Array:
    """Return distances from each frequency to the nearest peak or its negative."""
    both = np.concatenate((peaks, -peaks))
    apart = np.abs((angles[:, None] - both + np.pi) % (2.0 * np.pi) - np.pi)
    return np.asarray((apart**2).sum(axis=2).min(axis=1), dtype=np.float64)
