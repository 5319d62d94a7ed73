"""Norms of constrained weights over their radii, between two proved ends.

What enters: claims, and a set of weights. What leaves: an `Excess` for every constrained parameter
and every op that uses it. Invariant: the norm lies between the two ends; what rounding of a
projection explains is stated with them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, final

import numpy as np

from lipcert.analysis.premises import constraints_of
from lipcert.audit.bounds import Claims
from lipcert.audit.operator_norm import operator_norm_lower, operator_norm_upper
from lipcert.audit.records import Verdict
from lipcert.core.rules.facts import lengths_up
from lipcert.graph.ir import Use
from lipcert.graph.viewed import graph_at
from lipcert.settings.choices import TierName
from lipcert.settings.settings import ConstraintSpec
from lipcert.upper import FloatArray, Lower, Upper, norm, norm_lower

_PROOF: Final = 2.0**-23
"""the share of a norm that its proof may take, and more"""


@final
@dataclass(frozen=True, slots=True)
class Excess:
    """A norm between two ends, over its radius; allowed: the ratio that rounding explains.

    weights: name of the set that it is of.
    """

    weights: str
    parameter: str
    constraint: ConstraintSpec
    lower: float
    upper: float
    allowed: float

    @property
    def verdict(self) -> Verdict:
        """Where the ratio lies with respect to what is allowed."""
        if self.upper <= self.allowed:
            return Verdict.PASS
        return Verdict.VIOLATION if self.lower > self.allowed else Verdict.INCONCLUSIVE


@final
@dataclass(frozen=True, slots=True)
class _Limit:
    """A radius, the ratio to it that rounding explains, and how hard to try for a norm."""

    radius: float
    allowed: float
    tiers: tuple[TierName, ...]


def storage_unit(weights: Mapping[str, FloatArray]) -> float:
    """Unit roundoff of the type in which weights were stored: float32 where it holds them."""
    exact = all(np.array_equal(w, w.astype(np.float32)) for w in weights.values())
    return 2.0**-24 if exact else 2.0**-53


def excesses(
    claims: Claims, weights: Mapping[str, FloatArray], name: str, unit: float
) -> Iterator[Excess]:
    """Every constrained norm. name: of the weights. unit: of the type in which they are stored."""
    graph = claims.engine.graph
    at = graph_at(graph, weights)
    tiers: tuple[TierName, ...] = ("quick", "fast", "tight")
    for parameter, constraint in constraints_of(graph, claims.settings).items():
        whole = weights.get(parameter)
        if whole is None:
            continue
        rows = whole.shape[0] if whole.ndim else 1
        allowed = 1.0 + max(max(rows, whole.size // max(rows, 1), 1) * unit, _PROOF)
        radius = constraint.radius
        if constraint.kind == "frobenius":
            ends = [_ends(norm_lower(whole), norm(whole), radius)]
        else:
            ends = [_spectral(use, _Limit(radius, allowed, tiers)) for use in at.uses(parameter)]
        for low, high in ends:
            yield Excess(name, parameter, constraint, low, high, allowed)


def _spectral(use: Use, limit: _Limit) -> tuple[float, float]:
    """Ends of the norm of an op over what the bounds assume of it, r·max(1, gain of the view)."""
    node, operand = use.node, use.operand
    reach = limit.radius * max(1.0, operand.gain.value)
    if use.is_table:
        rows = operand.array
        longest = rows[int(np.argmax(np.linalg.norm(rows, axis=1)))]
        return _ends(norm_lower(longest), Upper(float(np.max(lengths_up(rows)))), reach)
    if not use.is_linear_map:
        largest = float(np.max(np.abs(operand.array), initial=0.0))
        return _ends(Lower(largest), Upper(largest), reach)
    lower, upper = 0.0, math.inf
    for tier in limit.tiers:
        upper = min(upper, operator_norm_upper(node, tier).over(Lower(reach)).value)
        if upper <= limit.allowed or lower > limit.allowed:
            break
        lower = operator_norm_lower(node).over(Upper(reach)).value
        if lower > limit.allowed:
            break
    return lower, upper


def _ends(lower: Lower, upper: Upper, radius: float) -> tuple[float, float]:
    """Both over the radius; what exceeds 0 exceeds it without end."""
    if radius == 0.0:
        return (math.inf if lower.value > 0.0 else 0.0, math.inf if upper.value > 0.0 else 0.0)
    return lower.over(Upper(radius)).value, upper.over(Lower(radius)).value
