"""Norms of linear steps: claims ‖A‖₂ ≤ c about matrices and convolutions, proved or not.

Nothing here returns a norm. The caller proposes a bound and the code decides it, each time with
every rounding error accounted for, by one of two arithmetics.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from lipcert.core.norms.claim import Definite, NormCheck


@dataclass(frozen=True, slots=True)
class Engine:
    """An arithmetic for proofs about matrices, in the file that is loaded on first use."""

    file: str
    name: str

    @property
    def norms(self) -> NormCheck:
        """Whether ‖W‖₂ ≤ c could be proved."""
        found: NormCheck = self._function("norm_at_most")
        return found

    @property
    def definite(self) -> Definite:
        """Whether λ_min(M) ≥ c could be proved."""
        found: Definite = self._function("definite")
        return found

    def _function(self, what: str) -> Any:
        module = import_module(f"lipcert.core.norms.{self.file}")
        return getattr(module, f"{what}_{self.name}")


ENGINES: Final[Mapping[str, Engine]] = MappingProxyType(
    {
        name: Engine(f"{file}_engine", name)
        for name, file in (("float", "float"), ("exact", "integer"))
    }
)
"""by the names that users give them; a check uses one of them"""
