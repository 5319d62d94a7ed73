"""Norms of weights between two proved ends: of constrained ones over their radii, and of any layer.

An `Excess` is made for every constrained parameter and every op that uses it. Invariant: the norm
lies between the two ends; what rounding of a projection explains is stated with them. The upper end
of an operator norm is what the core proves, the lower end one vector.

Proof of the lower end: ‖T‖ ≥ ‖Tv‖/‖v‖ for every v ≠ 0. Each entry of the computed Tv is a sum of
at most n products, n the number of entries of v, so it is off by at most γ_n·(|T||v|), in any order
of summation; the norm of the error is at most γ_n·‖|T||v|‖, and |T||v| itself is computed within a
factor 1 + γ_n.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, final

import numpy as np
import torch

from lipcert.analysis.premises import constraints_of
from lipcert.audit.bounds import Claims
from lipcert.audit.records import Verdict
from lipcert.core.norms.kernels import Kernel
from lipcert.core.program import Conv, Dense, Operand, Shape, Step
from lipcert.core.rules.facts import lengths_up
from lipcert.graph.evaluate import batch_output
from lipcert.graph.ir import Node, Use
from lipcert.graph.viewed import graph_at
from lipcert.measure.lowering import lowered
from lipcert.search.norms import proved_bound
from lipcert.settings.settings import ConstraintSpec
from lipcert.settings.values import TierName
from lipcert.upper import ONE, FloatArray, Lower, Upper, gamma, norm, norm_lower

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


_ITERATIONS: Final = 60


def operator_norm_upper(node: Node, tier: TierName) -> Upper:
    """An upper bound that the core proves, about the least that it can; inf where it proves none.

    Proving takes a share of 4e-8 of the norm, or a little more.
    """
    op, given, shape = linear_map(node, node.operands["weight"].array)
    return Upper(proved_bound(Kernel.of(op, given, shape), tier))


def linear_map(node: Node, weight: FloatArray) -> tuple[Dense | Conv, Shape, Shape]:
    """A layer with this weight and no bias; a matrix acts on one position.

    Its norm is that of the layer. TypeError for a node that is none.
    """
    exact = Operand(weight, weight)
    match node.op:
        case Dense() as dense:
            matrix = replace(dense, weight=exact, bias=None)
            return matrix, (1, weight.shape[1]), (1, weight.shape[0])
        case Conv() as conv:
            kernel = replace(conv, weight=exact, bias=None)
            return kernel, node.given[0], node.step.shape
    raise TypeError(f"node {node.name!r} is not a layer")


def image_of(node: Node, weight: FloatArray, x: FloatArray) -> FloatArray:
    """What the layer makes of vectors [examples, ...], entry by entry as its map reads them."""
    op, given, shape = linear_map(node, weight)
    step = Step(op, ("x",), "y", shape, 0)
    found: FloatArray = batch_output(step, [x.reshape(len(x), *given)])
    return found


def operator_norm_lower(node: Node) -> Lower:
    """A lower bound by the best vector that a power iteration finds."""
    weight = node.operands["weight"].array
    vector = _long_vector(node, weight)
    image = image_of(node, weight, vector[None])
    spread = norm(image_of(node, np.abs(weight), np.abs(vector)[None]))
    terms = vector.size + 2
    error = gamma(terms) * spread * (ONE + gamma(terms))
    length = norm_lower(image).value - error.value
    if length <= 0.0:
        return Lower(0.0)
    return Lower(length * (1.0 - 2.0**-50)).over(norm(vector))


def _long_vector(node: Node, weight: FloatArray) -> FloatArray:
    """What (TᵀT)^k makes of a fixed vector."""
    op, given, shape = linear_map(node, weight)
    single = Node(node.name, Step(op, ("x",), "y", shape, 0), (given,))
    tensors = {"weight": torch.from_numpy(weight.copy())}
    vector = torch.from_numpy(np.random.default_rng(0).standard_normal(given))
    for _ in range(_ITERATIONS):
        vector = vector.detach().requires_grad_()
        with torch.enable_grad():
            image = lowered(single, (vector,), tensors)
            (back,) = torch.autograd.grad(image, vector, image.detach())
        length = float(back.norm())
        if not (math.isfinite(length) and length > 0.0):
            break
        vector = back / length
    return np.array(vector.detach().numpy(), dtype=np.float64)
