"""Balanced arrays: weights divided by a power of two, so that no product can over- or underflow.

What enters: finite float64 numbers of any magnitude. What leaves: the same numbers over 2^e with
the largest magnitude in [1/2, 1).

Invariant: with entries below 1, an error analysis may forget underflow and add `UNDERFLOW` once.
A single underflow loses at most 2^-1022, even where subnormals are flushed to zero; it is later
multiplied by numbers below 2^60 in all; and no computation here has 2^60 operations, so that all
of them together stay below 2^-1022 · 2^60 · 2^60 < 2^-900.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from lipcert.upper import FloatArray, Upper, row_norms

__all__ = ["UNDERFLOW", "balanced", "largest_norm", "restored"]

UNDERFLOW: Final = Upper(2.0**-900)


def balanced(array: FloatArray) -> tuple[FloatArray, int]:
    """The array over 2^e, and e; the array must not be all zero."""
    exponent = math.frexp(float(np.max(np.abs(array))))[1]
    return np.ldexp(array, -exponent), exponent


def restored(value: Upper, exponent: int) -> Upper:
    """A bound of the balanced problem times 2^e, rounded up (2^1024 itself is no float64)."""
    half = exponent // 2
    return value * Upper(math.ldexp(1.0, half)) * Upper(math.ldexp(1.0, exponent - half))


def largest_norm(stack: FloatArray) -> Upper:
    """Upper bound of the Frobenius norm of every stack[i], for a balanced stack."""
    rows = stack.reshape(len(stack), -1)
    return Upper(float(np.max(row_norms(rows))))
