"""Search for cell certificates: untrusted choices of a target and of cells, then the proof.

What enters: a symbol and a budget. What leaves: a `CellCertificate` that `verify_cells` accepts.
A bad choice costs time or tightness, never soundness.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, final

import numpy as np

from lipcert.norms.cells import CellCertificate, check_cells
from lipcert.norms.eigenvalues import estimate_largest
from lipcert.norms.symbol import Symbol
from lipcert.norms.tiling import Cells, Tiling
from lipcert.upper import INFINITE, ZERO, FloatArray, Upper

_FINEST_ANGLE: Final = 0.0715  # 1/cos is 1.00256; the rest is for an underestimated peak
_ACCURACY: Final = 1e-4
_TOO_MUCH: Final = 1e3
_SAMPLING: Final = 17
_SMALLEST_SAMPLE: Final = 3


@final
@dataclass(slots=True)
class Search:
    """A search with a purse: `budget` floating-point operations are left."""

    symbol: Symbol
    tiling: Tiling
    budget: float

    @classmethod
    def of(cls, symbol: Symbol, budget: float) -> Search:
        """A search on the coarsest tiling whose finest cells meet the tolerance."""
        levels = _levels(symbol.spans)
        return cls(symbol, Tiling.reaching(symbol.spans, _FINEST_ANGLE, levels), budget)

    @property
    def is_affordable(self) -> bool:
        """Whether the budget suffices for an estimate of the peak and for the coarsest cells."""
        return self._affords(2 * self.symbol.groups * math.prod(self.tiling.counts(0)))

    def peak(self) -> float:
        """An estimate of sup λ_max(H): the best centres, refined level by level."""
        cells = self.tiling.everything(self.symbol.groups)
        width = 8 if self.symbol.channels <= 128 else 2
        best = 0.0
        while True:
            estimates = self.estimates(cells)
            best = max(best, float(np.max(estimates)))
            if cells.level == _levels(self.tiling.spans):
                return best
            cells = cells.chosen(np.argsort(-estimates)[:width]).children()

    def prove(self, square: float) -> tuple[CellCertificate, Upper]:
        """A certificate for this square, raised where necessary, and what `verify_cells` adds.

        The latter is inf where even raising does not help: nothing is proved then.

        Cells that fail are halved; at the end of the budget or of the resolution the square is
        raised instead, which leaves valid what is proved already.
        """
        cells = self.tiling.everything(self.symbol.groups)
        leaves, rounding, slack = [], ZERO, _ACCURACY
        while True:
            if self._may_halve(cells) and self._is_hopeless(cells, square):
                cells = cells.children()
                continue
            self._pay(len(cells))
            proved, excess = check_cells(self.symbol, self.tiling, cells, square)
            leaves.append(cells.chosen(proved))
            rounding = max(rounding, excess)
            cells = cells.chosen(~proved)
            if len(cells) == 0:
                break
            if self._may_halve(cells):
                cells = cells.children()
            elif slack > _TOO_MUCH:
                rounding = INFINITE
                break
            else:
                slack *= 2.0
                square = self._raised(cells, square, slack)
        kept = tuple(each for each in leaves if len(each))
        return CellCertificate(self.tiling, kept, square), rounding

    def _may_halve(self, cells: Cells) -> bool:
        children = len(cells) << len(self.tiling.spans)
        return cells.level < _levels(self.tiling.spans) and self._affords(children)

    def _is_hopeless(self, cells: Cells, square: float) -> bool:
        """Whether every cell of a sample fails, so that the others are better halved unseen."""
        sample = cells.chosen(slice(0, None, _SAMPLING))
        if len(sample) < _SMALLEST_SAMPLE:
            return False
        self._pay(len(sample))
        proved, _ = check_cells(self.symbol, self.tiling, sample, square)
        return not np.any(proved)

    def _raised(self, cells: Cells, square: float, slack: float) -> float:
        """A square, higher by at least the relative slack, that the other cells should pass."""
        cosine = self.tiling.cosine_squared(cells.level).value
        needed = float(np.max(self.estimates(cells))) / cosine
        return max(square, needed) * (1.0 + slack)

    def estimates(self, cells: Cells) -> FloatArray:
        """Untrusted estimates of λ_max(H) at the centres."""
        self._pay(len(cells))
        parts = self.symbol.portions(cells.group, *self.tiling.centres(cells))
        return np.concatenate([estimate_largest(part, _ACCURACY) for part in parts])

    def _affords(self, cells: int) -> bool:
        return self._price(cells) <= self.budget

    def _pay(self, cells: int) -> None:
        self.budget -= self._price(cells)

    def _price(self, cells: int) -> float:
        size, terms = self.symbol.channels, len(self.symbol.shifts)
        return cells * (4.0 * size**3 + 4.0 * terms * size**2 + 2e4)


def _levels(spans: tuple[int, ...]) -> int:
    """How often a cell may be halved: more where the coarsest tiling would have many cells."""
    return 3 if len(spans) < 3 else 4
