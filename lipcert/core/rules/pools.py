"""Pools: means and maxima over windows, one axis after the other.

At a tie a framework picks any of the equal entries; the generalised Jacobians are the convex
combinations of the picks, and the rule of maxima is convex in them.
"""

import math
from typing import Final

import numpy as np

from lipcert.core.arithmetic import multiply_up, sqrt_up
from lipcert.core.interval import Array, Interval, clip, down, up
from lipcert.core.rules.base import Rule
from lipcert.core.rules.facts import Fact, root_up
from lipcert.core.rules.windows import Axis, axes_of, overlap, read_axes
from lipcert.core.window_kinds import AveragePool, MaxPool

_LARGEST: Final = 1024
_POSITIVE: Final = 1e-12


class MaxPoolRule(Rule[MaxPool]):
    """y = the maxima of x over windows."""

    def fact(self) -> Fact:
        """√overlap·X, and the maxima of both ends of the box; no bound for windows of padding.

        Proof: every output is an entry, and no entry is more than `overlap` outputs.
        Attained: one entry is the maximum of every window that reads it.
        """
        axes = read_axes(self.op.window, self.before)
        if axes is None:
            return Fact.of(self.shape)
        box = Interval(_largest(self.x.box.lo, axes), _largest(self.x.box.hi, axes))
        return Fact.of(self.shape, multiply_up(self.lipschitz(0), self.x.norm), box)

    def lipschitz(self, _: int) -> float:
        """√overlap.

        Proof: the Jacobian mixes rows that pick one entry each: rows of sum 1, columns of sum
        ≤ overlap, and ‖J‖² is at most the product of both. Attained: as the norm.
        """
        axes = read_axes(self.op.window, self.before)
        return root_up(overlap(axes)) if axes else math.inf


class AveragePoolRule(Rule[AveragePool]):
    """y = the means of x over windows."""

    def fact(self) -> Fact:
        """L·X, and the means of both ends of the box. Attained: with the norm of the map."""
        box = self.x.box
        nonnegative = bool((box.lo >= 0.0).all())
        for axis, matrix in enumerate(self._matrices, start=2):
            full = box.broadcast((*box.shape[:axis], self.before[axis], *box.shape[axis + 1 :]))
            rows = Interval(np.moveaxis(full.lo, axis, -1), np.moveaxis(full.hi, axis, -1))
            found = rows @ Interval(np.maximum(down(matrix), 0.0), up(matrix)).transposed()
            box = Interval(np.moveaxis(found.lo, -1, axis), np.moveaxis(found.hi, -1, axis))
        if nonnegative:
            box = clip(box, 0.0, math.inf)
        return Fact.of(self.shape, multiply_up(self.lipschitz(0), self.x.norm), box)

    def lipschitz(self, _: int) -> float:
        """≥ the norm of the map, a Kronecker product of those of single axes.

        Proof: with S = AAᵀ ≥ 0 entry by entry and any v > 0, ‖A‖² = ‖S‖ ≤ max_i (Sv)_i/v_i, the
        ∞-norm of V⁻¹SV (Collatz and Wielandt). Sums and products of non-negative numbers of which
        each passes fewer than n operations lose less than a factor of 1 + 2nu. v may come from
        anywhere. Attained: by the eigenvector of the largest eigenvalue.
        """
        norm = 1.0
        for matrix in self._matrices:
            terms = sum(matrix.shape) + 8
            v = _eigenvector(matrix)
            quotients = (matrix @ (matrix.T @ v)) / v
            square = up(up(quotients * (1.0 + terms * 2.0**-51)) + 2.0**-1000)
            norm = multiply_up(norm, sqrt_up(float(np.max(square, initial=0.0))))
        return norm

    @property
    def _matrices(self) -> list[Array]:
        """The map of each axis, [outputs, positions]; entries are rounded quotients."""
        axes = axes_of(self.op.window, self.before[2:])
        return [_matrix(axis, self.op.counts_padding) for axis in axes]


def _matrix(axis: Axis, counts_padding: bool) -> Array:
    inside = axis.at_outputs
    divisors = np.full(len(inside), inside.shape[1]) if counts_padding else inside.sum(axis=1)
    if not divisors.all():
        raise ValueError("a mean over a window that reads nothing")
    matrix = np.zeros((len(inside), axis.size))
    outputs, taps = np.nonzero(inside)
    matrix[outputs, axis.reads[outputs, taps]] = 1.0 / divisors[outputs]
    return matrix


def _eigenvector(matrix: Array) -> Array:
    """Return an approximate eigenvector of the largest eigenvalue of AAᵀ, made positive."""
    if len(matrix) > _LARGEST:
        return np.ones(len(matrix))
    vectors = np.linalg.eigh(matrix @ matrix.T)[1]
    return np.asarray(np.maximum(np.abs(vectors[:, -1]), _POSITIVE), dtype=np.float64)


def _largest(end: Array, axes: tuple[Axis, ...]) -> Array:
    """Return the maxima over windows, one axis after the other; a repeated end stays repeated."""
    for place, axis in enumerate(axes, start=2):
        if end.shape[place] == axis.size != 1:
            last = np.moveaxis(end, place, -1)
            padded = np.append(last, np.full((*last.shape[:-1], 1), -np.inf), axis=-1)
            end = np.moveaxis(np.max(padded[..., axis.reads], axis=-1), -1, place)
    return end
