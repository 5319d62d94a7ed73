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
from collections.abc import Iterator
from typing import Final

import numpy as np

from lipcert.upper import ZERO, FloatArray, Upper, row_norms

UNDERFLOW: Final = Upper(2.0**-900)
_PORTION: Final = 2**22


def balanced(array: FloatArray) -> tuple[FloatArray, int]:
    """The array over 2^e, and e; the array must not be all zero."""
    exponent = balance_of(array)
    return np.ldexp(array, -exponent), exponent


def balance_of(array: FloatArray) -> int:
    """The exponent e by which `balanced` divides."""
    return math.frexp(max(float(np.max(array)), -float(np.min(array))))[1]


def balanced_slices(matrices: FloatArray, exponent: int) -> Iterator[FloatArray]:
    """Matrices [n, rows, columns] over 2^e in portions of columns, of moderate memory each."""
    width = max(1, _PORTION // max(1, math.prod(matrices.shape[:2])))
    for start in range(0, matrices.shape[2], width):
        yield np.ldexp(matrices[:, :, start : start + width], -exponent)


def restored(value: Upper, exponent: int) -> Upper:
    """A bound of the balanced problem times 2^e, rounded up (2^1024 itself is no float64)."""
    half = exponent // 2
    return value * Upper(math.ldexp(1.0, half)) * Upper(math.ldexp(1.0, exponent - half))


def largest_norm(stack: FloatArray) -> Upper:
    """Upper bound of the Frobenius norm of every stack[i], for a balanced stack."""
    rows = stack.reshape(len(stack), -1)
    return Upper(float(np.max(row_norms(rows))))


def largest_frobenius_norm(stack: FloatArray) -> Upper:
    """Upper bound of the Frobenius norm of every stack[i], of any magnitude and size."""
    if not np.any(stack):
        return ZERO
    rows = stack.reshape(1, len(stack), -1)
    exponent = balance_of(rows)
    parts = [row_norms(part[0]) for part in balanced_slices(rows, exponent)]
    norms = parts[0] if len(parts) == 1 else row_norms(np.stack(parts, axis=1))
    return restored(Upper(float(np.max(norms))), exponent)
