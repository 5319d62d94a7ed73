"""Average pooling: the norm of a product of one-dimensional averaging operators.

What enters: a geometry and, per dimension, the divisor of every output. What leaves: an `Upper`.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Final

import numpy as np

from lipcert.norms.dense import dense_norm
from lipcert.norms.geometry import Geometry, Window
from lipcert.upper import ONE, UNIT_ROUNDOFF, Upper

_EXPLICIT_ENTRIES: Final = 300_000


def average_pool_norm(geometry: Geometry, divisors: tuple[tuple[int, ...], ...]) -> Upper:
    """Returns B with B ≥ ‖A‖₂ for average pooling A of one or many channels.

    divisors[i][o] is the factor of dimension i in the divisor of outputs with coordinate o (taps,
    or the taps on the input where padding is not counted).
    Hypotheses: the divisor of an output is the product of its factors; zero padding.
    Proof: A is the tensor product over dimensions (and channels) of one-dimensional operators,
    so its norm is the product of theirs. Squares that are rational numbers are multiplied
    exactly, before a single square root.
    Attained: within 1e-7 for maps of moderate size; up to one rounding for windows that do not
    overlap (2×2 with stride 2: 1/2).
    """
    known: dict[tuple[Window, tuple[int, ...]], Upper] = {}
    square, result = Fraction(1), ONE
    for window, factors in zip(geometry, divisors, strict=True):
        if len(factors) != window.outputs or min(factors) < 1:
            raise ValueError(f"{len(factors)} divisors do not fit {window.outputs} outputs")
        if window.overlap <= 1:
            square *= _disjoint_square(window, factors)
        elif window.size * window.outputs > _EXPLICIT_ENTRIES:
            square *= _schur_square(window, factors)
        else:
            if (window, factors) not in known:
                known[window, factors] = _matrix_norm(window, factors)
            result = result * known[window, factors]
    return Upper.of_fraction(square).sqrt() * result


def _disjoint_square(window: Window, divisors: tuple[int, ...]) -> Fraction:
    """The largest squared row norm, reads/divisor². Proof: the rows are orthogonal."""
    pairs = set(zip(window.reads(), divisors, strict=True))
    return max(Fraction(reads, divisor**2) for reads, divisor in pairs)


def _matrix_norm(window: Window, divisors: tuple[int, ...]) -> Upper:
    """The norm of the explicit matrix.

    Proof: entries are rounded quotients, at least (1 − u) times the true ones, and the norm of a
    non-negative matrix grows with its entries.
    """
    matrix = np.zeros((window.outputs, window.size))
    for tap in range(window.taps):
        for output, position in zip(window.readers(tap), window.positions(tap), strict=True):
            matrix[output, position] += 1.0 / divisors[output]
    return dense_norm(matrix[None]) * (ONE + Upper(2.0 * UNIT_ROUNDOFF))


def _schur_square(window: Window, divisors: tuple[int, ...]) -> Fraction:
    """Largest row sum · largest column sum ≥ the squared norm. Proof: Schur's test."""
    columns = [Fraction(0)] * window.size
    for tap in range(window.taps):
        for output, position in zip(window.readers(tap), window.positions(tap), strict=True):
            columns[position] += Fraction(1, divisors[output])
    rows = [
        Fraction(reads, divisor) for reads, divisor in zip(window.reads(), divisors, strict=True)
    ]
    return max(rows) * max(columns)
