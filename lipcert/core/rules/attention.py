"""Dot-product attention as one step: y_i = Σ_j P_ij·v_j, P = softmax(scale·QKᵀ + mask)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from lipcert.core.arithmetic import add_up, multiply_down, multiply_up, sqrt_up
from lipcert.core.enclosures import exp
from lipcert.core.interval import Array, Interval, clip, down, exact, up
from lipcert.core.program import Shape
from lipcert.core.rules.base import Rule
from lipcert.core.rules.broadcasting import by_token
from lipcert.core.rules.facts import Cotangent, Fact, longest_run, token_axis
from lipcert.core.token_kinds import Attention

_CELLS: Final = 16
"""parts of the lengths of tokens, each bounded by its ends"""
_ALL_BUT_HIDDEN: Final = 64.0
"""a mask that takes so much from a score leaves e^−64 of it"""


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
        (q, k, *_), shapes = self.inputs, self.shapes
        if index > 2 or not self._has_heads:
            return math.inf
        if index < 2 and shapes[1][-1] == 1:  # one token: P is 1
            return 0.0
        if index == 0:
            return multiply_up(self._ahead, _deviation(k, k.column_spread, shapes[1], -2))
        chances = self._chances(self._reach)
        columns = sqrt_up(chances.column)
        if index == 2:
            return min(columns, sqrt_up(chances.squares))
        share = sqrt_up(min(chances.largest, 0.5))
        reach = min(multiply_up(q.row_norm, columns), multiply_up(q.norm, share))
        return multiply_up(self._ahead, reach)

    @property
    def _has_heads(self) -> bool:
        """Whether the leading axes are equal, so that heads are independent."""
        queries, keys, values = self.shapes[:3]
        return queries[:-2] == keys[:-2] == values[:-2]

    @property
    def _ahead(self) -> float:
        """scale·σ_v."""
        values = self.inputs[2]
        deviation = _deviation(values, values.row_spread, self.shapes[2], -1)
        return multiply_up(abs(self.op.scale), deviation)

    def tokens_pulled(self, index: int, cotangent: Cotangent) -> tuple[int, float] | None:
        """Σ_i ‖g_i‖ times scale·σ_v·σ_k for Q, scale·σ_v·min(ρ, ρ_q·√β) for K, min(√H, √α) for V.

        Here H is the number of heads, ρ ≥ ‖q_i‖ of all of them together, α bounds m_i·Σ_j P_ij² and
        β bounds m_i·max_j P_ij of every query i, which sees m_i tokens; g_i, and what a token
        receives, are of all heads.
        Proof: what arrives is the sum of what each i alone sends, and norms add.
        Q: to itself alone, in each head at most that constant times ‖g_i^h‖.
        V: to token j of head h P_ij^h·g_i^h. Σ_j √Σ_h (P_ij^h‖g_i^h‖)² ≤ Σ_h Σ_j P_ij^h‖g_i^h‖ =
        Σ_h ‖g_i^h‖ ≤ √H‖g_i‖; or, by Cauchy–Schwarz over the tokens that i sees in some head,
        ≤ √m_i·√Σ_h ‖g_i^h‖²Σ_j (P_ij^h)².
        K: scale·P_ij c_ij·q_i, c_ij = g_iᵀ(v_j − y_i), in place of P_ij g_i, where Σ_j P_ij|c_ij| ≤
        √(Σ_j P_ij c_ij²) ≤ σ_v‖g_i‖, and Σ_j (P_ij c_ij)² ≤ max P_ij·(σ_v‖g_i‖)². The heads add up
        to Σ_h σ_v‖g_i^h‖‖q_i^h‖ ≤ σ_v‖g_i‖ρ.
        Attained: V by one head, or by as many heads as tokens, each of which picks another.
        """
        if index > 2 or not self._has_heads:
            return None
        total = by_token(cotangent, -2, self.shape)
        if index == 0:
            return -2, multiply_up(self.lipschitz(0), total)
        chances, q = self._chances(self._reach), self.inputs[0]
        if index == 2:
            heads = float(math.prod(self.shape[:-2]))
            return -2, multiply_up(sqrt_up(min(heads, chances.flat)), total)
        reach = min(q.token_norm, multiply_up(q.row_norm, sqrt_up(chances.steep)))
        return -1, multiply_up(multiply_up(self._ahead, reach), total)

    def damped(self, keys: float, values: float, longest: float) -> tuple[float, float, float]:
        """Those constants for Q, K and V where token j counts s_j times, s_j² ≤ 1 − t_j².

        Hypotheses: 0 ≤ t_j ≤ longest ≤ 1, and k_j and v_j are at most keys·t_j and values·t_j
        away from points of their own.
        V: scale·values·min(½√κ·ρ_q, √min(π/4, 0.133)·X_Q) for K, and for V the root of the largest
        (1 − t²)·κ(t), κ(t) bounding the column sum of a token of that t.
        Proof: Σ_j s_j²‖Σ_i P_ij g_i‖² ≤ Σ_j s_j²(Σ_i P_ij)·Σ_i P_ij‖g_i‖². Scores of j are apart
        from those of another token by at most scale·ρ_q·keys·(t_j + longest).
        K receives Σ_i P_ij c_ij·scale·q_i, c_ij = ‖g_i‖·values·(a_j − μ), μ = Σ_j P_ij a_j, for
        numbers |a_j| ≤ t_j. As (1 − a²)(a − μ)² = ¼ − μ(a − μ) − (a² − μa − ½)², the mean
        Σ_j P_ij s_j²(a_j − μ)² is at most ¼, from which both bounds follow as in `lipschitz`, the
        second one with Σ_j P_ij² s_j²(a_j − μ)² ≤ π/4. That sum is below 0.133 too: if all
        P_ij ≤ ½, it is at most ⅛. Else let 1 − q be the largest; its own term T of the mean is
        (1 − q)q²·(1 − a²)(a − m)² with m the mean of the others, at most (27/16)(1 − q)q², and
        the sum is no more than (1 − q)T + q(¼ − T), hence q/4 + (27/16)(1 − 2q)(1 − q)q².
        Attained: K by two tokens of equal weight, a = ±√½, but for 0.133 in place of ⅛.
        """
        plain = self.lipschitz(0), self.lipschitz(1), self.lipschitz(2)
        if plain[2] == math.inf:  # heads are not independent
            return plain
        q, scale, chances = self.inputs[0], abs(self.op.scale), self._chances(self._reach)
        by_row = multiply_up(q.row_norm, multiply_up(0.5, sqrt_up(chances.column)))
        by_norm = multiply_up(q.norm, sqrt_up(min(multiply_up(0.25, chances.largest), 0.133)))
        ahead = multiply_up(multiply_up(scale, values), min(by_row, by_norm))
        reach, column = multiply_up(multiply_up(scale, q.row_norm), keys), 0.0
        seen, rivals = self._rivals
        for cell in range(_CELLS):
            low, high = (longest * ((cell + end) / _CELLS) for end in (0, 1))
            share = _shares(rivals, multiply_up(reach, add_up(high, longest)))
            known = min(self._added(np.where(seen, share, 0.0)), chances.column)
            column = max(column, multiply_up(known, add_up(1.0, -multiply_down(low, low))))
            if column >= chances.column or self._hides:
                column = chances.column
                break
        return plain[0], min(plain[1], ahead), min(plain[2], sqrt_up(column))

    @property
    def _reach(self) -> float:
        """How far scores of a query can be apart: 2·scale·ρ_q·r, all keys within r of a point."""
        q, k = self.inputs[:2]
        radius = _radius(k, k.column_spread, self.shapes[1])
        return multiply_up(2.0 * abs(self.op.scale), multiply_up(q.row_norm, radius))

    @property
    def _hides(self) -> bool:
        """Whether a value says what is hidden."""
        return len(self.inputs) > 3

    def _chances(self, reach: float) -> _Chances:
        """What bounds the probabilities that the queries of a head may give to what they see.

        reach: of how far their scores are apart, but for the mask m.
        Proof: p_j = 1/(1 + Σ e^(s_l − s_j)) over the other tokens that the query sees, and
        s_l − s_j ≥ m_l − m_j − reach. A hidden token gets 0. Where a mask may hide a token or not,
        it may be the only one seen; where a value hides tokens, a query may see one alone. Of n
        numbers that sum up to at most 1, the largest at most e^d times the least, the squares sum
        up to at most (e^d + 2 + e^−d)/4n (Kantorovich): of those tokens that no mask all but
        hides; the others add the squares of what they may get.
        """
        if self._hides:
            queries, keys = float(self.shapes[0][-2]), float(self.shapes[1][-1])
            return _Chances(queries, queries, 1.0, keys, keys)
        mask, (seen, rivals) = self._mask, self._rivals
        chances = np.where(seen, _shares(rivals, reach), 0.0)
        main = seen & (mask.hi >= np.max(mask.lo, axis=-1, keepdims=True) - _ALL_BUT_HIDDEN)
        least = np.min(np.where(main, mask.lo, np.inf), axis=-1, keepdims=True)
        gap = up(np.max(np.where(main, mask.hi, -np.inf), axis=-1, keepdims=True) - least)
        smallest = exp(-(exact(reach) + exact(gap)))
        number = exact(np.sum(main, axis=-1, keepdims=True, dtype=np.float64))
        fourfold = smallest + exact(2.0) + smallest.reciprocal()
        squares = fourfold * (exact(4.0) * number).reciprocal()
        rest = exact(np.where(main, 0.0, chances))
        squares = squares + (rest * rest).sum((rest.lo.ndim - 1,))
        most = np.minimum(squares.hi, 1.0)
        in_any = np.any(seen.reshape(-1, *seen.shape[-2:]), axis=0)
        tokens = np.sum(in_any, axis=-1, keepdims=True, dtype=np.float64)
        return _Chances(
            self._added(chances),
            self._added(most),
            float(np.max(chances, initial=0.0)),
            float(np.max(up(tokens * most), initial=0.0)),
            float(np.max(up(tokens * chances), initial=0.0)),
        )

    @property
    def _mask(self) -> Interval:
        """Of each key, for each query or for all of them."""
        op = self.op
        mask = exact(np.zeros((1, 1))) if op.mask is None else self.weights.entries(op.mask)
        mask = mask.moved(np.atleast_2d)
        return mask.broadcast((*mask.shape[:-1], self.shapes[1][-1]))

    @property
    def _rivals(self) -> tuple[npt.NDArray[np.bool_], Array]:
        """Whether a token may be seen, and Σ e^(m_l − m_j) over all others, at least."""
        mask = self._mask
        seen, top = mask.hi > -np.inf, np.max(mask.lo, axis=-1, keepdims=True)
        known = exact(np.where(top > -np.inf, top, 0.0))
        odds = exp(exact(mask.lo) - known)
        below = exp(known - exact(np.where(seen, mask.hi, known.lo)))
        others = clip(odds.sum((odds.lo.ndim - 1,)) - odds, 0.0, math.inf) * below
        return seen, others.lo

    def _added(self, rows: Array) -> float:
        """≥ the largest sum over the queries."""
        copies, axis = self.shapes[0][-2] // rows.shape[-2], rows.ndim - 2
        return multiply_up(float(copies), float(np.max(exact(rows).sum((axis,)).hi, initial=0.0)))


def _shares(rivals: Array, reach: float) -> Array:
    """1/(1 + e^−reach·rivals), rounded up; at most 1."""
    far = float(exp(exact(-reach)).lo)
    return np.minimum(up(1.0 / down(1.0 + np.maximum(down(far * rivals), 0.0))), 1.0)


@dataclass(frozen=True, slots=True)
class _Chances:
    """Of every matrix P of a head: bounds of column sums, of ‖P‖_F², and of entries; and, for
    every query, of the number of tokens that it sees times Σ_j P_ij², or times P_ij."""

    column: float
    squares: float
    largest: float
    flat: float
    steep: float


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
