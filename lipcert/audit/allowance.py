"""Allowance: the drift to allow for when norms measured at some weights meet the claims.

What enters: claims, the weights that are replayed. What leaves: the drift of single quantities in a
precision, bounded when somebody first asks, because that takes longer than measuring.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt

from lipcert.analysis.bounded import Bounded, loss_cotangent
from lipcert.audit.bounds import Claims
from lipcert.audit.drift import Drift, drift_of
from lipcert.audit.precision import Precision
from lipcert.audit.tally import Family
from lipcert.audit.viewed import graph_at
from lipcert.facts import Bound, ValueFacts
from lipcert.norms.operator_norm import Tier
from lipcert.propagation.propagate import propagate
from lipcert.scope import PointScope
from lipcert.upper import FloatArray, Upper, norm

_AHEAD: Final = 2.0
"""times the longest example: so that the next longer one is seldom a reason to begin again"""


@final
class Allowance:
    """By how much norms at some weights (None: the file's) may exceed right bounds.

    Where weights are free, the rounding of some quantities has no bound over all of them: then it
    is bounded at these weights, which costs the certified norms of all of them.
    Proof that this may be added to G: a mechanism that frees the weights bounds G by its clips,
    which bound G' ≤ G at these weights, too; computed norms are at most G' + H' ≤ G + H'. Likewise
    where every input is admitted: it is bounded for inputs no longer than those that are replayed.
    """

    def __init__(self, claims: Claims, weights: Mapping[str, FloatArray] | None) -> None:
        self._claims = claims
        self._weights = weights
        self._known: dict[tuple[Precision, bool], Drift] = {}
        self._radius = math.inf  # of the examples, as long as none were seen

    def cover(self, x: npt.NDArray[Any]) -> None:
        """Examples are about to be measured; matters where no norm of the input is declared."""
        if self._claims.engine.at_input.norm.is_finite or not len(x):
            return
        largest = max(norm(np.asarray(example, dtype=np.float64)).value for example in x)
        if self._radius == math.inf or largest > self._radius:
            self._radius = _AHEAD * largest
            self._known.clear()
            self.__dict__.pop("_here", None)

    def of(self, family: Family, name: str, precision: Precision) -> float:
        """Of one quantity; inf where no bound is known."""
        names: Sequence[str] = (name,)
        if family is Family.GRADIENT:
            names = next(group.parameters for group in self._claims.groups if group.name == name)
        return math.hypot(*self._all(family, names, precision))

    def of_parameters(self, names: Sequence[str], precision: Precision) -> list[float]:
        """Of the gradients of parameters that share a bound, each by itself."""
        return self._all(Family.GRADIENT, names, precision)

    def _all(self, family: Family, names: Sequence[str], precision: Precision) -> list[float]:
        """In the scope of the claims, or where that has no bound and weights are free, here."""
        found = _listed(self._drift(precision, here=False), family, names)
        if not self._claims.settings.weights_are_free or all(map(math.isfinite, found)):
            return found
        return _listed(self._drift(precision, here=True), family, names)

    def _drift(self, precision: Precision, *, here: bool) -> Drift:
        if (precision, here) not in self._known:
            self._known[precision, here] = (
                drift_of(self._here, precision)
                if here
                else drift_of(self._claims.engine, precision, self._weights)
            )
        return self._known[precision, here]

    @cached_property
    def _here(self) -> Bounded:
        """The network bounded at these weights alone."""
        engine, weights = self._claims.engine, self._weights
        graph = engine.graph if weights is None else graph_at(engine.graph, weights)
        scope = PointScope(Tier(self._claims.settings.tier))
        at_input = engine.at_input
        if not at_input.norm.is_finite and math.isfinite(self._radius):
            replayed = Bound(Upper(self._radius), "input.replayed_norm")
            at_input = ValueFacts.of(at_input.shape, replayed, at_input.box)
        bounds = propagate(
            graph,
            at_input,
            scope,
            lambda logits: loss_cotangent(engine.loss, logits, engine.loss_clip),
        )
        return replace(engine, graph=graph, scope=scope, at_input=at_input, bounds=bounds)


def _listed(drift: Drift, family: Family, names: Sequence[str]) -> list[float]:
    """What a drift says of these names; inf where it says nothing."""
    match family:
        case Family.GRADIENT:
            known = drift.parameters
        case Family.VALUE:
            known = drift.values
        case Family.COTANGENT:
            known = drift.cotangents
    return [known.get(name, math.inf) for name in names]
