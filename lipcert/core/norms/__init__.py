"""Norms of linear steps: claims ‖A‖₂ ≤ c about matrices and convolutions, proved or not.

Nothing here returns a norm. The caller proposes a bound and the code decides it, each time with
every rounding error accounted for, by one of two arithmetics.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

from lipcert.core.registry import member

if TYPE_CHECKING:
    from lipcert.core.norms.claim import Definite, NormCheck


@dataclass(frozen=True, slots=True)
class Engine:
    """An arithmetic for proofs about matrices, in the file that is loaded on first use.

    place: of its functions in this package.
    """

    place: str

    @property
    def norms(self) -> NormCheck:
        """Whether ‖W‖₂ ≤ c could be proved."""
        return cast("NormCheck", member("norms", self.place.format("norm_at_most")))

    @property
    def definite(self) -> Definite:
        """Whether λ_min(M) ≥ c could be proved."""
        return cast("Definite", member("norms", self.place.format("definite")))


ENGINES: Final = {
    "float": Engine("float_engine.{}_float"),
    "exact": Engine("integer_engine.{}_exact"),
}
"""by the names that users give them; a check uses one of them"""
