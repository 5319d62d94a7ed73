"""Proofs by cells: testing a symbol at the centres of cells bounds it at every frequency.

What enters: a symbol and a claim, `CellCertificate`. What leaves: an `Upper` that, added to the
claimed square, makes it true, or inf where the claim is not proved. Nothing here searches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from lipcert.facts import Witness
from lipcert.norms.eigenvalues import prove_below
from lipcert.norms.factor import BoolArray
from lipcert.norms.symbol import Symbol
from lipcert.norms.tiling import Cells, Tiling
from lipcert.upper import INFINITE, ZERO, Lower, Upper


@final
@dataclass(frozen=True, slots=True, eq=False)
class CellCertificate(Witness):
    """The claim that λ_max(H) ≤ square · cos²θ, up to rounding, at the centre of each leaf.

    If the leaves cover half the frequencies of every group, then λ_max(H(w)) ≤ square at every
    frequency w, up to rounding.
    """

    tiling: Tiling
    leaves: tuple[Cells, ...]
    square: float


def verify_cells(symbol: Symbol, certificate: CellCertificate) -> Upper:
    """Returns E with square + E ≥ λ_max(H(w)) for all w and groups; inf if not proved.

    Proof: let M² be the supremum of λ_max(H), attained in the cell of some leaf, with angle θ and
    centre c. λ_max(H(c)) ≥ M² cos²θ (`Tiling.angle`), while λ_max(H(c)) ≤ (square + E) cos²θ.
    """
    tiling = certificate.tiling
    if tiling.spans != symbol.spans:
        return INFINITE
    if not tiling.is_covered_by(certificate.leaves, symbol.groups):
        return INFINITE
    rounding = ZERO
    for cells in certificate.leaves:
        proved, excess = check_cells(symbol, tiling, cells, certificate.square)
        if not np.all(proved):
            return INFINITE
        rounding = max(rounding, excess)
    return rounding


def check_cells(
    symbol: Symbol, tiling: Tiling, cells: Cells, square: float
) -> tuple[BoolArray, Upper]:
    """Returns (proved, E): at the centre of a proved cell, λ_max(H) ≤ (square + E) · cos²θ.

    Proof: λ_max(H) ≤ floor + e with floor ≤ square · cos²θ, and e ≤ E cos²θ the rounding of the
    test and of the symbol.
    """
    cosine = tiling.cosine_squared(cells.level)
    if cosine.value == 0.0:
        return np.zeros(len(cells), dtype=np.bool_), ZERO
    floor = (Lower(square) * cosine).value
    masks, worst = [np.zeros(0, dtype=np.bool_)], ZERO
    for centres in symbol.portions(cells.group, *tiling.centres(cells)):
        proved, excess = prove_below(centres, np.full(len(centres), floor))
        masks.append(proved)
        worst = max(worst, excess)
    mask: BoolArray = np.concatenate(masks)
    return mask, (worst + symbol.error).over(cosine) if np.any(mask) else ZERO
