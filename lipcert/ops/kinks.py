"""Scalar functions with kinks: piecewise linear ones, and those that turn exponential below zero.

What enters: the attributes of the node, as the file states them (negative slopes and scales are
legal). What leaves: frozen `ScalarFunction`s. Invariant: at a kink every derivative between the
two one-sided ones counts, whatever a framework picks.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Final, final

import numpy as np

from lipcert.interval import Interval
from lipcert.ops.scalar import (
    ScalarFunction,
    constant,
    expected_sign,
    exponential,
    joined_at_zero,
)
from lipcert.upper import ONE, FloatArray, Lower, Upper, maximum

_ZERO: Final = constant(0.0)
_ONE: Final = constant(1.0)


def _size(number: float) -> Upper:
    return Upper(abs(number))


def _finite(**attributes: float) -> None:
    for name, number in attributes.items():
        if not math.isfinite(number):
            raise ValueError(f"attribute {name} is {number}, which is not a finite number")


@final
@dataclass(frozen=True, slots=True)
class Relu(ScalarFunction):
    """max(x, 0)."""

    @property
    def lipschitz(self) -> Upper:
        """1."""
        return ONE

    def value(self, x: FloatArray) -> FloatArray:
        """max(x, 0)."""
        return np.maximum(x, 0.0)

    def image(self, box: Interval) -> Interval:
        """Exact."""
        return box.clip(0.0, math.inf)

    def derivative(self, box: Interval) -> Interval:
        """0 below the kink, 1 above, [0, 1] on it."""
        return joined_at_zero(box, _ZERO, _ONE)


@final
@dataclass(frozen=True, slots=True)
class Abs(ScalarFunction):
    """|x|."""

    @property
    def lipschitz(self) -> Upper:
        """1."""
        return ONE

    def value(self, x: FloatArray) -> FloatArray:
        """|x|."""
        return np.abs(x)

    def image(self, box: Interval) -> Interval:
        """Exact."""
        return box.absolute()

    def derivative(self, box: Interval) -> Interval:
        """−1 below the kink, 1 above, [−1, 1] on it."""
        return joined_at_zero(box, -_ONE, _ONE)


@final
@dataclass(frozen=True, slots=True)
class LeakyRelu(ScalarFunction):
    """x for x ≥ 0, slope·x below; any finite slope."""

    slope: float

    def __post_init__(self) -> None:
        _finite(slope=self.slope)

    @property
    def lipschitz(self) -> Upper:
        """max(1, |slope|)."""
        return maximum([ONE, _size(self.slope)])

    def value(self, x: FloatArray) -> FloatArray:
        """x or slope·x."""
        return np.where(x >= 0.0, x, self.slope * x)

    def image(self, box: Interval) -> Interval:
        """Each half of the box by its own slope."""
        below = box.clip(-math.inf, 0.0) * constant(self.slope)
        image = joined_at_zero(box, below, box.clip(0.0, math.inf))
        return expected_sign(box, image) if self.slope >= 0.0 else image

    def derivative(self, box: Interval) -> Interval:
        """The slope below the kink, 1 above, everything between on it."""
        return joined_at_zero(box, constant(self.slope), _ONE)


@final
@dataclass(frozen=True, slots=True)
class Clip(ScalarFunction):
    """min(max(x, low), high); an end may be infinite."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not self.low <= self.high or self.low == math.inf or self.high == -math.inf:
            raise ValueError(f"Clip needs low <= high with a number between, not {self}")

    @property
    def lipschitz(self) -> Upper:
        """1."""
        return ONE

    @property
    def origin(self) -> Upper:
        """|clip(0)|."""
        return _size(min(max(0.0, self.low), self.high))

    def value(self, x: FloatArray) -> FloatArray:
        """The nearest point of [low, high]."""
        return np.clip(x, self.low, self.high)

    def image(self, box: Interval) -> Interval:
        """Exact."""
        return box.clip(self.low, self.high)

    def derivative(self, box: Interval) -> Interval:
        """1 inside the range, 0 outside, [0, 1] on its ends."""
        inside = (box.hi >= self.low) & (box.lo <= self.high)
        outside = (box.lo <= self.low) | (box.hi >= self.high)
        return Interval(np.where(outside, 0.0, 1.0), np.where(inside, 1.0, 0.0))


@final
@dataclass(frozen=True, slots=True)
class HardSigmoid(ScalarFunction):
    """min(max(slope·x + offset, 0), 1); any sign of the slope."""

    slope: float
    offset: float

    def __post_init__(self) -> None:
        _finite(slope=self.slope, offset=self.offset)

    @property
    def lipschitz(self) -> Upper:
        """|slope|."""
        return _size(self.slope)

    @property
    def origin(self) -> Upper:
        """The offset, clipped."""
        return _size(min(max(self.offset, 0.0), 1.0))

    def value(self, x: FloatArray) -> FloatArray:
        """The clipped line."""
        return np.clip(self.slope * x + self.offset, 0.0, 1.0)

    def image(self, box: Interval) -> Interval:
        """The line's image, clipped."""
        return self._line(box).clip(0.0, 1.0)

    def derivative(self, box: Interval) -> Interval:
        """The slope where the line is inside (0, 1), 0 outside, both on the kinks."""
        inside = Clip(0.0, 1.0).derivative(self._line(box))
        ends = inside.lo * self.slope, inside.hi * self.slope
        return Interval(np.minimum(*ends), np.maximum(*ends))

    def _line(self, box: Interval) -> Interval:
        return box * constant(self.slope) + constant(self.offset)


@final
@dataclass(frozen=True, slots=True)
class SoftThreshold(ScalarFunction):
    """x − clip(x, −limit, limit): entries shrink towards 0 by the limit."""

    limit: float

    def __post_init__(self) -> None:
        _finite(limit=self.limit)
        if self.limit < 0.0:
            raise ValueError(f"the limit of a soft threshold is negative: {self.limit}")

    @property
    def lipschitz(self) -> Upper:
        """1."""
        return ONE

    def value(self, x: FloatArray) -> FloatArray:
        """x, closer to 0."""
        return x - np.clip(x, -self.limit, self.limit)

    def image(self, box: Interval) -> Interval:
        """Exact up to rounding: both parts of max(x − limit, 0) + min(x + limit, 0) rise."""
        above = (box - constant(self.limit)).clip(0.0, math.inf)
        return above + (box + constant(self.limit)).clip(-math.inf, 0.0)

    def derivative(self, box: Interval) -> Interval:
        """0 within the limits, 1 outside, [0, 1] on them."""
        inside = Clip(-self.limit, self.limit).derivative(box)
        return Interval(1.0 - inside.hi, 1.0 - inside.lo)


class _Exponential(ScalarFunction):
    """gain·x for x ≥ 0, gain·scale·(e^{x/width} − 1) below."""

    __slots__ = ()

    @property
    @abstractmethod
    def _parts(self) -> tuple[float, float, float]:
        """gain, scale, width > 0."""

    @property
    def lipschitz(self) -> Upper:
        """|gain|·max(1, |scale|/width): approached at 0 from one of the two sides."""
        gain, scale, width = self._parts
        return _size(gain) * maximum([ONE, _size(scale).over(Lower(width))])

    def value(self, x: FloatArray) -> FloatArray:
        """Either branch."""
        gain, scale, width = self._parts
        return gain * np.where(x > 0.0, x, scale * np.expm1(np.minimum(x, 0.0) / width))

    def image(self, box: Interval) -> Interval:
        """Each half of the box through its monotone branch."""
        gain, scale, _ = self._parts
        below = self._scaled(box).monotone(np.expm1).clip(-1.0, 0.0)
        image = joined_at_zero(
            box,
            below * (constant(gain) * constant(scale)),
            box.clip(0.0, math.inf) * constant(gain),
        )
        return expected_sign(box, image) if gain >= 0.0 and scale >= 0.0 else image

    def derivative(self, box: Interval) -> Interval:
        """(gain·scale/width)·e^{x/width} below the kink, gain above, everything between on it."""
        gain, scale, width = self._parts
        left = constant(gain) * constant(scale) * constant(width).reciprocal()
        below = exponential(self._scaled(box)).clip(0.0, 1.0) * left
        return joined_at_zero(box, below, constant(gain))

    def _scaled(self, box: Interval) -> Interval:
        """The negative half of the box, divided by the width."""
        return box.clip(-math.inf, 0.0) * constant(self._parts[2]).reciprocal()


@final
@dataclass(frozen=True, slots=True)
class Elu(_Exponential):
    """x for x ≥ 0, scale·(e^x − 1) below; the scale may exceed 1 or be negative."""

    scale: float

    def __post_init__(self) -> None:
        _finite(alpha=self.scale)

    @property
    def _parts(self) -> tuple[float, float, float]:
        return 1.0, self.scale, 1.0


@final
@dataclass(frozen=True, slots=True)
class Selu(_Exponential):
    """gain·x for x ≥ 0, gain·scale·(e^x − 1) below (ONNX: gamma and alpha)."""

    scale: float = 1.6732632423543772
    gain: float = 1.0507009873554805

    def __post_init__(self) -> None:
        _finite(alpha=self.scale, gamma=self.gain)

    @property
    def _parts(self) -> tuple[float, float, float]:
        return self.gain, self.scale, 1.0


@final
@dataclass(frozen=True, slots=True)
class Celu(_Exponential):
    """x for x ≥ 0, scale·(e^{x/scale} − 1) below; the scale must be positive."""

    scale: float

    def __post_init__(self) -> None:
        _finite(alpha=self.scale)
        if self.scale <= 0.0:
            raise ValueError(f"Celu with alpha = {self.scale} <= 0 grows exponentially")

    @property
    def _parts(self) -> tuple[float, float, float]:
        return 1.0, self.scale, self.scale
