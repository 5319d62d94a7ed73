"""Engines: two arithmetics for the same proofs about matrices; a check uses one of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, final

if TYPE_CHECKING:
    from lipcert.core.norms.claim import NormCheck
    from lipcert.core.norms.definite import Definite


@final
@dataclass(frozen=True, slots=True)
class Engine:
    """An arithmetic for proofs about matrices: two functions of `norms`, loaded on first use."""

    of_norms: str
    of_definite: str

    @property
    def norms(self) -> NormCheck:
        """Whether ‖W‖₂ ≤ c could be proved."""
        found: NormCheck = _loaded(self.of_norms)
        return found

    @property
    def definite(self) -> Definite:
        """Whether λ_min(M) ≥ c could be proved."""
        found: Definite = _loaded(self.of_definite)
        return found


def _loaded(name: str) -> Any:
    module, _, member = name.partition(".")
    return getattr(import_module(f"lipcert.core.norms.{module}"), member)


ENGINES: Final[Mapping[str, Engine]] = MappingProxyType(
    {
        "float": Engine("float_engine.norm_at_most_float", "definite.definite_float"),
        "exact": Engine("integer_engine.norm_at_most_exact", "integer_engine.definite_exact"),
    }
)
"""by the names that users give them"""
