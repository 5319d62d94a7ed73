"""Dot-product attention as one step: y_i = Σ_j P_ij·v_j, P = softmax(scale·QKᵀ + mask)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np

from lipcert.core.arithmetic import multiply_up, sqrt_up
from lipcert.core.interval import Interval, clip, exact, up
from lipcert.core.program import Attention, Shape
from lipcert.core.rules.base import Rule
from lipcert.core.rules.enclosures import exp
from lipcert.core.rules.facts import Fact, longest_run, token_axis


class AttentionRule(Rule[Attention]):
    """Queries, keys and values of every head."""

    def fact(self) -> Fact:
        """√κ·X_V, and the hull of the tokens: every y_i is a mean of the v_j, no longer than one.

        A query that is to see nothing has the output 0.

        Proof: for fixed P linear in V, with the norm of `lipschitz`.
        Attained: with κ = n by scores that pick one token.
        """
        v, norm = self.inputs[2], self.lipschitz(2)
        if norm == math.inf:
            return Fact.of(self.shape)
        low = np.min(v.box.lo, axis=-2, keepdims=True)
        high = np.max(v.box.hi, axis=-2, keepdims=True)
        if self._hides:
            low, high = np.minimum(low, 0.0), np.maximum(high, 0.0)
        same = token_axis(self.shape) == token_axis(self.shapes[2])
        return Fact.of(
            self.shape,
            multiply_up(norm, v.norm),
            Interval(low, high),
            row_norm=v.row_norm,
            row_spread=v.row_spread if same and not self._hides else math.inf,
        )

    def lipschitz(self, index: int) -> float:
        """scale·σ_v·σ_k for Q, scale·σ_v·min(√κ·ρ_q, √π·X_Q) for K, and min(√κ, F) for V.

        Here ρ_q ≥ ‖q_i‖; σ_v² bounds the variance of uᵀv_j under any row of P for any unit u, and
        σ_k likewise; κ bounds the column sums of P, F ≥ ‖P‖_F, and π every entry, or is ½.
        Hypothesis: equal leading axes, the heads, so that heads are independent.
        Proof: for a row p of P, ∂y_i/∂s_i = Cov_p(v, ·), so that
        uᵀδy_i = Cov_p(uᵀv, δs_i) ≤ σ_v·√Var_p(δs_i) by Cauchy–Schwarz.
        Q: δs_ij = scale·δq_iᵀk_j, of variance at most (scale·σ_k·‖δq_i‖)², rows being apart.
        K: δs_ij = scale·q_iᵀδk_j. Var_p(δs_i) ≤ scale²ρ_q²·Σ_j P_ij‖δk_j‖², and summing over i
        gives κ·‖δK‖²; or Var_p(δs_i) ≤ π‖δs_i‖², as diag p − ppᵀ is at most diag p, and at most ½,
        and these sum up to at most π(scale·X_Q·‖δK‖)².
        V: ‖Σ_j P_ij δv_j‖² ≤ Σ_j P_ij‖δv_j‖² by convexity, and summing over i gives κ·‖δV‖²; or
        ‖PδV‖ ≤ ‖P‖‖δV‖.
        A hidden token has P_ij = 0, and all of this holds for any stochastic rows, and for rows of
        0. What is hidden by a value jumps: no constant.
        Attained: V by scores that make all queries pick one token.
        """
        (q, k, v, *_), shapes = self.inputs, self.shapes
        if index > 2 or not shapes[0][:-2] == shapes[1][:-2] == shapes[2][:-2]:
            return math.inf
        if index < 2 and shapes[1][-1] == 1:  # one token: P is 1
            return 0.0
        values = multiply_up(abs(self.op.scale), _deviation(v, v.row_spread, shapes[2], -1))
        if index == 0:
            return multiply_up(values, _deviation(k, k.column_spread, shapes[1], -2))
        chances = self._chances()
        columns = sqrt_up(chances.column)
        if index == 2:
            return min(columns, sqrt_up(chances.squares))
        share = sqrt_up(min(chances.largest, 0.5))
        reach = min(multiply_up(q.row_norm, columns), multiply_up(q.norm, share))
        return multiply_up(values, reach)

    @property
    def _hides(self) -> bool:
        """Whether a value says what is hidden."""
        return len(self.inputs) > 3

    def _chances(self) -> _Chances:
        """What bounds the probabilities that the queries of a head may give to what they see.

        Proof: p = 1/(1 + Σ e^differences) over the other tokens that the query sees, and no
        difference is below −d. Scores of a row differ by at most |scale|·ρ_q·‖k_j − k_l‖ ≤
        2|scale|·ρ_q·r, all keys of a head being within r of one point, plus the largest difference
        of the mask in what the row sees. A hidden token gets 0. Where a mask may hide a token or
        not, d is inf; where a value hides tokens, a query may see one alone. Of m numbers that sum
        up to 1, the largest at most e^d times the least, the squares sum up to at most
        (e^d + 2 + e^−d)/4m (Kantorovich), and to at most 1.
        """
        op, (q, k, *_), shapes = self.op, self.inputs, self.shapes
        queries, keys = shapes[0][-2], shapes[1][-1]
        if self._hides:
            return _Chances(float(queries), float(queries), 1.0)
        mask = exact(np.zeros((1, 1))) if op.mask is None else self.weights.entries(op.mask)
        mask = mask.broadcast((*mask.shape[:-2], queries, keys))
        seen = mask.hi > -np.inf
        least = np.min(np.where(seen, mask.lo, np.inf), axis=-1, keepdims=True)
        gap = up(np.max(mask.hi, axis=-1, keepdims=True) - least)
        radius = _radius(k, k.column_spread, shapes[1])
        reach = multiply_up(2.0 * abs(op.scale), multiply_up(q.row_norm, radius))
        smallest = exp(-(exact(reach) + exact(gap)))
        number = exact(np.sum(seen, axis=-1, keepdims=True, dtype=np.float64))
        others = (number - exact(1.0)) * smallest
        share = (exact(1.0) + clip(others, 0.0, math.inf)).reciprocal()
        chances = exact(np.where(seen, np.minimum(share.hi, 1.0), 0.0))
        fourfold = smallest + exact(2.0) + smallest.reciprocal()
        squares = fourfold * (exact(4.0) * number).reciprocal()
        squares = exact(np.minimum(squares.hi, 1.0)).sum((squares.lo.ndim - 2,))
        return _Chances(
            float(np.max(chances.sum((chances.lo.ndim - 2,)).hi, initial=0.0)),
            float(np.max(squares.hi, initial=0.0)),
            float(np.max(chances.hi, initial=0.0)),
        )


@final
@dataclass(frozen=True, slots=True)
class _Chances:
    """Of every matrix P of a head: bounds of column sums, of ‖P‖_F², and of entries."""

    column: float
    squares: float
    largest: float


def _deviation(tokens: Fact, spread: float, shape: Shape, axis: int) -> float:
    """≥ the standard deviation of uᵀt_j over the tokens of a head, weighted in any way, ‖u‖ = 1.

    Proof: Var_p(t) ≤ E(t − c)² for any c, at most the largest ‖t_j − c‖²; and
    Var_p(t) = tᵀ(diag p − ppᵀ)t ≤ ½‖t‖², at most ½X².
    """
    half = multiply_up(tokens.norm, sqrt_up(0.5))
    return min(half, _radius(tokens, spread, shape, axis))


def _radius(tokens: Fact, spread: float, shape: Shape, axis: int = -2) -> float:
    """≥ the distance of the tokens of a head from a point: the middle of the box, or another.

    spread: from that other point. axis: along which the features of a token lie, −1 or −2.
    """
    other = -3 - axis
    low = np.min(tokens.box.lo, axis=other, keepdims=True)
    high = np.max(tokens.box.hi, axis=other, keepdims=True)
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        return spread
    centre = 0.5 * low + 0.5 * high
    offset = np.maximum(up(tokens.box.hi - centre), up(centre - tokens.box.lo))
    return min(spread, longest_run(Interval(-offset, offset), shape, axis))
