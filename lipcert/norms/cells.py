"""Proofs by cells: testing a symbol at the centres of cells bounds it at every frequency.

What enters: a symbol and a claim, `CellCertificate`. What leaves: an `Upper` that, added to the
claimed majorant, makes it true, or inf where the claim is not proved. Nothing here searches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, final

import numpy as np
import numpy.typing as npt

from lipcert.norms.eigenvalues import BoolArray, prove_below
from lipcert.norms.majorant import Majorant
from lipcert.norms.symbol import Symbol
from lipcert.norms.tiling import Cells, Tiling
from lipcert.upper import INFINITE, ZERO, Upper

__all__ = ["CellCertificate", "check_cells", "evaluated", "verify_cells"]

_CHUNK_ENTRIES: Final = 2_000_000


@final
@dataclass(frozen=True, slots=True, eq=False)
class CellCertificate:
    """The claim that λ_max(H) ≤ g − sin²θ · sup g, up to rounding, at the centre of each leaf.

    If the leaves cover half the frequencies of every group, then λ_max(H(w)) ≤ g(w) at every
    frequency w, up to rounding.
    """

    tiling: Tiling
    leaves: tuple[Cells, ...]
    majorant: Majorant


def verify_cells(symbol: Symbol, certificate: CellCertificate) -> Upper:
    """Returns E with g(w) + E ≥ λ_max(H(w)) for all w and groups; inf if the claim is not proved.

    Proof: let F = g − H, of degree at most spans, and m = min_{w,u} u*F(w)u over unit vectors u,
    attained at w₀ for u. M = sup g bounds f = u*F(·)u, because H ≥ 0. Along any line through w₀,
    f is a real trigonometric function of exponential type Σ spans_i |d_i| with values in [m, M],
    hence f ≤ M sin²θ + m cos²θ at distance d, θ = Σ spans_i |d_i|/2 ≤ π/2 (Duffin and Schaeffer
    1938, applied to f − (M + m)/2). If m < 0, that contradicts f(c) ≥ M sin²θ at the centre c of
    the leaf of w₀. Rounding e at a centre is made up for by raising g by e/cos²θ.
    """
    tiling, majorant = certificate.tiling, certificate.majorant
    if tiling.spans != majorant.spans or not majorant.covers(symbol.spans):
        return INFINITE
    if not tiling.is_covered_by(certificate.leaves, symbol.groups):
        return INFINITE
    rounding = ZERO
    for cells in certificate.leaves:
        proved, excess = check_cells(symbol, tiling, cells, majorant)
        if not np.all(proved):
            return INFINITE
        rounding = max(rounding, excess)
    return rounding


def check_cells(
    symbol: Symbol, tiling: Tiling, cells: Cells, majorant: Majorant
) -> tuple[BoolArray, Upper]:
    """Returns (proved, E): at the centre of a proved cell, λ_max(H) ≤ (g + E) − sin²θ · sup(g + E).

    Proof: λ_max(H) ≤ floor + e with floor ≤ g − sin²θ · sup g, and e ≤ E cos²θ the rounding of
    the test and of the symbol.
    """
    floors = majorant.floor(tiling, cells)
    masks, worst, start = [], ZERO, 0
    for centres in evaluated(symbol, tiling, cells):
        proved, excess = prove_below(centres, floors[start : start + len(centres)])
        start += len(centres)
        masks.append(proved)
        worst = max(worst, excess)
    mask: BoolArray = np.concatenate(masks)
    cosine = tiling.cosine_squared(cells.level)
    return mask, (worst + symbol.error).over(cosine) if np.any(mask) else ZERO


def evaluated(symbol: Symbol, tiling: Tiling, cells: Cells) -> Iterator[npt.NDArray[np.complex128]]:
    """H at the centres of the cells, in portions of moderate memory: [part, c, c]."""
    width = symbol.channels**2 + len(symbol.shifts)
    step = max(1, _CHUNK_ENTRIES // width)
    for start in range(0, len(cells), step):
        part = cells.chosen(slice(start, start + step))
        yield symbol.at(part.group, *tiling.centres(part))
