"""Softmax and its logarithm along one axis, from how far logits of one slice can be apart."""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Self

import numpy as np

from lipcert.core.arithmetic import add_up, multiply_up, sqrt_up
from lipcert.core.enclosures import exp, log
from lipcert.core.interval import Interval, clip, exact, up
from lipcert.core.program import Shape
from lipcert.core.rules.base import Rule
from lipcert.core.rules.facts import Cotangent, Fact, Hull, root_up
from lipcert.core.token_kinds import Softmax


@dataclass(frozen=True, slots=True)
class _Spread:
    """pair ≥ z_i − z_j, above_mean ≥ z_i − the mean of the other logits, in every slice.

    Both hold for every t·z with 0 ≤ t ≤ 1, too.
    """

    classes: int
    pair: float
    above_mean: float

    @classmethod
    def of(cls, op: Softmax, logits: Fact, shape: Shape) -> Self:
        """From the box, and by Cauchy–Schwarz: z_i − z_j ≤ √2·X, the other √(n/(n − 1))·X."""
        axis = op.axis % len(shape)
        classes = shape[axis]
        if classes == 1:
            return cls(classes, 0.0, 0.0)
        low, high = np.min(logits.box.lo, axis=axis), np.max(logits.box.hi, axis=axis)
        with np.errstate(invalid="ignore", over="ignore"):
            by_box = float(np.max(up(high - low), initial=0.0))
        radius = min(logits.norm, logits.row_norm) if axis == len(shape) - 1 else logits.norm
        pair = min(by_box, multiply_up(sqrt_up(2.0), radius))
        root = sqrt_up(Fraction(classes, classes - 1))
        return cls(classes, pair, min(pair, multiply_up(root, radius)))

    @property
    def share(self) -> Interval:
        """Of a probability: 1/p_i = 1 + Σ_{j≠i} e^(z_j − z_i).

        Proof of the upper end: Jensen, Σ_{j≠i} e^(z_j − z_i) ≥ (n − 1)·e^(mean_j z_j − z_i). The
        lower end bounds each term.
        """
        ends = Interval(np.asarray(-self.above_mean), np.asarray(self.pair))
        others = exact(self.classes - 1.0) * exp(ends)
        return clip((exact(1.0) + others).reciprocal(), 0.0, 1.0)

    @property
    def miss(self) -> float:
        """1 − p_i is no larger."""
        if self.classes == 1:
            return 0.0
        return min(add_up(1.0, -float(self.share.lo)), 1.0)

    @property
    def largest(self) -> float:
        """An upper bound of all probabilities."""
        return float(self.share.hi)


class SoftmaxRule(Rule[Softmax]):
    """Probabilities p, or their logarithms."""

    def fact(self) -> Fact:
        """√(slices·max p), or √N·ln n + L·X of the logarithm for N entries, and ranges of entries.

        Proof: ‖p‖² = Σ p_i² ≤ max p·Σ p_i = max p in a slice. All logarithms are −ln n at z = 0,
        and L holds on the way from there (`_Spread`).
        Attained: approached by unbounded logits; by equal ones at X = 0.
        """
        if self.op.logarithm:
            return self._logarithm()
        spread, shape = self._spread, self.shape
        axis, slice_norm = self.op.axis % len(shape), sqrt_up(spread.largest)
        return Fact.of(
            shape,
            multiply_up(root_up(math.prod(shape) // spread.classes), slice_norm),
            spread.share,
            row_norm=slice_norm if axis == len(shape) - 1 else math.inf,
            column_norm=slice_norm if axis == len(shape) - 2 else math.inf,
        )

    def lipschitz(self, _: int) -> float:
        """min(½, max p), or √(n·max p) of the logarithm; 0 for one class.

        Proof: row i of diag(p) − ppᵀ has p_i(1 − p_i) on the diagonal and the same sum of
        magnitudes off it, 2p_i(1 − p_i) ≤ ½ together (Gershgorin); and diag(p) − ppᵀ ≤ diag(p). For
        the logarithm I − 1pᵀ, 1pᵀ is a projection that is neither 0 nor I, and then
        ‖I − Q‖ = ‖Q‖ = √n·‖p‖ with ‖p‖² ≤ max p.
        Attained: two classes at equal logits; approached by unbounded ones.
        """
        spread = self._spread
        if spread.classes == 1:
            return 0.0
        if self.op.logarithm:
            return sqrt_up(multiply_up(float(spread.classes), spread.largest))
        return min(0.5, spread.largest)

    def pulled(self, index: int, cotangent: Cotangent) -> Cotangent:
        """L·l; of the logarithm of a single slice, a hull as it is, and what becomes of a label;
        of P slices along the last axis, the same of each, and √P times its norm.

        Proof: Jᵀg = (I − p1ᵀ)g = g − p·(1ᵀg) for the logarithm, and the members of a hull sum to 0.
        No slice depends on the logits of another.
        """
        found = super().pulled(index, cotangent)
        if not self.op.logarithm:
            return found
        if self.shape[self.op.axis] == math.prod(self.shape):
            return self._of_slice(cotangent) or found
        return self._of_slices(cotangent, found.norm)

    def _of_slices(self, cotangent: Cotangent, norm: float) -> Cotangent:
        """What several slices receive from their logarithms. norm: that is no longer, anyway."""
        is_last = self.op.axis % len(self.shape) == len(self.shape) - 1
        row = cotangent.along(self.shape) if is_last else None
        own = None if row is None else self._of_slice(row)
        if own is None:
            return Cotangent(norm)
        slices = math.prod(self.shape[:-1])
        by_rows = multiply_up(root_up(slices), own.norm)
        return Cotangent(min(norm, by_rows), rows=(self.shape[-1], own))

    def _of_slice(self, cotangent: Cotangent) -> Cotangent | None:
        """What a slice receives from its logarithm; None where only the norm of that is known."""
        if cotangent.hull is not None and cotangent.hull.classes == self.shape[self.op.axis]:
            return cotangent
        return None if cotangent.label is None else self._behind_label(cotangent.label)

    @property
    def _spread(self) -> _Spread:
        return _Spread.of(self.op, self.x, self.shape)

    def _behind_label(self, label: float) -> Cotangent:
        """What −t·e_y, t ≤ label, becomes before the logarithm: t(p − e_y), for a single slice.

        norm ≤ label·√(m(m + M)) with m = sup (1 − p_y) and M = max p; in label·m·conv{e_j − e_y}.
        Proof: as in `pulled`, 1ᵀg = −t. p − e_y = Σ_{j≠y} p_j(e_j − e_y) is (1 − p_y) times a
        member of the hull, and ‖p − e_y‖² ≤ (1 − p_y)² + (1 − p_y)·max p.
        Attained: approached by unbounded logits; by equal ones at X = 0.
        """
        spread = self._spread
        miss = spread.miss
        square = multiply_up(miss, add_up(miss, spread.largest))
        hull = Hull(spread.classes, multiply_up(label, miss))
        return Cotangent(multiply_up(label, sqrt_up(square)), hull)

    def _logarithm(self) -> Fact:
        """ln p_i ≥ −pair − ln n, as 1/p_i is a sum of n terms."""
        spread, one = self._spread, self._spread.classes == 1
        count = 0.0 if one else float(log(exact(float(spread.classes))).hi)
        top = 0.0 if one else min(float(log(exact(spread.largest)).hi), 0.0)
        low = -add_up(spread.pair, count)
        growth = multiply_up(self.lipschitz(0), self.x.norm)
        at_zero = multiply_up(root_up(math.prod(self.shape)), count)
        box = Interval(np.asarray(min(low, top)), np.asarray(top))
        return Fact.of(self.shape, add_up(at_zero, growth), box)
