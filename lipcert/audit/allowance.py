"""Allowance: the drift to allow for when norms measured at some weights meet the claims.

What enters: claims, a precision, the weights that are replayed. What leaves: a `Drift`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from lipcert.analysis.bounded import loss_cotangent
from lipcert.audit.bounds import Claims
from lipcert.audit.drift import Drift, drift_of
from lipcert.audit.precision import Precision
from lipcert.audit.viewed import graph_at
from lipcert.norms.operator_norm import Tier
from lipcert.propagation.propagate import propagate
from lipcert.scope import PointScope
from lipcert.upper import FloatArray

__all__ = ["drift_at"]


def drift_at(
    claims: Claims, precision: Precision, weights: Mapping[str, FloatArray] | None
) -> Drift:
    """By how much norms at these weights (None: the file's) may exceed right bounds.

    Where weights are free, no rounding is bounded over all of them: then it is at these weights.
    Proof that this may be added to G: a mechanism that frees the weights bounds G by its clips,
    which bound G' ≤ G at these weights, too; computed norms are at most G' + H' ≤ G + H'.
    """
    engine = claims.engine
    free = claims.settings.weights_are_free
    if not free or engine.bounds.facts[engine.graph.output_name].norm.is_finite:
        known = drift_of(engine, precision, weights)
        if not free or all(math.isfinite(value) for value in known.parameters.values()):
            return known
    graph = engine.graph if weights is None else graph_at(engine.graph, weights)
    scope = PointScope(Tier(claims.settings.tier))
    bounds = propagate(
        graph,
        engine.at_input,
        scope,
        lambda logits: loss_cotangent(engine.loss, logits, engine.loss_clip),
    )
    return drift_of(replace(engine, graph=graph, scope=scope, bounds=bounds), precision)
