"""Proofs by cells: testing a symbol at the centres of cells bounds it at every frequency.

What enters: a symbol and a claim, `CellCertificate`. What leaves: an `Upper` of the supremum of
its largest eigenvalue, or inf where the claim is not proved. Nothing here searches or estimates.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, final

import numpy as np
import numpy.typing as npt

from lipcert.norms.eigenvalues import BoolArray, prove_below
from lipcert.norms.symbol import Symbol
from lipcert.norms.tiling import Cells, Tiling
from lipcert.upper import INFINITE, ZERO, Lower, Upper

__all__ = ["CellCertificate", "check_cells", "evaluated", "verify_cells"]

_CHUNK_ENTRIES: Final = 2_000_000


@final
@dataclass(frozen=True, slots=True, eq=False)
class CellCertificate:
    """The claim that λ_max(H) ≤ squared_norm · cos²θ, up to rounding, at the centre of each leaf.

    If the leaves cover half the frequencies of every group, then sup λ_max(H) ≤ squared_norm up
    to rounding (`Tiling.angle` holds the proof).
    """

    tiling: Tiling
    leaves: tuple[Cells, ...]
    squared_norm: float


def verify_cells(symbol: Symbol, certificate: CellCertificate) -> Upper:
    """Returns B with B ≥ sup_w λ_max(H(w)) over all groups; inf if the claim is not proved."""
    tiling = certificate.tiling
    if tiling.spans != symbol.spans:
        return INFINITE
    if not tiling.is_covered_by(certificate.leaves, symbol.groups):
        return INFINITE
    rounding = ZERO
    for cells in certificate.leaves:
        proved, excess = check_cells(symbol, tiling, cells, certificate.squared_norm)
        if not np.all(proved):
            return INFINITE
        rounding = max(rounding, excess)
    return Upper(certificate.squared_norm) + rounding


def check_cells(
    symbol: Symbol, tiling: Tiling, cells: Cells, squared_norm: float
) -> tuple[BoolArray, Upper]:
    """Returns (proved, excess): M² ≤ squared_norm + excess if M is attained in a proved cell.

    Proof: at the centre, λ_max(H) ≤ shift + e with shift ≤ squared_norm · cos²θ and e the
    rounding of the test and of the symbol; M² cos²θ ≤ λ_max(H(centre)).
    """
    cosine = tiling.cosine_squared(cells.level)
    shift = (Lower(squared_norm) * cosine).value
    masks, worst = [], ZERO
    for centres in evaluated(symbol, tiling, cells):
        proved, excess = prove_below(centres, np.full(len(centres), shift))
        masks.append(proved)
        worst = max(worst, excess)
    mask: BoolArray = np.concatenate(masks)
    return mask, (worst + symbol.error).over(cosine) if np.any(mask) else ZERO


def evaluated(symbol: Symbol, tiling: Tiling, cells: Cells) -> Iterator[npt.NDArray[np.complex128]]:
    """H at the centres of the cells, in portions of moderate memory: [part, c, c]."""
    width = symbol.channels**2 + len(symbol.shifts)
    step = max(1, _CHUNK_ENTRIES // width)
    for start in range(0, len(cells), step):
        part = cells.chosen(slice(start, start + step))
        yield symbol.at(part.group, *tiling.centres(part))
