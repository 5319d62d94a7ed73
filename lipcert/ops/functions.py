"""The functions of one number that `Activation` applies entry by entry, with their attributes.

Some are defined on a part of the line only: elsewhere their value is NaN or infinite.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from typing import final

import numpy as np

from lipcert.upper import FloatArray


class ScalarFunction(ABC):
    """A function of one real number; subclasses are frozen dataclasses of its attributes."""

    __slots__ = ()

    @property
    def name(self) -> str:
        """Name of the function, in the spelling of ONNX where ONNX has one."""
        return type(self).__name__

    @abstractmethod
    def value(self, x: FloatArray) -> FloatArray:
        """f entry by entry, in ordinary float64."""


def _sigmoid(x: FloatArray) -> FloatArray:
    with np.errstate(over="ignore", under="ignore"):
        result: FloatArray = 1.0 / (1.0 + np.exp(-x))
    return result


def _erf(x: FloatArray) -> FloatArray:
    from scipy import special  # noqa: PLC0415  takes longer to import than most analyses

    result: FloatArray = special.erf(x)
    return result


def _erfc(x: FloatArray) -> FloatArray:
    from scipy import special  # noqa: PLC0415

    result: FloatArray = special.erfc(x)
    return result


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


@final
@dataclass(frozen=True, slots=True)
class Sigmoid(ScalarFunction):
    """1 / (1 + e^−x)."""

    def value(self, x: FloatArray) -> FloatArray:
        """1 / (1 + e^−x)."""
        return _sigmoid(x)


@final
@dataclass(frozen=True, slots=True)
class Tanh(ScalarFunction):
    """Hyperbolic tangent."""

    def value(self, x: FloatArray) -> FloatArray:
        """tanh x."""
        return np.tanh(x)


@final
@dataclass(frozen=True, slots=True)
class Atan(ScalarFunction):
    """Inverse tangent."""

    def value(self, x: FloatArray) -> FloatArray:
        """Inverse tangent."""
        return np.arctan(x)


@final
@dataclass(frozen=True, slots=True)
class Softplus(ScalarFunction):
    """ln(1 + e^x)."""

    def value(self, x: FloatArray) -> FloatArray:
        """ln(1 + e^x)."""
        return np.logaddexp(0.0, x)


@final
@dataclass(frozen=True, slots=True)
class Softsign(ScalarFunction):
    """x / (1 + |x|)."""

    def value(self, x: FloatArray) -> FloatArray:
        """x / (1 + |x|), written so that infinite x gives ±1."""
        with np.errstate(divide="ignore", over="ignore"):
            return np.sign(x) / (1.0 + 1.0 / np.abs(x))


@final
@dataclass(frozen=True, slots=True)
class Erf(ScalarFunction):
    """The error function."""

    def value(self, x: FloatArray) -> FloatArray:
        """erf x."""
        return _erf(x)


@final
@dataclass(frozen=True, slots=True)
class Sin(ScalarFunction):
    """sin x."""

    def value(self, x: FloatArray) -> FloatArray:
        """sin x."""
        return np.sin(x)


@final
@dataclass(frozen=True, slots=True)
class Cos(ScalarFunction):
    """cos x."""

    def value(self, x: FloatArray) -> FloatArray:
        """cos x."""
        return np.cos(x)


@final
@dataclass(frozen=True, slots=True)
class Gelu(ScalarFunction):
    """x·Φ(x), or ONNX's tanh approximation of it."""

    approximate: bool = False

    def value(self, x: FloatArray) -> FloatArray:
        """x times its gate."""
        if self.approximate:
            gate = _sigmoid(2.0 * math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3))
        else:
            gate = 0.5 * _erfc(-x * math.sqrt(0.5))
        result: FloatArray = x * gate
        return result


@final
@dataclass(frozen=True, slots=True)
class Silu(ScalarFunction):
    """x·σ(x), also called Swish."""

    def value(self, x: FloatArray) -> FloatArray:
        """x·σ(x)."""
        result: FloatArray = x * _sigmoid(x)
        return result


@final
@dataclass(frozen=True, slots=True)
class Mish(ScalarFunction):
    """x·tanh(ln(1 + e^x))."""

    def value(self, x: FloatArray) -> FloatArray:
        """x·tanh(ln(1 + e^x))."""
        return x * np.tanh(np.logaddexp(0.0, x))


@final
@dataclass(frozen=True, slots=True)
class QuickGelu(ScalarFunction):
    """x·σ(sharpness·x) = silu(sharpness·x)/sharpness; usually with sharpness 1.702."""

    sharpness: float | Fraction

    def __post_init__(self) -> None:
        if not math.isfinite(self.sharpness) or self.sharpness == 0:
            raise ValueError(f"QuickGelu needs a finite sharpness other than 0: {self.sharpness}")

    def value(self, x: FloatArray) -> FloatArray:
        """x·σ(sharpness·x)."""
        result: FloatArray = x * _sigmoid(float(self.sharpness) * x)
        return result


@final
@dataclass(frozen=True, slots=True)
class HardSwish(ScalarFunction):
    """x·min(max(x/6 + ½, 0), 1)."""

    def value(self, x: FloatArray) -> FloatArray:
        """x times its gate."""
        return x * np.clip(x / 6.0 + 0.5, 0.0, 1.0)


@final
@dataclass(frozen=True, slots=True)
class ErfGate(ScalarFunction):
    """x/2·(1 + erf(slope·x)) with slope > 0: gelu(s·x)/s for s = √2·slope."""

    slope: Fraction

    def __post_init__(self) -> None:
        if self.slope <= 0:
            raise ValueError(f"the gate of a GELU needs a positive slope: {float(self.slope)}")

    @property
    def name(self) -> str:
        """Gelu."""
        return "Gelu"

    def value(self, x: FloatArray) -> FloatArray:
        """x times its gate."""
        result: FloatArray = x * 0.5 * _erfc(-x * float(self.slope))
        return result


@final
@dataclass(frozen=True, slots=True)
class TanhGate(ScalarFunction):
    """x/2·(1 + tanh u), u = slope·(x + cubic·x³), with positive numbers."""

    slope: Fraction
    cubic: Fraction

    def __post_init__(self) -> None:
        if not all(2**-20 <= number <= 2**20 for number in (self.slope, self.cubic)):
            numbers = f"{float(self.slope)}, {float(self.cubic)}"
            raise ValueError(f"the numbers of a GELU by tanh are extreme: {numbers}")

    @property
    def name(self) -> str:
        """Gelu."""
        return "Gelu"

    def value(self, x: FloatArray) -> FloatArray:
        """x times its gate."""
        inner = float(self.slope) * (x + float(self.cubic) * x**3)
        result: FloatArray = x * _sigmoid(2.0 * inner)
        return result


@final
@dataclass(frozen=True, slots=True)
class HardGate(ScalarFunction):
    """x·min(max(slope·x + ½, 0), 1) with slope > 0."""

    slope: Fraction

    def __post_init__(self) -> None:
        if self.slope <= 0:
            raise ValueError(f"the gate of a HardSwish needs a positive slope: {self.slope}")

    @property
    def name(self) -> str:
        """HardSwish."""
        return "HardSwish"

    def value(self, x: FloatArray) -> FloatArray:
        """x times its gate."""
        return x * np.clip(x * float(self.slope) + 0.5, 0.0, 1.0)


@final
@dataclass(frozen=True, slots=True)
class RootMultiple(ScalarFunction):
    """√square·x with square > 0: what the definitions of some operators hold."""

    square: Fraction

    def __post_init__(self) -> None:
        if self.square <= 0:
            raise ValueError(f"a root of a number that is not positive: {self.square}")

    @property
    def name(self) -> str:
        """Mul."""
        return "Mul"

    @property
    def factor(self) -> float:
        """√square in ordinary float64."""
        return float(np.sqrt(float(self.square)))

    def value(self, x: FloatArray) -> FloatArray:
        """√square·x."""
        return x * self.factor


@final
@dataclass(frozen=True, slots=True)
class Exp(ScalarFunction):
    """e^x."""

    def value(self, x: FloatArray) -> FloatArray:
        """e^x."""
        with np.errstate(all="ignore"):
            result: FloatArray = np.exp(x)
        return result


@final
@dataclass(frozen=True, slots=True)
class Exponential(ScalarFunction):
    """base^x for a positive base."""

    base: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.base) and self.base > 0.0):
            raise ValueError(f"a power of a constant needs a positive base, not {self.base}")

    @property
    def name(self) -> str:
        """Pow."""
        return "Pow"

    def value(self, x: FloatArray) -> FloatArray:
        """base^x."""
        with np.errstate(all="ignore"):
            result: FloatArray = np.power(self.base, x)
        return result


@final
@dataclass(frozen=True, slots=True)
class Log(ScalarFunction):
    """ln x."""

    def value(self, x: FloatArray) -> FloatArray:
        """ln x."""
        with np.errstate(all="ignore"):
            result: FloatArray = np.log(x)
        return result


@final
@dataclass(frozen=True, slots=True)
class Power(ScalarFunction):
    """x^exponent, for any real exponent; 1 for the exponent 0."""

    exponent: float

    def __post_init__(self) -> None:
        if not math.isfinite(self.exponent) or abs(self.exponent) > 2.0**52:
            raise ValueError(f"an exponent must be a number of moderate size: {self.exponent}")

    @property
    def name(self) -> str:
        """Sqrt, Reciprocal or Pow."""
        return {0.5: "Sqrt", -1.0: "Reciprocal"}.get(self.exponent, "Pow")

    def value(self, x: FloatArray) -> FloatArray:
        """x^exponent."""
        with np.errstate(all="ignore"):
            result: FloatArray = np.power(x, self.exponent)
        return result
