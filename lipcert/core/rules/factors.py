"""Factors and offsets per channel, and factors of what is negative: BatchNorm and PRelu."""

import math
from collections.abc import Iterator

import numpy as np

from lipcert.core.arithmetic import add_up, multiply_up
from lipcert.core.interval import Interval, clip, exact, hull, norm_up
from lipcert.core.kinds import BatchNorm, PRelu
from lipcert.core.program import Operand, Shape
from lipcert.core.rules.base import Entrywise
from lipcert.core.rules.broadcasting import copies, longest_met, longest_part
from lipcert.core.rules.facts import Fact, root_up


class BatchNormRule(Entrywise[BatchNorm]):
    """y = f·x + t per channel, with f = scale·inverse and t = shift − f·mean."""

    def fact(self) -> Fact:
        """max|f|·X + √P·‖t‖ at P positions.

        Proof: ‖t‖ is at most that of its box, and at most ‖shift‖ + ‖f·mean‖.
        Attained: at X = 0; without t by one channel.
        """
        op, weights, rank = self.op, self.weights, len(self.shape)
        factor = self._factor
        moved = factor * weights.entries(op.mean)
        offset = weights.entries(op.shift) - moved
        added = add_up(weights.norm(op.shift), norm_up(moved.magnitude()))
        added = multiply_up(self._positions, min(added, norm_up(offset.magnitude())))
        box = self.x.box * _per_channel(factor, rank) + _per_channel(offset, rank)
        norm = add_up(multiply_up(self.lipschitz(0), self.x.norm), added)
        return Fact.of(self.shape, norm, box)

    def slopes(self) -> Interval:
        """The factor of each channel. Attained always."""
        return _per_channel(self._factor, len(self.shape))

    def reaches(self) -> Iterator[tuple[Operand, float]]:
        """Scale: (x − mean)·inverse; inverse: (x − mean)·scale; mean: −scale·inverse; shift: 1.

        Proof: each reaches the P positions of its channel only. Over the box, or by
        ‖x_c − mean_c‖ ≤ X + √P·|mean_c|.
        """
        op, weights, rank = self.op, self.weights, len(self.shape)
        mean = weights.entries(op.mean)
        length = add_up(self.x.norm, multiply_up(self._positions, weights.max_abs(op.mean)))
        for operand, other in ((op.scale, op.inverse), (op.inverse, op.scale)):
            factors = _per_channel(weights.entries(other), rank)
            box = (self.x.box - _per_channel(mean, rank)) * factors
            by_norm = multiply_up(length, weights.max_abs(other))
            yield operand, min(by_norm, longest_met(box, self._channels, self.shape))
        yield op.mean, multiply_up(self._positions, self.lipschitz(0))
        yield op.shift, self._positions

    @property
    def _factor(self) -> Interval:
        return self.weights.entries(self.op.scale) * self.weights.entries(self.op.inverse)

    @property
    def _channels(self) -> Shape:
        return (1, *self.op.scale.shape, *[1] * (len(self.shape) - 2))

    @property
    def _positions(self) -> float:
        """√P."""
        return root_up(copies(self._channels, self.shape))


class PReluRule(Entrywise[PRelu]):
    """y = x where x ≥ 0, slope·x elsewhere."""

    def fact(self) -> Fact:
        """c·X with c = max(1, |s|), entries known to be ≥ 0 counting 1, and the image of the box.

        Proof: |y_i| ≤ max(1, |s_i|)·|x_i|, and y_i = x_i where x_i ≥ 0.
        Attained: on one negative entry with the largest |s| ≥ 1, or on a positive one.
        """
        x = self.x
        steepest = max(1.0, self.lipschitz(0))
        below = self._negative * self.weights.entries(self.op.slope)
        image = _either(x.box, below, clip(x.box, 0.0, math.inf))
        norm, run, column = (
            multiply_up(steepest, length) for length in (x.norm, x.row_norm, x.column_norm)
        )
        return Fact.of(self.shape, norm, image, run, column)

    def slopes(self) -> Interval:
        """1 where x > 0, the slope where x < 0, anything between at 0. Attained always."""
        return _either(self.x.box, self.weights.entries(self.op.slope), exact(1.0))

    def reaches(self) -> Iterator[tuple[Operand, float]]:
        """The longest part of min(x, 0), which is ∂y/∂slope, that one slope multiplies.

        Attained: always.
        """
        longest = longest_part(self.x, self._negative, self.shape, self.op.slope.shape)
        yield self.op.slope, min(self.x.norm, longest)

    @property
    def _negative(self) -> Interval:
        return clip(self.x.box, -math.inf, 0.0)


def _per_channel(interval: Interval, rank: int) -> Interval:
    """[channels] along axis 1 of a value of this rank."""
    shape = (1, -1, *[1] * (rank - 2))
    return Interval(interval.lo.reshape(shape), interval.hi.reshape(shape))


def _either(box: Interval, below: Interval, above: Interval) -> Interval:
    """One answer for numbers ≤ 0, one for numbers ≥ 0, both where a box holds 0."""
    both = hull(below, above)
    low = np.where(box.lo > 0.0, above.lo, np.where(box.hi < 0.0, below.lo, both.lo))
    high = np.where(box.lo > 0.0, above.hi, np.where(box.hi < 0.0, below.hi, both.hi))
    return Interval(low, high)
