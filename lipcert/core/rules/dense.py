"""Dense: y[..., o] = Σ_i W[o, i]·x[..., i] + b[o] at P positions, and norms of affine maps."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from lipcert.core.arithmetic import add_up, multiply_up, sqrt_up
from lipcert.core.interval import Array, Interval, exact, norm_up, symmetric, up
from lipcert.core.program import Dense, Shape
from lipcert.core.rules.facts import Cotangent, Fact, Hull, box_norm, lengths_up, root_up
from lipcert.core.rules.matrices import product, transposed
from lipcert.core.rules.weights import Weights

_LARGEST_HULL: Final = 5000
_BLOCK: Final = 1 << 22


def dense_fact(
    op: Dense, x: Fact, before: Shape, after: Shape, *, weights: Weights, output: str
) -> Fact:
    """Norm: the least of `affine_norm`, round 0 and round the centre c of the box.

    Proof: ‖Wx + b‖ ≤ ‖Wc + b‖ + ‖W‖‖x − c‖. A run is an x_p with P = 1. An entry lies in the
    product of row and box, and |⟨w_o, x_p⟩| ≤ ‖w_o‖‖x_p‖.
    Attained: without bias, by the first right singular vector.
    """
    if before[-1:] != op.weight.shape[1:] or after != (*before[:-1], op.weight.shape[0]):
        raise ValueError("a dense weight does not fit its input")
    weight = weights.entries(op.weight)
    largest = weights.operator_norm(output, op, before, after)
    positions = math.prod(before[:-1])
    bias = symmetric(0.0, (len(weight.lo),))
    shift = cross = 0.0
    if op.bias is not None:
        bias, shift = weights.entries(op.bias), weights.norm(op.bias)
        cross = norm_up(_times(bias, transposed(weight)).magnitude())
    norms = [
        affine_norm(largest, x.norm, multiply_up(root_up(positions), cross), shift, positions),
        _round_centre((weight, bias), x, before, after, largest),
    ]
    run = affine_norm(largest, x.run, cross, shift, 1)
    rows = np.minimum(lengths_up(weight.magnitude()), min(weights.norm(op.weight), largest))
    reach = exact(rows) * symmetric(x.run, rows.shape)
    full = x.box.broadcast((*x.box.shape[:-1], before[-1]))
    box = _times(full, weight).meet(reach) + bias
    return Fact.of(after, min(norms), box, run)


def affine_norm(largest: float, x: float, cross: float, shift: float, copies: int) -> float:
    """≥ ‖Tx + s‖, s a shift added `copies` times, where ‖T‖ ≤ largest and ‖Tᵀs‖ ≤ cross.

    Proof: ‖Tx‖ + ‖s‖, or the square expanded: ‖Tx‖² + 2⟨x, Tᵀs⟩ + ‖s‖², where ‖s‖ = √copies·shift.
    """
    linear, added = multiply_up(largest, x), multiply_up(root_up(copies), shift)
    square = add_up(multiply_up(linear, linear), multiply_up(added, added))
    square = add_up(square, multiply_up(2.0, multiply_up(x, cross)))
    return min(add_up(linear, added), sqrt_up(square))


def _round_centre(
    affine: tuple[Interval, Interval], x: Fact, before: Shape, after: Shape, largest: float
) -> float:
    weight, bias = affine
    full = x.box.broadcast((*x.box.shape[:-1], before[-1]))
    if not np.isfinite(full.magnitude()).all():
        return math.inf
    centre = exact(0.5 * full.lo + 0.5 * full.hi)
    image = _times(centre, weight) + bias
    return add_up(box_norm(image, after), multiply_up(largest, box_norm(full - centre, before)))


def _times(rows: Interval, weight: Interval) -> Interval:
    """Σ_i weight[o, i]·rows[..., i]."""
    length, shape = rows.shape[-1], (*rows.shape[:-1], len(weight.lo))
    flat = Interval(rows.lo.reshape(-1, length), rows.hi.reshape(-1, length))
    found = product(flat, transposed(weight))
    return Interval(found.lo.reshape(shape), found.hi.reshape(shape))


def dense_cotangent(
    op: Dense, cotangent: Cotangent, before: Shape, after: Shape, *, weights: Weights, output: str
) -> Cotangent:
    """‖W‖·l; also the hull's vertices, at one position.

    Proof: ‖Wᵀg‖ is a convex function of g, hence largest at a vertex of the hull.
    """
    norm = multiply_up(weights.operator_norm(output, op, before, after), cotangent.norm)
    hull = cotangent.hull
    if hull is not None and math.prod(after) == hull.classes == after[-1]:
        norm = min(norm, pair_norm(weights.entries(op.weight), hull))
    return Cotangent(norm)


def pair_norm(weight: Interval, hull: Hull) -> float:
    """≥ scale·max over classes j, y of ‖Wᵀ(e_j − t_y)‖₂, for W [classes, inputs].

    Proof: the entries of e_j − t_y sum to 0, so a vector c may be taken from every row: with
    A = W − c and B_y = (1 − s)·A_y + s·(mean of A) the vertex is A_j − B_y. Both are intervals, and
    no row is further from its lower end than the norm of all widths.
    Attained: up to rounding, where W is exact.
    """
    if hull.classes > _LARGEST_HULL or not np.isfinite(weight.magnitude()).all():
        return math.inf
    centred = weight - exact(np.mean(weight.lo, axis=0, keepdims=True))
    target = centred
    if hull.smoothing > 0.0:
        share = exact(hull.smoothing)
        mean = centred.sum((0,)) * exact(float(hull.classes)).reciprocal()
        target = centred * (exact(1.0) - share) + mean * share
    found = _largest_distance(centred.lo, target.lo)
    for rows in (centred, target):
        found = add_up(found, norm_up(up(rows.hi - rows.lo)))
    return multiply_up(found, hull.scale)


def _largest_distance(left: Array, right: Array) -> float:
    """≥ the largest distance of a row on the left from a row on the right.

    Proof: |a|² + |b|² − 2ab, each of the three terms with an error of γ_n times a bound of it, and
    two additions: less than γ_{n+4}·(max|a| + max|b|)² altogether, and 4n·2^-1022 by underflow.
    """
    terms = left.shape[1]
    longest = [float(np.max(lengths_up(rows), initial=0.0)) for rows in (left, right)]
    reach = add_up(*longest)
    if not reach < 1e150:
        return math.inf
    a = np.einsum("ij,ij->i", left, left)
    b = np.einsum("ij,ij->i", right, right)
    step = max(1, _BLOCK // max(len(right), 1))
    largest = 0.0
    for start in range(0, len(left), step):
        rows = slice(start, start + step)
        squares = a[rows, None] + b - 2.0 * (left[rows] @ right.T)
        largest = max(largest, float(np.max(squares, initial=0.0)))
    error = multiply_up((terms + 8) * 2.0**-51, multiply_up(reach, reach))
    return sqrt_up(add_up(add_up(largest, error), terms * 2.0**-1016))
