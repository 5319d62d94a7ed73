"""Norms of convolutions from their symbol, the matrix function of frequency.

What enters: kernels and geometry. What leaves: a bound of the norm on the infinite grid, which
holds for the zero-padded operator of every size, with its cells.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from lipcert.norms.dense import dense_norm
from lipcert.norms.geometry import Geometry
from lipcert.norms.polyphase import polyphase
from lipcert.norms.proved import UNPROVED, Proved
from lipcert.norms.scaling import balanced, restored
from lipcert.norms.search import Search
from lipcert.norms.symbol import Symbol
from lipcert.upper import ZERO, FloatArray, Upper

_TOLERANCE: Final = 1.003  # of the norm, where the budget allows
_WORTHWHILE: Final = Upper(1.0 + 2.0**-10)  # improvements below this factor are not pursued
_LARGEST_SYMBOL: Final = 1e8  # coefficients


def laurent_norm(kernels: FloatArray, geometry: Geometry, known: Upper, budget: float) -> Proved:
    """Returns B with B ≥ ‖T‖₂ of the zero-padded convolution, its adjoint, and of every group.

    kernels: [groups, out, in, *taps]. budget: floating-point operations the search may spend.
    known: a bound already at hand; inf is returned where the search would hardly improve on it.
    Hypotheses: padding with zeros, in any amount.
    Proof: T is the convolution on the infinite grid between an isometry (extension by zeros) and
    a contraction (restriction); so ‖T‖ ≤ M = sup_w ‖P(w)‖₂, P the symbol of the polyphase
    kernel. Cells of frequencies prove M ≤ μ (`verify_cells`): if ‖P(c)‖ ≤ μ cos θ at the centre
    c of every cell, where θ bounds the angle between the centre and any point (`Tiling.angle`).
    A symbol of a single tap does not depend on w: M is the norm of a matrix.
    Witness: a `CellCertificate` of the balanced polyphase kernel; none for a single tap.
    Attained: within 0.3 % of M unless the budget ends the search earlier. The finite operator
    lies below M by 0.1 % for maps of 56×56 and by some percent for 7×7.
    Reference: the symbol is that of Sedghi, Gupta and Long 2019, without circular wrapping.
    """
    if not np.any(kernels):
        return Proved(ZERO)
    phases = polyphase(kernels, geometry)
    if math.prod(phases.shape[3:]) == 1:
        return Proved(dense_norm(phases.reshape(phases.shape[:3])))
    if not is_representable(phases):
        return UNPROVED
    symbol, exponent = symbol_of(phases)
    search = Search.of(symbol, budget)
    if not search.is_affordable:
        return UNPROVED
    peak = search.peak()
    if known <= restored(Upper(peak).sqrt(), exponent) * _WORTHWHILE:
        return UNPROVED
    certificate, rounding = search.prove(peak * _TOLERANCE**2)
    bound = Upper(certificate.square) + rounding
    return Proved(restored(bound.sqrt(), exponent), certificate) if bound.is_finite else UNPROVED


def symbol_of(phases: FloatArray) -> tuple[Symbol, int]:
    """The symbol of polyphase kernels over 2^e, without axes of a single tap; and e."""
    scaled, exponent = balanced(phases)
    extended = [taps for taps in scaled.shape[3:] if taps > 1]
    return Symbol.of(scaled.reshape(*scaled.shape[:3], *extended)), exponent


def is_representable(phases: FloatArray) -> bool:
    """Whether the symbol of polyphase kernels fits in memory."""
    groups, outer, inner, *taps = phases.shape
    terms = math.prod(2 * size - 1 for size in taps)
    return bool(groups * terms * min(outer, inner) ** 2 <= _LARGEST_SYMBOL)
