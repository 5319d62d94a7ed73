"""Local errors of softmax, its logarithm, and dot-product attention.

What enters: ops with probabilities p = e^t/Σe^t, t ≤ 0 the distance from the largest score. What
leaves: errors from how the p are off: rounding t moves p by about |t|·p units, and Σ|t|·p ≤ ln n
for n scores, so the whole vector is off by little although single p are not.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from lipcert.audit.drift.local import Growth, LocalErrors, Site, local_errors
from lipcert.audit.drift.rounding import Rounding, joined, root
from lipcert.facts import ValueFacts
from lipcert.ops.attention import Attention
from lipcert.ops.softmax import LogSoftmax, Softmax
from lipcert.upper import INFINITE, ONE, Upper, row_norms

_TWO = Upper(2.0)


def share_error(classes: int, rounding: Rounding) -> Upper:
    """Returns B ≥ ‖fl(p) − p‖₁ for exact scores of so many classes, each operation in `rounding`.

    Proof: fl(p_i) = p_i·e^(δ_i)(1 + ε_i) with |δ_i| ≤ u|t_i| and |ε_i| ≤ γ. As |e^δ − 1| ≤
    |δ|e^|δ| and Σ p_i|t_i|·e^(u|t_i|) ≤ 2·ln n + 2 for u ≤ 2⁻⁷ (t = 0 occurs, so Σe^t ≥ 1), the
    first part is at most 2u(ln n + 1); the second is γ, because the p add up to 1.
    """
    spread = rounding.stored(2) * _logarithm(classes)
    return spread + joined(rounding.summed(classes + 2), rounding.stored(8))


def log_share_error(classes: int, rounding: Rounding) -> Upper:
    """The same for p = e^y where y = ln p is stored before: |y_i| ≤ |t_i| + ln n."""
    stored = rounding.stored(4) * _logarithm(classes)
    return Upper(4.0) * share_error(classes, rounding.inside()) + stored


def _logarithm(classes: int) -> Upper:
    """Returns B ≥ 1 + ln n."""
    return Upper(math.ceil(math.log(max(classes, 1)) * 4.0) / 4.0 + 1.0)


@local_errors.register
def _softmax(op: Softmax, site: Site) -> LocalErrors:
    """‖δp‖ ≤ ‖δp‖₁ for each slice; backwards p∘(b − pᵀb), in which p occurs three times."""
    (x,) = site.inputs
    classes, rounding = max(x.shape[op.axis], 1), site.rounding
    inside = share_error(classes, rounding.inside())
    floor = rounding.floor(x.size, 4)
    output = root(x.size // classes) * (inside + rounding.stored(1)) + floor
    back = Upper(6.0) * inside + rounding.stored(4)
    return LocalErrors(output, (Growth(back, floor),))


@local_errors.register
def _log_softmax(op: LogSoftmax, site: Site) -> LocalErrors:
    """t − ln Σe^t: both are rounded; backwards b − p·Σb with p = e^y, |y| ≤ |t| + ln n."""
    (x,) = site.inputs
    rounding, inside = site.rounding, site.rounding.inside()
    classes = max(x.shape[op.axis], 1)
    around = site.output.norm.value + root(x.size) * (_TWO * x.max_abs + ONE)
    output = inside.stored(4) * around + root(x.size) * inside.summed(classes + 2)
    output = output + rounding.stored(1) * site.output.norm.value
    back = rounding.stored(2) + root(classes) * log_share_error(classes, rounding)
    floor = rounding.floor(x.size, 8)
    return LocalErrors(output + floor, (Growth(back, floor),))


@local_errors.register
def _attention(op: Attention, site: Site) -> LocalErrors:
    """Errors in proportion to the longest tokens, with κ as in `Attention.input_lipschitz`.

    Proof: scores are off by at most δ = ρ·|scale|·ρ_q·ρ_k plus roundings of the mask, so that
    |δP| ≤ π·P with π = e^(2δ) − 1 + roundings, where rounding t counts with the largest |t|.
    Output and V: ‖P|V|‖ ≤ √κ‖V‖ and ‖Pᵀ|b|‖ ≤ √κ‖b‖. The cotangent of a score is
    P_ij(dP_ij − Σ_l P_il dP_il) with |dP_ij| ≤ ‖b_i‖ρ_v; its error is at most c·P_ij‖b_i‖ρ_v,
    c = 4(2π + roundings), and its magnitudes at most 2P_ij‖b_i‖ρ_v. Sums with the keys: rows of P
    add up to 1; with the queries: ‖Pᵀ‖b_i‖‖ ≤ √κ‖b‖.
    """
    q, k, v = site.inputs
    rounding = site.rounding
    (queries, features), (tokens, values) = q.shape[-2:], v.shape[-2:]
    column = site.lipschitz(op, 2)
    longest = _longest(q, -1), _longest(k, -2), _longest(v, -1)
    scale = Upper.of_fraction(abs(Fraction(op.scale)))
    score = scale * longest[0] * longest[1]
    masks = np.zeros(1) if op.mask is None else op.mask[np.isfinite(op.mask)]
    mask = Upper(float(np.max(np.abs(masks), initial=0.0)))
    off = joined(rounding.product(features), rounding.stored(4)) * score
    off = off + rounding.stored(8) * (score + mask)
    shares = joined(_expm1(_TWO * off), joined(rounding.summed(tokens + 2), rounding.stored(8)))
    output = joined(shares, rounding.product(tokens)) * column * v.norm.value
    dots = joined(rounding.product(values), rounding.product(tokens))
    wrong = Upper(4.0) * (_TWO * shares + dots + rounding.stored(8)) * longest[2] * scale
    sums = _TWO * longest[2] * scale
    slopes = (
        (wrong + joined(rounding.product(tokens), rounding.stored(4)) * sums) * longest[1],
        (wrong + joined(rounding.product(queries), rounding.stored(4)) * sums)
        * longest[0]
        * column,
        joined(shares, rounding.product(queries)) * column,
    )
    floors = rounding.floor(q.size + k.size + v.size, 8 * (tokens + queries + values + features))
    floors = floors * (ONE + scale) * (ONE + longest[0] + longest[1] + longest[2])
    reading = rounding.tiny * (ONE + longest[0] + longest[1] + longest[2])
    growths = tuple(Growth(slope + reading, floors) for slope in slopes)
    return LocalErrors(output + floors, growths)


def _longest(value: ValueFacts, axis: int) -> Upper:
    """The largest norm of a token, whose features lie along the axis."""
    known = min(value.norm.value, value.run_norm(axis))
    magnitude = np.moveaxis(value.box.broadcast(value.shape).magnitude(), axis, -1)
    if not np.all(np.isfinite(magnitude)):
        return known
    rows = np.ascontiguousarray(magnitude).reshape(-1, magnitude.shape[-1])
    return min(known, Upper(float(np.max(row_norms(rows), initial=0.0))))


def _expm1(exponent: Upper) -> Upper:
    """Returns B ≥ e^x − 1: x + x² for x ≤ 1 (the terms from x²/2! on add up to less than x²)."""
    return INFINITE if exponent > ONE else exponent + exponent * exponent
