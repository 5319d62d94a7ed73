"""Engines: two arithmetics for the same proofs about matrices; a check uses one of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, final

from lipcert.core.norms.claim import FloatMatrix
from lipcert.core.norms.definite import Definite, definite_exact, definite_float
from lipcert.core.norms.float_engine import norm_at_most_float


@final
@dataclass(frozen=True, slots=True)
class Engine:
    """An arithmetic for proofs about matrices. norms: of ‖W‖₂ ≤ c; definite: of λ_min(M) ≥ c."""

    norms: Callable[[FloatMatrix, float], bool]
    definite: Definite


def _norm_at_most_exact(matrix: FloatMatrix, claim: float) -> bool:
    """`norm_at_most_exact`, loaded for the engine that asks it."""
    from lipcert.core.norms.integer_engine import norm_at_most_exact  # noqa: PLC0415

    return norm_at_most_exact(matrix, claim)


ENGINES: Final[Mapping[str, Engine]] = MappingProxyType(
    {
        "float": Engine(norm_at_most_float, definite_float),
        "exact": Engine(_norm_at_most_exact, definite_exact),
    }
)
