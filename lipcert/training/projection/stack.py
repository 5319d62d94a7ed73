"""Stacks: many matrices of one size, whose norms are guessed, and proved, together.

What enters: the numbers of all parameters. What leaves: for each use a certified bound of its
norm. Invariant: a guess only chooses the shift of the next proof; it is within 2^-10 above a lower
estimate of the eigenvalue or above a shift whose proof failed, so that bounds are as tight as that.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, final

import numpy as np

from lipcert.core.program import IndexArray
from lipcert.training.projection.matrices import Matrices, matrices_of
from lipcert.training.projection.measure import Measure, Numbers
from lipcert.training.projection.proof import (
    BoolArray,
    Matrix,
    below,
    estimate_largest,
    frobenius_norms,
    product_margin,
)
from lipcert.training.projection.uses import Use
from lipcert.upper import FloatArray

_SLACK: Final = 2.0**-10  # of an eigenvalue
_EXACT_SLACK: Final = 2.0**-40  # where a matrix is a number
_MORE_ROUNDS: Final = 8  # of the power iteration, where one was not enough
_DIRECT_SIDE: Final = 64  # up to here a full eigenvalue routine is as cheap
_SMALL: Final = 128  # up to here a proof costs little more than a guess
_ACCURACY: Final = 1e-5
_ATTEMPTS: Final = 24
_PATIENCE: Final = 3  # attempts before the slack grows
_FLOOR: Final = 2.0**-80
_ROUNDED: Final = 1.0 - 2.0**-48
_CHEAP: Final = 2.0**19  # multiplications that cost less than another stack


@final
@dataclass(frozen=True, slots=True, eq=False)
class Stack(Measure):
    """Matrices of several uses. parts: those of each use; owners: the use of each matrix.

    limits: shifts at which a use is proved to be within its limit. vectors: where the power
    iteration stands, from one call to the next: [n, side, 1]. inside: which uses were within their
    limits in the last call; where all were, that is asked first, and often no guess is needed.
    """

    matrices: tuple[Matrices, ...]
    parts: tuple[slice, ...]
    owners: IndexArray
    factors: tuple[float, ...]
    limits: FloatArray
    grams: Matrix = field(repr=False)
    vectors: Matrix = field(repr=False)
    inside: BoolArray = field(repr=False)

    @classmethod
    def of(cls, side: int, uses: Sequence[Use], matrices: Sequence[Matrices]) -> Stack:
        """All of them real, or all complex, and of at most this side; behind them are zeros."""
        ends = list(itertools.accumulate(item.count for item in matrices))
        parts = tuple(map(slice, [0, *ends], ends))
        owners = np.repeat(np.arange(len(ends)), [item.count for item in matrices])
        factors = [item.factor * (1.0 + product_margin(side, item.longer)) for item in matrices]
        limits = [(use.limit / f) ** 2 * _ROUNDED for use, f in zip(uses, factors, strict=True)]
        kind = np.complex128 if matrices[0].is_complex else np.float64
        start = np.random.default_rng(0).standard_normal((len(owners), side, 1))
        for item, rows in zip(matrices, parts, strict=True):
            start[rows, item.side :] = 0.0
        grams: Matrix = np.zeros((len(owners), side, side), dtype=kind)
        vectors: Matrix = start.astype(kind)
        spreads = tuple(item.spread for item in matrices)
        return cls(
            tuple(uses),
            spreads,
            tuple(matrices),
            parts,
            owners,
            tuple(factors),
            np.array(limits),
            grams,
            vectors,
            np.zeros(len(ends), dtype=np.bool_),
        )

    def bounds(self, numbers: Numbers, *, tight: bool) -> Sequence[float]:
        """Returns B ≥ norm of each use: factor·√q, where all matrices of a use are below q.

        Proof: `product_margin`, and the factor of the matrices. What was proved at a smaller
        shift holds at a larger one. The floor keeps q above all underflow.
        Attained: within 2^-11 of what the matrices can tell.
        """
        with np.errstate(all="ignore"):
            for use, item, rows in zip(self.uses, self.matrices, self.parts, strict=True):
                item.gram(numbers[use.parameter], self.grams[rows, : item.side, : item.side])
            squares = self._proved(tight)
        pairs = zip(squares.tolist(), self.factors, strict=True)
        return [math.sqrt(square) * factor for square, factor in pairs]

    def _proved(self, tight: bool) -> FloatArray:
        """For each use, q such that all of its matrices are proved to be below it; inf for none."""
        is_asked = not tight and self.grams.shape[-1] <= _SMALL and bool(self.inside.all())
        if is_asked and below(self.grams, self.limits[self.owners]).all():
            return self.limits
        squares = self._guessed(tight)
        self.inside[:] = squares <= self.limits
        return squares

    def _guessed(self, tight: bool) -> FloatArray:
        """`_proved`, at shifts that are guessed."""
        slack = _SLACK if self.grams.shape[-1] > 1 else _EXACT_SLACK
        peaks = self._largest(self._iterated(1))
        squares = self._shifts(peaks, slack, tight)
        proved = below(self.grams, squares[self.owners])
        if proved.all():
            return squares
        return self._proved_at_last(peaks, squares, np.flatnonzero(~proved), tight)

    def _proved_at_last(
        self, peaks: FloatArray, squares: FloatArray, left: IndexArray, tight: bool
    ) -> FloatArray:
        """`_proved` for those matrices that a first attempt left, with better estimates."""
        slack = _SLACK
        for attempt in range(_ATTEMPTS):
            failed = np.unique(self.owners[left])
            peaks[failed] = np.maximum(peaks[failed], squares[failed])
            left = left[np.isfinite(peaks)[self.owners[left]]]
            if not left.size:
                break
            self._sharpen(peaks, left, attempt)
            active = np.unique(self.owners[left])
            squares[active] = self._shifts(peaks, slack, tight)[active]
            left = left[~below(self._chosen(left), squares[self.owners[left]])]
            slack = slack if attempt < _PATIENCE else 4.0 * slack
        squares[~np.isfinite(peaks)] = math.inf
        squares[np.unique(self.owners[left])] = math.inf
        return squares

    def _shifts(self, peaks: FloatArray, slack: float, tight: bool) -> FloatArray:
        """A little above the peaks, or the limit where that is between, or where it suffices."""
        guesses = np.maximum(peaks * (1.0 + slack), self.limits * _FLOOR)
        inside = peaks < self.limits
        if tight:
            inside &= guesses > self.limits
        return np.where(inside, self.limits, guesses)

    def _largest(self, values: FloatArray) -> FloatArray:
        """Over the matrices of each use."""
        if len(values) == len(self.uses):
            return values
        return np.maximum.reduceat(values, [rows.start for rows in self.parts])

    def _sharpen(self, peaks: FloatArray, which: IndexArray, attempt: int) -> None:
        """Better estimates of the matrices that could not be proved, if that was worth it."""
        if attempt > 1:
            return
        grams = self._chosen(which)
        if grams.shape[-1] <= _DIRECT_SIDE:
            estimates = np.linalg.eigvalsh(grams)[:, -1]
        elif attempt == 0:
            estimates = self._iterated(_MORE_ROUNDS, which)
        else:
            estimates = estimate_largest(grams, _ACCURACY)
        np.maximum.at(peaks, self.owners[which], estimates)

    def _iterated(self, rounds: int, which: IndexArray | None = None) -> FloatArray:
        """Lower estimates of the largest eigenvalues, by the power iteration: [n].

        What is not finite has none, and leaves the vectors to the numbers that come after it.
        """
        grams = self.grams if which is None else self._chosen(which)
        if grams.shape[-1] == 1:
            return np.array(grams[:, 0, 0].real)
        vectors = self.vectors if which is None else self.vectors[which]
        for _ in range(rounds):
            nearer = _product(grams, vectors)
            images = _product(grams, nearer)
            before, after = frobenius_norms(nearer), frobenius_norms(images)
            wide = after[:, None, None]
            np.divide(images, wide, out=vectors, where=(wide > 0.0) & (wide < np.inf))
        if which is not None:
            self.vectors[which] = vectors
        return np.divide(after, before, out=np.zeros_like(after), where=before != 0.0)

    def _chosen(self, which: IndexArray) -> Matrix:
        return self.grams if len(which) == len(self.grams) else self.grams[which]


def _product(left: Matrix, right: Matrix) -> Matrix:
    return np.asarray(left @ right, dtype=left.dtype)


def stacks_of(uses: Sequence[Use]) -> list[Stack]:
    """Stacks of as many matrices as possible, for uses that are maps; those that are 0 drop out."""
    found: dict[tuple[bool, int], list[tuple[Use, Matrices]]] = {}
    for use in uses:
        if use.node is not None and use.operand is not None:
            matrices = matrices_of(use.node, use.operand)
            if matrices is not None:
                found.setdefault((matrices.is_complex, matrices.side), []).append((use, matrices))
    for small, large in itertools.pairwise(sorted(found)):
        count = sum(matrices.count for _, matrices in found[small])
        work = count * large[1] ** 3 * (4 if large[0] else 1)
        if small[0] == large[0] and small[1] > 1 and work <= _CHEAP:
            found[large] += found.pop(small)
    return [Stack.of(side, *zip(*pairs, strict=True)) for (_, side), pairs in found.items()]
