"""Dot-product attention as one step: y_i = Σ_j P_ij·v_j, P = softmax(scale·QKᵀ + mask)."""

from __future__ import annotations

import math

import numpy as np

from lipcert.checker.arithmetic import multiply_up, sqrt_up
from lipcert.checker.graph.program import Attention, Shape
from lipcert.checker.interval import Interval, up
from lipcert.checker.rules.facts import Fact, longest_run, root_up

__all__ = ["attended", "attention_norm"]

_Three = tuple[Fact, Fact, Fact]


def attention_norm(
    op: Attention, index: int, inputs: _Three, shapes: tuple[Shape, Shape, Shape]
) -> float:
    """scale·σ_v·σ_k for Q, scale·σ_v·min(√κ·ρ_q, X_Q/√2) for K, and √κ for V.

    Here ρ_q ≥ ‖q_i‖; σ_v² bounds the variance of uᵀv_j under any row of P for any unit u, and σ_k
    likewise; κ bounds the column sums of P: the number of queries, since a mask may let all of
    them see one token only.
    Hypothesis: equal leading axes, the heads, so that heads are independent.
    Proof: for a row p of P, ∂y_i/∂s_i = Cov_p(v, ·), so that
    uᵀδy_i = Cov_p(uᵀv, δs_i) ≤ σ_v·√Var_p(δs_i) by Cauchy–Schwarz.
    Q: δs_ij = scale·δq_iᵀk_j, of variance at most (scale·σ_k·‖δq_i‖)², rows being apart.
    K: δs_ij = scale·q_iᵀδk_j. Var_p(δs_i) ≤ scale²ρ_q²·Σ_j P_ij‖δk_j‖², and summing over i gives
    κ·‖δK‖²; or Var_p(δs_i) ≤ ½‖δs_i‖², which sum up to at most ½(scale·X_Q·‖δK‖)².
    V: ‖Σ_j P_ij δv_j‖² ≤ Σ_j P_ij‖δv_j‖² by convexity, and summing over i gives κ·‖δV‖².
    Attained: V by scores that make all queries pick one token.
    """
    q, k, v = inputs
    if not _apart(shapes):
        return math.inf
    column = root_up(shapes[0][-2])
    if index == 2:
        return column
    if shapes[1][-1] == 1:  # one token: P is 1
        return 0.0
    values = multiply_up(abs(op.scale), _deviation(v, v.run, shapes[2], -1))
    if index == 0:
        return multiply_up(values, _deviation(k, k.column, shapes[1], -2))
    reach = min(multiply_up(q.run, column), multiply_up(q.norm, sqrt_up(0.5)))
    return multiply_up(values, reach)


def attended(inputs: _Three, shapes: tuple[Shape, Shape, Shape], shape: Shape) -> Fact:
    """√κ·X_V, and the hull of the tokens: every y_i is a mean of the v_j, no longer than one.

    Attained: with κ = n by scores that pick one token.
    """
    v = inputs[2]
    if not _apart(shapes):
        return Fact.of(shape)
    hull = Interval(
        np.min(v.box.lo, axis=-2, keepdims=True), np.max(v.box.hi, axis=-2, keepdims=True)
    )
    return Fact.of(shape, multiply_up(root_up(shapes[0][-2]), v.norm), hull, run=v.run)


def _apart(shapes: tuple[Shape, Shape, Shape]) -> bool:
    """Whether no head shares queries, keys or values with another one."""
    return shapes[0][:-2] == shapes[1][:-2] == shapes[2][:-2]


def _deviation(tokens: Fact, longest: float, shape: Shape, axis: int) -> float:
    """≥ the standard deviation of uᵀt_j over the tokens of a head, weighted in any way, ‖u‖ = 1.

    axis: along which the features of a token lie, −1 or −2.
    Proof: Var_p(t) ≤ E(t − c)² for any c, at most the largest ‖t_j − c‖², with c = 0 or the middle
    of the box; and Var_p(t) = tᵀ(diag p − ppᵀ)t ≤ ½‖t‖², at most ½X².
    """
    other = -3 - axis
    low = np.min(tokens.box.lo, axis=other, keepdims=True)
    high = np.max(tokens.box.hi, axis=other, keepdims=True)
    half = multiply_up(tokens.norm, sqrt_up(0.5))
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        return min(longest, half)
    centre = 0.5 * low + 0.5 * high
    offset = np.maximum(up(high - centre), up(centre - low))
    around = Interval(-offset, offset)
    return min(longest, half, longest_run(around, shape, axis))
