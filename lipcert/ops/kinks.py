"""Scalar functions with kinks: piecewise linear ones, and those that turn exponential below zero.

What enters: the attributes of the node, as the file states them (negative slopes and scales are
legal). What leaves: frozen `ScalarFunction`s. Invariant: at a kink every derivative between the
two one-sided ones counts, whatever a framework picks.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import final

import numpy as np

from lipcert.ops.scalar import (
    ScalarFunction,
)
from lipcert.upper import FloatArray


def _finite(**attributes: float) -> None:
    for name, number in attributes.items():
        if not math.isfinite(number):
            raise ValueError(f"attribute {name} is {number}, which is not a finite number")


@final
@dataclass(frozen=True, slots=True)
class Relu(ScalarFunction):
    """max(x, 0)."""

    def value(self, x: FloatArray) -> FloatArray:
        """max(x, 0)."""
        return np.maximum(x, 0.0)


@final
@dataclass(frozen=True, slots=True)
class Abs(ScalarFunction):
    """|x|."""

    def value(self, x: FloatArray) -> FloatArray:
        """|x|."""
        return np.abs(x)


@final
@dataclass(frozen=True, slots=True)
class LeakyRelu(ScalarFunction):
    """x for x ≥ 0, slope·x below; any finite slope."""

    slope: float

    def __post_init__(self) -> None:
        _finite(slope=self.slope)

    def value(self, x: FloatArray) -> FloatArray:
        """x or slope·x."""
        return np.where(x >= 0.0, x, self.slope * x)


@final
@dataclass(frozen=True, slots=True)
class Clip(ScalarFunction):
    """min(max(x, low), high); an end may be infinite."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not self.low <= self.high or self.low == math.inf or self.high == -math.inf:
            raise ValueError(f"Clip needs low <= high with a number between, not {self}")

    def value(self, x: FloatArray) -> FloatArray:
        """The nearest point of [low, high]."""
        return np.clip(x, self.low, self.high)


@final
@dataclass(frozen=True, slots=True)
class HardSigmoid(ScalarFunction):
    """min(max(slope·x + offset, 0), 1); any sign of the slope."""

    slope: float
    offset: float

    def __post_init__(self) -> None:
        _finite(slope=self.slope, offset=self.offset)

    def value(self, x: FloatArray) -> FloatArray:
        """The clipped line."""
        return np.clip(self.slope * x + self.offset, 0.0, 1.0)


@final
@dataclass(frozen=True, slots=True)
class SoftThreshold(ScalarFunction):
    """x − clip(x, −limit, limit): entries shrink towards 0 by the limit."""

    limit: float

    def __post_init__(self) -> None:
        _finite(limit=self.limit)
        if self.limit < 0.0:
            raise ValueError(f"the limit of a soft threshold is negative: {self.limit}")

    def value(self, x: FloatArray) -> FloatArray:
        """x, closer to 0."""
        return x - np.clip(x, -self.limit, self.limit)


class _Exponential(ScalarFunction):
    """gain·x for x ≥ 0, gain·scale·(e^{x/width} − 1) below."""

    __slots__ = ()

    @property
    @abstractmethod
    def _parts(self) -> tuple[float, float, float]:
        """gain, scale, width > 0."""

    def value(self, x: FloatArray) -> FloatArray:
        """Either branch."""
        gain, scale, width = self._parts
        return gain * np.where(x > 0.0, x, scale * np.expm1(np.minimum(x, 0.0) / width))


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
