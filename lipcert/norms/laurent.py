"""Norms of convolutions from their symbol: a search for cells that prove a bound, and the proof.

What enters: kernels and geometry. What leaves: an `Upper` of the norm on the infinite grid, which
bounds the zero-padded operator of every size, and a `CellCertificate` from which `verify_cells`
derives the same bound without any search.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, final

import numpy as np

from lipcert.norms.eigenvalues import BoolArray, estimate_largest, prove_below
from lipcert.norms.geometry import Geometry
from lipcert.norms.polyphase import polyphase
from lipcert.norms.scaling import balanced, restored
from lipcert.norms.symbol import Symbol
from lipcert.norms.tiling import Cells, Tiling
from lipcert.upper import INFINITE, ZERO, FloatArray, Lower, Upper

__all__ = ["CellCertificate", "laurent_norm", "prove_cells", "symbol_of", "verify_cells"]

_TOLERANCE: Final = 1.003  # of the norm, where the budget allows
_FINEST_ANGLE: Final = 0.0715  # 1/cos is 1.00256, the rest is left to the estimate of the peak
_CHUNK_ENTRIES: Final = 2_000_000
_ACCURACY: Final = 1e-4


@final
@dataclass(frozen=True, slots=True, eq=False)
class CellCertificate:
    """A claim about a symbol: sup λ_max(H) ≤ squared_norm / (1 − rounding), provable on `leaves`.

    At the centre of every leaf, λ_max(H) ≤ squared_norm · cos²θ up to rounding.
    """

    tiling: Tiling
    leaves: tuple[Cells, ...]
    squared_norm: float


def laurent_norm(kernels: FloatArray, geometry: Geometry, budget: float) -> Upper:
    """Returns B with B ≥ ‖T‖₂ of the zero-padded convolution, its adjoint, and of every group.

    kernels: [groups, out, in, *taps]. budget: floating-point operations the search may spend.
    Hypotheses: padding with zeros, in any amount.
    Proof: T is the convolution on the infinite grid between an isometry (extension by zeros) and
    a contraction (restriction); so ‖T‖ ≤ sup_w ‖P(w)‖₂, P the symbol of the polyphase kernel.
    If cells cover all frequencies and ‖P(c)‖ ≤ μ cos θ at every centre c, where θ bounds the
    cell's angle (`Tiling.angle`), then the supremum, attained in some cell, is at most μ.
    Each ‖P(c)‖² = λ_max(H(c)) is bounded through a Cholesky factor (`prove_below`).
    Attained: within 0.3 % of the supremum unless the budget ends the search; the finite operator
    itself lies 0.1 % below the supremum for maps of 56×56 and some percent below for 7×7.
    Reference: the symbol is that of Sedghi, Gupta and Long 2019, without circular wrapping.
    """
    if not np.any(kernels):
        return ZERO
    symbol, exponent = symbol_of(kernels, geometry)
    bound = _prove(symbol, budget)[1]
    return restored(bound.sqrt(), exponent)


def symbol_of(kernels: FloatArray, geometry: Geometry) -> tuple[Symbol, int]:
    """The symbol of the balanced polyphase kernels, axes without extent dropped, and the scale."""
    scaled, exponent = balanced(polyphase(kernels, geometry))
    kept = [size for size in scaled.shape[3:] if size > 1]
    return Symbol.of(scaled.reshape(*scaled.shape[:3], *kept)), exponent


def prove_cells(symbol: Symbol, budget: float) -> CellCertificate:
    """Search for cells and a value that `verify_cells` accepts. Untrusted."""
    return _prove(symbol, budget)[0]


def verify_cells(symbol: Symbol, certificate: CellCertificate) -> Upper:
    """Returns B with B ≥ sup_w λ_max(H(w)), or inf where the certificate proves nothing.

    Proof: the leaves cover all frequencies, and each passes the test of `laurent_norm`.
    """
    tiling = certificate.tiling
    if tiling.spans != symbol.spans:
        return INFINITE
    if not tiling.is_covered_by(certificate.leaves, symbol.groups):
        return INFINITE
    rounding = ZERO
    for cells in certificate.leaves:
        proved, excess = _test(symbol, tiling, cells, certificate.squared_norm)
        if not np.all(proved):
            return INFINITE
        rounding = max(rounding, excess)
    return Upper(certificate.squared_norm) + rounding


def _prove(symbol: Symbol, budget: float) -> tuple[CellCertificate, Upper]:
    """The certificate, and the bound that its verification gives.

    Cells that fail at the target are halved; at the end of the budget or of the resolution the
    target is raised instead, which leaves the cells already proved valid.
    """
    levels = 3 if len(symbol.spans) < 3 else 4
    tiling = Tiling.reaching(symbol.spans, _FINEST_ANGLE, levels)
    spent = _Account(symbol, budget)
    cells = tiling.everything(symbol.groups)
    target = _peak(symbol, tiling, levels, spent) * _TOLERANCE**2
    leaves, rounding = [], ZERO
    while len(cells):
        proved, excess = _test(symbol, tiling, cells, target)
        spent.pay(len(cells))
        leaves.append(cells.chosen(proved))
        rounding = max(rounding, excess)
        cells = cells.chosen(~proved)
        children = cells.children()
        if cells.level < levels and spent.allows(len(children)):
            cells = children
        elif len(cells):
            target = _raised(symbol, tiling, cells, target)
    kept = tuple(each for each in leaves if len(each))
    return CellCertificate(tiling, kept, target), Upper(target) + rounding


def _test(
    symbol: Symbol, tiling: Tiling, cells: Cells, squared_norm: float
) -> tuple[BoolArray, Upper]:
    """Which cells satisfy λ_max(H(c)) ≤ squared_norm · cos²θ, and what rounding adds to the norm.

    Proof of the second: λ_max(H(c)) ≤ shift + e and shift ≤ squared_norm · cos²θ imply that
    M² ≤ squared_norm + e / cos²θ.
    """
    cosine = tiling.cosine_squared(cells.level)
    shift = (Lower(squared_norm) * cosine).value
    masks, worst = [], ZERO
    for part in _chunks(symbol, cells):
        proved, excess = prove_below(_symbols(symbol, tiling, part), np.full(len(part), shift))
        masks.append(proved)
        worst = max(worst, excess)
    mask: BoolArray = np.concatenate(masks)
    return mask, (worst + symbol.error).over(cosine) if np.any(mask) else ZERO


def _symbols(
    symbol: Symbol, tiling: Tiling, cells: Cells
) -> np.typing.NDArray[np.complex128]:
    return symbol.at(cells.group, *tiling.centres(cells))


def _chunks(symbol: Symbol, cells: Cells) -> Iterator[Cells]:
    """The cells in portions of moderate memory."""
    width = symbol.channels**2 + len(symbol.shifts)
    step = max(1, _CHUNK_ENTRIES // width)
    for start in range(0, len(cells), step):
        yield cells.chosen(slice(start, start + step))


def _estimates(symbol: Symbol, tiling: Tiling, cells: Cells) -> FloatArray:
    """Untrusted estimates of λ_max(H) at the centres."""
    return np.concatenate(
        [
            estimate_largest(_symbols(symbol, tiling, part), _ACCURACY)
            for part in _chunks(symbol, cells)
        ]
    )


def _peak(symbol: Symbol, tiling: Tiling, levels: int, spent: _Account) -> float:
    """An untrusted estimate of sup λ_max(H): the best centres, refined level by level."""
    cells = tiling.everything(symbol.groups)
    width = 8 if symbol.channels <= 128 else 2
    best = 0.0
    for _ in range(levels + 1):
        estimates = _estimates(symbol, tiling, cells)
        spent.pay(len(cells))
        best = max(best, float(np.max(estimates)))
        cells = cells.chosen(np.argsort(-estimates)[:width]).children()
    return best


def _raised(symbol: Symbol, tiling: Tiling, cells: Cells, target: float) -> float:
    """A larger target that the remaining cells should pass."""
    needed = float(np.max(_estimates(symbol, tiling, cells)))
    cosine = tiling.cosine_squared(cells.level).value
    return max(target * (1.0 + _ACCURACY), needed / cosine * (1.0 + 2.0 * _ACCURACY))


@final
class _Account:
    """Counts the operations a search has spent."""

    def __init__(self, symbol: Symbol, budget: float) -> None:
        size, terms = symbol.channels, len(symbol.shifts)
        self._price = 4.0 * size**3 + 4.0 * terms * size**2 + 2e4
        self._left = budget

    def pay(self, cells: int) -> None:
        """Record the evaluation of cells."""
        self._left -= cells * self._price

    def allows(self, cells: int) -> bool:
        """Whether as many cells can still be evaluated."""
        return cells * self._price <= self._left

