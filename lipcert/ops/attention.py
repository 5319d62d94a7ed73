"""Scaled dot-product attention, as one op: y_i = Σ_j P_ij·v_j, P = softmax(scale·QKᵀ + mask).

What enters: facts about the queries Q, the transposed keys Kᵀ and the values V of every head.
What leaves: norm and box of y, and one Jacobian norm per input, which need bounded tokens only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, final

import numpy as np

from lipcert.facts import Bound, Runs, Shape, ValueFacts, no_bound, product_of, tightest
from lipcert.interval import Interval
from lipcert.ops.base import Op
from lipcert.ops.scalar import constant, exponential
from lipcert.scope import Scope
from lipcert.upper import FloatArray, Upper, row_norms

_ROOT_HALF: Final = Upper(0.5).sqrt()


@final
@dataclass(frozen=True, slots=True, eq=False)
class Attention(Op):
    """Q [..., n, d], Kᵀ [..., d, m], V [..., m, e] with equal leading axes, the heads.

    scale: the factor of the scores. mask: fixed numbers [..., n, m] (broadcast) that are added to
    the scores; a token with −∞ is hidden from the query, and every query sees some token.
    """

    scale: float | Fraction
    mask: FloatArray | None = None

    def __post_init__(self) -> None:
        if not math.isfinite(self.scale):
            raise ValueError(f"the scale of the scores must be a finite number: {self.scale}")
        if self.mask is None:
            return
        mask = np.array(self.mask, dtype=np.float64, ndmin=2)
        if not np.all(mask < math.inf) or np.any(np.all(np.isneginf(mask), axis=-1)):
            raise ValueError("a mask holds numbers or −∞, and hides not every token from a query")
        mask.setflags(write=False)
        object.__setattr__(self, "mask", mask)

    @property
    def kind(self) -> str:
        """ONNX name."""
        return "Attention"

    @property
    def family(self) -> str:
        """Rule family."""
        return "attention"

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        """[..., n, e]."""
        q, k, v = inputs
        fits = min(map(len, inputs)) >= 2 and q[:-2] == k[:-2] == v[:-2]
        if not fits or q[-1] != k[-2] or k[-1] != v[-2] or k[-1] == 0:
            raise ValueError(f"queries {q}, transposed keys {k} and values {v} do not fit")
        scores = (*q[:-1], k[-1])
        if self.mask is not None and np.broadcast_shapes(self.mask.shape, scores) != scores:
            raise ValueError(f"a mask of shape {self.mask.shape} does not fit scores {scores}")
        return (*q[:-1], v[-1])

    def output_facts(self, inputs: Sequence[ValueFacts], scope: Scope) -> ValueFacts:
        """Returns B ≥ sup ‖y‖ = √κ·X_V, and the range of every feature over the tokens.

        Proof: y is linear in V for fixed P, with norm at most √κ (see `input_lipschitz`); each
        y_i is a convex combination of the v_j.
        Attained: by equal tokens, κ being 1 then; with κ = n by scores that pick one token.
        """
        v = inputs[2]
        rule = "attention.output_norm"
        norm = product_of(rule, self.input_lipschitz(2, inputs, scope), v.norm)
        box = v.box.broadcast(v.shape)
        shape = self.output_shape([x.shape for x in inputs])
        hull = Interval(
            np.min(box.lo, axis=-2, keepdims=True), np.max(box.hi, axis=-2, keepdims=True)
        )
        tokens = Runs(len(shape) - 1, v.run_norm(-1))
        return ValueFacts.of(shape, norm, hull.broadcast(shape), tokens)

    def input_lipschitz(self, index: int, inputs: Sequence[ValueFacts], scope: Scope) -> Bound:
        """Returns scale·σ_v·σ_k for Q, scale·σ_v·min(√κ·ρ_q, X_Q/√2) for K, and √κ for V.

        Here ρ_q ≥ ‖q_i‖; σ_v² bounds the variance of uᵀv_j under any row of P for any unit u,
        likewise σ_k; and κ bounds the column sums of P.
        Hypotheses: Q, K and V are bounded (V needs nothing).
        Proof: the heads are independent. For one row p of P, ∂y_i/∂s_i = Cov_p(v, ·), so
        uᵀδy_i = Cov_p(uᵀv, δs_i) ≤ σ_v·√Var_p(δs_i) by Cauchy–Schwarz.
        σ: Var_p(t) ≤ E(t − c)², at most the largest ‖v_j − c‖² for any fixed c; and
        Var_p(t) = tᵀ(diag p − ppᵀ)t ≤ ½‖t‖², at most ½X_V².
        Q: δs_ij = scale·δq_iᵀk_j, of variance at most (scale·σ_k·‖δq_i‖)², rows being apart.
        K: δs_ij = scale·q_iᵀδk_j. Var_p(δs_i) ≤ scale²ρ_q²·Σ_j P_ij‖δk_j‖², and summing over i
        gives κ·‖δK‖²; or Var_p(δs_i) ≤ ½‖δs_i‖², which sum up to at most ½(scale·X_Q·‖δK‖)².
        V: ‖Σ_j P_ij δv_j‖² ≤ Σ_j P_ij‖δv_j‖² by convexity, and summing over i gives κ·‖δV‖².
        A hidden token has P_ij = 0, and all of this holds for any stochastic rows.
        Attained: V by scores that make all queries pick one token.
        Reference: Kim et al. 2021 and Castin et al. 2024 for cruder bounds of self-attention.
        """
        del scope
        rule = "attention.input_lipschitz"
        q, k, v = inputs
        tokens = k.shape[-1]
        if index == 2:
            return Bound(self._column_sum(q, k).sqrt(), rule)
        keys = _Rows.of(k, axis=-2)
        queries, values = _Rows.of(q, axis=-1), _Rows.of(v, axis=-1)
        if tokens == 1:
            return Bound(Upper(0.0), f"{rule}.single_token")
        scale = Bound(self._factor, rule)
        if index == 0:
            return _explained(rule, product_of(rule, scale, values.deviation, keys.deviation))
        by_rows = product_of(rule, queries.longest, Bound(self._column_sum(q, k).sqrt(), rule))
        by_norm = product_of(rule, q.norm, Bound(_ROOT_HALF, rule))
        reach = tightest(by_rows, by_norm)
        return _explained(rule, product_of(rule, scale, values.deviation, reach))

    def evaluate(self, *inputs: FloatArray) -> FloatArray:
        """Plain float64."""
        q, k, v = inputs
        scores = float(self.scale) * (q @ k)
        if self.mask is not None:
            scores = scores + self.mask
        powers = np.exp(scores - np.max(scores, axis=-1, keepdims=True))
        result: FloatArray = powers / np.sum(powers, axis=-1, keepdims=True) @ v
        return result

    @property
    def _factor(self) -> Upper:
        """|scale|."""
        return Upper.of_fraction(abs(Fraction(self.scale)))

    def _column_sum(self, q: ValueFacts, k: ValueFacts) -> Upper:
        """κ: Σ over the queries that see a token of the largest probability it may get.

        Proof: p = 1/(1 + Σ e^{differences}) over the other tokens that the query sees, and every
        difference is at least −d. Scores of one row differ by at most |scale|·ρ_q·‖k_j − k_l‖ ≤
        2|scale|·ρ_q·r, with all keys within r of one point, plus the largest difference of the
        mask within what the row sees. A hidden token gets 0.
        """
        rows = (q.shape[-2], k.shape[-1])
        mask = np.zeros(rows) if self.mask is None else self.mask
        mask = np.broadcast_to(mask, (*mask.shape[:-2], *rows))
        seen = np.isfinite(mask)
        above = np.max(mask, axis=-1, keepdims=True)
        below = np.min(np.where(seen, mask, math.inf), axis=-1, keepdims=True)
        gap = Interval.exact(above) - Interval.exact(below)
        least = exponential(-(constant(self._score_spread(q, k).value) + gap))
        others = Interval.exact(np.sum(seen, axis=-1, keepdims=True) - 1.0) * least
        share = (constant(1.0) + others.clip(0.0, math.inf)).reciprocal().clip(0.0, 1.0)
        columns = (share * Interval.exact(seen.astype(np.float64))).sum((-2,))
        return Upper(float(np.max(columns.hi)))

    def _score_spread(self, q: ValueFacts, k: ValueFacts) -> Upper:
        """Bound of the difference of two scores of one query, without mask."""
        keys, rows = _Rows.of(k, axis=-2), _Rows.of(q, axis=-1)
        if not (keys.radius.is_finite and rows.longest.is_finite):
            return Upper(math.inf)
        return Upper(2.0) * self._factor * rows.longest.value * keys.radius.value


@final
@dataclass(frozen=True, slots=True)
class _Rows:
    """What is known of the tokens of a value, over all heads.

    longest ≥ the norm of any token; radius ≥ the distance of any token of a head from a point
    that does not depend on the example; deviation ≥ the standard deviation of the projection of
    the tokens of one head, drawn with any weights, on any unit vector.
    """

    longest: Bound
    radius: Bound
    deviation: Bound

    @classmethod
    def of(cls, value: ValueFacts, axis: int) -> _Rows:
        """From norm and box; the features of a token lie along the axis (-1 or -2)."""
        rule = "attention.tokens"
        box = value.box.broadcast(value.shape)
        longest = radius = tightest(value.norm, _known(value, axis))
        if np.all(np.isfinite(box.magnitude())):
            longest = tightest(longest, Bound(_longest(box.magnitude(), axis), rule))
            radius = tightest(radius, longest, Bound(_longest(_offsets(box, axis), axis), rule))
        deviation = tightest(radius, product_of(rule, value.norm, Bound(_ROOT_HALF, rule)))
        return cls(longest, radius, deviation)


def _known(value: ValueFacts, axis: int) -> Bound:
    """The bound that comes with the value, or none."""
    norm = value.run_norm(axis)
    return Bound(norm, "attention.tokens", "" if norm.is_finite else value.norm.reason)


def _offsets(box: Interval, axis: int) -> FloatArray:
    """Bounds of |entry − centre| for centres that the tokens of a head share."""
    tokens = -2 if axis == -1 else -1
    low = np.min(box.lo, axis=tokens, keepdims=True)
    high = np.max(box.hi, axis=tokens, keepdims=True)
    return (box - Interval.exact(0.5 * low + 0.5 * high)).magnitude()


def _longest(magnitudes: FloatArray, axis: int) -> Upper:
    """The largest norm along the axis."""
    rows = np.moveaxis(magnitudes, axis, -1)
    lengths = row_norms(np.ascontiguousarray(rows).reshape(-1, rows.shape[-1]))
    largest = float(np.max(lengths, initial=0.0))
    return Upper(largest)


def _explained(rule: str, bound: Bound) -> Bound:
    if bound.is_finite:
        return bound
    return no_bound(
        rule,
        f"dot-product attention has no Lipschitz bound on unbounded tokens ({bound.reason})",
        "state an input domain (--input-norm, --input-box), or normalise the tokens (LayerNorm)",
    )
