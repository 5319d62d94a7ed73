"""Measured norms: what one batch showed, example by example, and how far each may be off.

What enters: nothing but numbers. What leaves: records of float64 arrays with one entry an example.
Invariant: a norm computed from given tensors lies within `error` of their exact norm.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from lipcert.upper import FloatArray


@final
@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """Norms of one tensor, one for each example: |norm − truth| ≤ error.  # [examples] each

    error covers what computing the *norm* rounds, given the tensors it is the norm of; NaN and
    infinity stand for themselves and are never hidden.
    """

    norm: FloatArray
    error: FloatArray


@final
@dataclass(frozen=True, slots=True, eq=False)
class BatchNorms:
    """Everything measured in one batch.

    losses: of each example, float64. parameters: ‖∂loss/∂θ‖ by name of the parameter, all uses
    together. values: ‖value‖, and cotangents: ‖∂loss/∂value‖, by name of the value in the graph.
    """

    losses: FloatArray
    parameters: Mapping[str, Measured]
    values: Mapping[str, Measured]
    cotangents: Mapping[str, Measured]
