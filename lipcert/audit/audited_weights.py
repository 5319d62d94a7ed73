"""Settled weights: those that an audit replays, with the claims that hold there.

Given claims and a set of weights, `settled_weights` yields weights within the constraints, the
claims that hold at them, and whether they do. Invariant: recorded weights are bounded where they
are, and only what rounding left outside of a constraint is scaled down into it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, final

import numpy as np

from lipcert.audit.bounds import Claims, are_made_anew, claims_at
from lipcert.audit.recorded import RecordedTensors
from lipcert.audit.weight_norms import excesses, storage_unit
from lipcert.core.program import FloatArray
from lipcert.graph.viewed import is_shown, parameters_of

_MODEL: Final = "model"
_MOST_NUMBERS: Final = 2**24
"""so many numbers of weights are remembered"""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Settled:
    """Weights to replay, None for those of the file. claims: those at them, if admissible."""

    weights: Mapping[str, FloatArray] | None
    claims: Claims
    admissible: bool


def settled_weights(claims: Claims, weights: Mapping[str, FloatArray] | None) -> Settled:
    """The weights that a run would use in place of these, with the claims that apply to them.

    What rounding left outside its constraint is scaled down into it; what lies further outside is
    left as it is, and not admissible. Weight clipping scales down everything that is outside, but
    not what a run recorded: there it should have done so. weights: recorded or proposed ones; None
    for those of the file.
    Proof: every constraint is of a norm, which scales with the tensor; 2^-40 covers the roundings
    of the scaling.
    """
    settings, graph = claims.settings, claims.engine.graph
    admissible = weights is None or bounds_hold_at(claims, weights)
    if settings.scope != "constraint-set" and not settings.is_stepwise:
        return Settled(weights, claims, admissible)
    clips = settings.is_stepwise and weights is None
    known = parameters_of(graph) if weights is None else weights
    found = dict(known)
    for excess in excesses(claims, known, _MODEL, storage_unit(known)):
        if excess.upper <= 1.0:
            continue
        if not clips and excess.upper > excess.allowed:
            admissible = False
            continue
        scaled = known[excess.parameter] * ((1.0 - 2.0**-40) / excess.upper)
        before = found[excess.parameter]
        found[excess.parameter] = min(before, scaled, key=lambda w: float(np.abs(w).max()))
    return Settled(found, claims if weights is None else claims_at(claims, found), admissible)


def settled_at(claims: Claims, recorded: RecordedTensors, name: str) -> Settled:
    """A recorded set of weights; where claims are made anew, that is slow, and remembered."""
    return _sets(claims, recorded).at(recorded.first_name(name))


@lru_cache(maxsize=2)
def _sets(claims: Claims, recorded: RecordedTensors) -> _Sets:
    return _Sets(claims, recorded)


@final
class _Sets:
    """The sets of one trace that were settled last, as many as fit into memory."""

    def __init__(self, claims: Claims, recorded: RecordedTensors) -> None:
        self._claims = claims
        self._recorded = recorded
        self._known: dict[str, Settled] = {}
        size = sum(parameter.size for parameter in claims.engine.graph.parameters.values())
        self._most = max(_MOST_NUMBERS // max(size, 1), 2)

    def at(self, name: str) -> Settled:
        found = self._known.pop(name, None)
        if found is None:
            found = settled_weights(self._claims, self._recorded.weights(name))
        self._known[name] = found
        for old in list(self._known)[: -self._most]:
            del self._known[old]
        return found


def bounds_hold_at(claims: Claims, weights: Mapping[str, FloatArray]) -> bool:
    """Whether bounds at one point are about these weights; others are about all, or made anew.

    At a point that is the file's weights; under a clip of gradients it is all weights, too.
    """
    settings, graph = claims.settings, claims.engine.graph
    if settings.scope == "constraint-set" or settings.weights_are_free or are_made_anew(settings):
        return True
    return all(is_shown(graph, name, numbers) for name, numbers in weights.items())
