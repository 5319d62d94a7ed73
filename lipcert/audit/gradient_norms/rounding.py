"""How far sums of products in floating point may be off: the constants of all error bounds here.

What enters: numbers of terms, and the dtype that accumulates. What leaves: relative and absolute
error constants. Invariant: they hold for every order of summation, fused or not, and for hardware
that flushes subnormal numbers to zero. Bounds are computed in float64 and then multiplied by
`OUTWARD`, which covers the rounding of the bounds themselves (a few dozen operations).
"""

from __future__ import annotations

import math
from typing import Final

import torch

OUTWARD: Final = 1.0 + 2.0**-40


def gamma(terms: int, dtype: torch.dtype) -> float:
    """γ_n = n·u/(1 − n·u): |fl(Σ x_i·y_i) − Σ x_i·y_i| ≤ γ_n Σ |x_i·y_i|; inf where n·u ≥ 1/2.

    Reference: Higham, Accuracy and Stability of Numerical Algorithms, section 3.1.
    """
    product = terms * torch.finfo(dtype).eps / 2.0
    return product / (1.0 - product) * OUTWARD if product < 0.5 else math.inf


def underflow(dtype: torch.dtype) -> float:
    """Largest absolute error of one operation whose result is not a normal number."""
    return torch.finfo(dtype).smallest_normal
