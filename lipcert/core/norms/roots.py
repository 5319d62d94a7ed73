"""Roots of unity in float64, from integers.

Proof of the error. All numbers are integers in units of ulp = 2^-128, and every division rounds
down, by less than one unit.
1. π = 16·arctan(1/5) − 4·arctan(1/239) (Machin). Each arctangent sums fewer than 60 terms, each
   off by at most 2 units, and the omitted ones are below a unit: π errs by less than 2^12 units,
   and an angle θ = π·m/n in [0, 2π) by less than 2^13.
2. The terms θ^k/k! are formed one from the other. A rounding of one unit in term i grows to at
   most 7^(k−i)·i!/k! ≤ 7^(k−i)/(k−i)! units in term k, so all terms together err by at most
   80·e^7 < 2^17 units; what is omitted behind 80 terms is below a unit. cos and sin are
   1-Lipschitz, so that both err by less than 2^18 units = 2^-110.
3. The quotient of two integers is rounded to nearest by Python, by at most 2^-54 as the
   magnitude is at most 1 + 2^-110.
Together: each part is within 2^-53 of the exact one.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

ComplexArray: TypeAlias = npt.NDArray[np.complex128]

MAX_COUNT: Final = 1 << 14
"""parts of a half turn"""
_BITS: Final = 128
_TERMS: Final = 80


def half_turns(count: int) -> ComplexArray:
    """exp(iπm/count) for 0 ≤ m < 2·count; real and imaginary part are each within 2^-53."""
    if not 1 <= count <= MAX_COUNT:
        raise ValueError(f"{count} cannot be a number of parts of a half turn")
    half_turn = _half_turn()
    return np.array([_exponential(half_turn * m // count) for m in range(2 * count)])


def _half_turn() -> int:
    """π·2^128, within 2^12."""
    return 16 * _arctangent_of_part(5) - 4 * _arctangent_of_part(239)


def _arctangent_of_part(x: int) -> int:
    """arctan(1/x)·2^128 = Σ (−1)^k 2^128/((2k + 1)·x^(2k+1))."""
    power, total, k = (1 << _BITS) // x, 0, 0
    while power:
        total += (-1) ** k * (power // (2 * k + 1))
        power //= x * x
        k += 1
    return total


def _exponential(angle: int) -> complex:
    """exp(iθ) for θ = angle/2^128 in [0, 2π], by its power series."""
    parts, term = [0, 0], 1 << _BITS
    for k in range(_TERMS):
        parts[k % 2] += term if k % 4 < 2 else -term
        term = term * angle // ((k + 1) << _BITS)
    return complex(parts[0] / (1 << _BITS), parts[1] / (1 << _BITS))
