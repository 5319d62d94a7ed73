"""Norms of weights between two proved ends, and what a run does with weights beyond their radii.

An `Excess` is computed for every constrained parameter and every op that uses it. Invariant: the
norm lies between the two ends; what the rounding of a projection explains is stated with them. The
upper end of an operator norm is what the core proves, the lower end comes from one vector. Only
what rounding left outside of a constraint is scaled down into it (`replay_weights`).

Proof of the lower end: ‖T‖ ≥ ‖Tv‖/‖v‖ for every v ≠ 0. Each entry of the computed Tv is a sum of at
most n products, n the number of entries of v, so it is off by at most γ_n·(|T||v|), in any order of
summation; the norm of the error is at most γ_n·‖|T||v|‖, and |T||v| itself is computed within a
factor 1 + γ_n. For fewer than 2^40 products γ_n ≤ n·2^-52.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from lipcert.analysis.premises import constraints_of, norm_down, plain_norm
from lipcert.audit.bounds import Claims, are_made_anew, claims_at
from lipcert.audit.records import Verdict
from lipcert.core.arithmetic import add_down, divide_down, divide_up, multiply_up
from lipcert.core.interval import norm_up
from lipcert.core.norms.convolution import Kernel
from lipcert.core.program import FloatArray
from lipcert.graph.evaluate import batch_output
from lipcert.graph.ir import Node, Use, graph_at, is_shown, linear_step, parameters_of
from lipcert.search.norms import proved_bound
from lipcert.search.pullbacks import stretched_most
from lipcert.settings.settings import ConstraintSpec
from lipcert.settings.values import TierName

MODEL: Final = "model"
"""Name of the weights of the file."""
_TIERS: Final[tuple[TierName, ...]] = ("quick", "fast", "tight")
"""Efforts to prove a norm, from the smallest."""
_PROOF: Final = 2.0**-23
"""More than the share of a norm that its proof may take."""


@dataclass(frozen=True, slots=True)
class Excess:
    """A norm as a ratio to its radius, known to lie between lower and upper.

    weights: the name of the set of weights. allowed: the largest ratio that rounding explains.
    """

    weights: str
    parameter: str
    constraint: ConstraintSpec
    lower: float
    upper: float
    allowed: float

    @property
    def verdict(self) -> Verdict:
        """A pass if the ratio is certainly allowed, a violation if it is certainly not."""
        if self.upper <= self.allowed:
            return Verdict.PASS
        return Verdict.VIOLATION if self.lower > self.allowed else Verdict.INCONCLUSIVE


def storage_unit(weights: Mapping[str, FloatArray]) -> float:
    """Return the unit roundoff of the type that weights were stored in: float32 if it holds
    them."""
    exact = all(np.array_equal(w, w.astype(np.float32)) for w in weights.values())
    return 2.0**-24 if exact else 2.0**-53


def excesses(
    claims: Claims, weights: Mapping[str, FloatArray], name: str, unit: float
) -> Iterator[Excess]:
    """Yield every constrained norm.

    name: of the weights. unit: unit roundoff of the type in which they are stored.
    """
    graph = claims.engine.graph
    at = graph_at(graph, weights)
    for parameter, constraint in constraints_of(graph, claims.settings).items():
        whole = weights.get(parameter)
        if whole is None:
            continue
        rows = whole.shape[0] if whole.ndim else 1
        allowed = 1.0 + max(max(rows, whole.size // max(rows, 1), 1) * unit, _PROOF)
        radius = constraint.radius
        if constraint.kind == "frobenius":
            ends = [_ends(norm_down(whole), norm_up(whole), radius)]
        else:
            ends = [_spectral(use, radius, allowed) for use in at.uses(parameter)]
        for low, high in ends:
            yield Excess(name, parameter, constraint, low, high, allowed)


def _spectral(use: Use, radius: float, allowed: float) -> tuple[float, float]:
    """Return the ends of the norm of an op over what the bounds assume of it, r·max(1, gain of the
    view)."""
    node, reach = use.node, radius * max(1.0, use.operand.gain)
    plain = plain_norm(use)
    if plain is not None:
        return _ends(*plain, reach)
    lower, upper = 0.0, math.inf
    for tier in _TIERS:
        upper = min(upper, divide_up(operator_norm_upper(node, tier), reach))
        if upper <= allowed or lower > allowed:
            break
        lower = divide_down(operator_norm_lower(node), reach)
        if lower > allowed:
            break
    return lower, upper


def _ends(lower: float, upper: float, radius: float) -> tuple[float, float]:
    """Return both ends over the radius; with radius 0, a norm above 0 exceeds it infinitely."""
    if radius == 0.0:
        return (math.inf if lower > 0.0 else 0.0, math.inf if upper > 0.0 else 0.0)
    return divide_down(lower, radius), divide_up(upper, radius)


@dataclass(frozen=True, slots=True, eq=False)
class ReplayWeights:
    """Weights to replay, None for those of the file, and the claims that apply to them.

    admissible: whether the bounds apply to these weights.
    """

    weights: Mapping[str, FloatArray] | None
    claims: Claims
    admissible: bool


def replay_weights(claims: Claims, weights: Mapping[str, FloatArray] | None) -> ReplayWeights:
    """Return the weights that a run would use in place of these, with the claims that apply to
    them.

    What rounding left outside its constraint is scaled down into it; what lies further outside is
    unchanged, and not admissible. Weight clipping scales down everything that is outside, except
    weights that a run recorded: it should have scaled those itself. weights: recorded or proposed
    ones; None for those of the file.

    Proof: every constraint is of a norm, which scales with the tensor; 2^-40 covers the roundings
    of the scaling.
    """
    settings, graph = claims.settings, claims.engine.graph
    admissible = weights is None or bounds_hold_at(claims, weights)
    if settings.scope != "constraint-set" and not settings.is_stepwise:
        return ReplayWeights(weights, claims, admissible)
    clips = settings.is_stepwise and weights is None
    known = parameters_of(graph) if weights is None else weights
    found = dict(known)
    for excess in excesses(claims, known, MODEL, storage_unit(known)):
        if excess.upper <= 1.0:
            continue
        if not clips and excess.upper > excess.allowed:
            admissible = False
            continue
        scaled = known[excess.parameter] * ((1.0 - 2.0**-40) / excess.upper)
        before = found[excess.parameter]
        found[excess.parameter] = min(before, scaled, key=lambda w: float(np.abs(w).max()))
    return ReplayWeights(found, claims if weights is None else claims_at(claims, found), admissible)


def bounds_hold_at(claims: Claims, weights: Mapping[str, FloatArray]) -> bool:
    """Whether the bounds apply to these weights.

    Bounds at one point apply to the weights of the file; under a clip of gradients, to all weights,
    as do other bounds, which cover all weights or are computed anew.
    """
    settings, graph = claims.settings, claims.engine.graph
    if settings.scope == "constraint-set" or settings.weights_are_free or are_made_anew(settings):
        return True
    return all(is_shown(graph, name, numbers) for name, numbers in weights.items())


_ITERATIONS: Final = 60


def operator_norm_upper(node: Node, tier: TierName) -> float:
    """Return an upper bound that the core proves, close to the least that it can; inf if it proves
    none.

    Proving takes a share of 4e-8 of the norm, or a little more.
    """
    step, given = linear_step(node, node.operands["weight"].array)
    return proved_bound(Kernel.of(step.op, given, step.shape), tier)


def operator_norm_lower(node: Node) -> float:
    """Return a lower bound from the best vector that a power iteration finds."""
    weight = node.operands["weight"].array
    step, given = linear_step(node, weight)
    vector = stretched_most(step, given, _ITERATIONS)
    image = batch_output(step, [vector])
    spread = norm_up(batch_output(linear_step(node, np.abs(weight))[0], [np.abs(vector)]))
    gamma = (vector.size + 2) * 2.0**-52
    error = multiply_up(spread, gamma * (1.0 + 2.0 * gamma))
    return divide_down(max(add_down(norm_down(image), -error), 0.0), norm_up(vector))
