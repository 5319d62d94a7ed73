"""Normalisation of blocks: x̂ = (x − m)/√(q + ε), q the mean square or the variance of a block.

And its two halves by themselves: x − m, and x over the norm of a block or a floor.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from lipcert.core.arithmetic import (
    add_down,
    divide_down,
    divide_up,
    multiply_down,
    multiply_up,
    round_down,
    round_up,
    sqrt_down,
    sqrt_up,
)
from lipcert.core.interval import Interval, exact, symmetric
from lipcert.core.program import Centre, DivideByNorm, Normalize, Shape
from lipcert.core.rules.facts import Fact, box_norm, root_up


def normalize_norm(op: Normalize, shape: Shape) -> float:
    """1/√ε ≥ the Lipschitz constant; inf for ε = 0, 0 where x̂ is always 0.

    Proof: the Jacobian of a block is (P − x̂x̂ᵀ/n)/√(q + ε) with the projection P = I, or
    P = I − 11ᵀ/n, and 0 ≤ P − x̂x̂ᵀ/n ≤ I.
    Attained: at q = 0.
    """
    if op.centred and _block(op, shape) == 1:
        return 0.0
    return divide_up(1.0, sqrt_down(op.epsilon)) if op.epsilon > 0.0 else math.inf


def normalized(op: Normalize, x: Fact, shape: Shape) -> Fact:
    """Bounds of x̂, of its entries, and of its runs: inside a block, or across blocks."""
    block = _block(op, shape)
    axes = {axis % len(shape) for axis in op.axes}

    def line(axis: int) -> float:
        if len(shape) < -axis:
            return math.inf
        inside = len(shape) + axis in axes
        return _part(op, x, block, *((1, shape[axis]) if inside else (shape[axis], 1)))

    entry = _part(op, x, block, 1, 1)
    norm = _part(op, x, block, math.prod(shape) // block, block)
    return Fact.of(shape, norm, symmetric(entry, (1,) * len(shape)), line(-1), line(-2))


def _part(op: Normalize, x: Fact, n: int, blocks: int, picked: int) -> float:
    """≥ ‖x̂_S‖, where S picks so many entries in each of so many blocks of n entries.

    Proof: in one block Σ_S x̂² ≤ s·q/(q + ε): s = n, since Σ x̂² = n·q/(q + ε); s = n − 1 for a
    single entry if Σ x̂ = 0 (Cauchy–Schwarz on the others). q/(q + ε) is concave in q, and
    Σ n·q ≤ X², so that τ blocks have at most s·τ·X²/(X² + n·τ·ε).
    Attained: s = n − 1 by one entry against all others; s = n by two opposite entries, or any
    entry if not centred; the norm shared equally between blocks.
    """
    share = n - 1 if op.centred and picked == 1 else n
    square = multiply_up(x.norm, x.norm)
    if op.epsilon <= 0.0 or not 0.0 < square < math.inf:
        fraction = 0.0 if square == 0.0 and op.epsilon > 0.0 else 1.0
    else:
        damping = divide_down(multiply_down(float(n * blocks), op.epsilon), square)
        fraction = divide_up(1.0, add_down(1.0, damping))
    return sqrt_up(multiply_up(float(share * blocks), fraction))


def _block(op: Normalize | Centre | DivideByNorm, shape: Shape) -> int:
    return math.prod(shape[axis] for axis in op.axes)


def centre_norm(op: Centre, shape: Shape) -> float:
    """1, the norm of the projection P away from constant blocks; 0 for blocks of one entry."""
    return 0.0 if _block(op, shape) == 1 else 1.0


def centred(op: Centre, x: Fact, shape: Shape) -> Fact:
    """‖Px‖ ≤ min(X, ‖x − c‖), the box less its mean, and runs that are whole blocks as they are.

    Proof: ‖P‖ ≤ 1 and Px = P(x − c) for any c that is constant on blocks, here the middle of what
    the box allows a block. Attained: by x without mean; by equally many entries at both ends.
    """
    if _block(op, shape) == 1:
        return Fact.of(shape, 0.0)
    axes = tuple(axis % len(shape) for axis in op.axes)
    known = math.prod(x.box.shape[axis] for axis in axes)  # each stands for several entries
    share = Interval(*(np.array(end(Fraction(1, known))) for end in (round_down, round_up)))
    low = np.min(x.box.lo, axis=axes, keepdims=True)
    high = np.max(x.box.hi, axis=axes, keepdims=True)
    is_known = np.isfinite(low) & np.isfinite(high)
    middle = 0.5 * np.where(is_known, low, 0.0) + 0.5 * np.where(is_known, high, 0.0)
    distance = box_norm(x.box - exact(middle), shape)
    return Fact.of(
        shape,
        min(x.norm, distance),
        x.box - x.box.sum(axes) * share,
        x.run if axes == (len(shape) - 1,) else math.inf,
        x.column if axes == (len(shape) - 2,) else math.inf,
    )


def division_norm(op: DivideByNorm) -> float:
    """1/floor ≥ the Lipschitz constant.

    Proof: with d = share·‖x‖ and u = x/‖x‖ of a block, the Jacobian is I/floor where d < floor,
    (I − uuᵀ)/d where d > floor, and between them where both meet. Attained: at x = 0.
    """
    return divide_up(1.0, op.floor) if op.floor > 0.0 else math.inf


def radius_up(op: DivideByNorm) -> float:
    """1/share ≥ the norm of every block."""
    share = float(np.min(op.share.lo))
    return divide_up(1.0, share) if share > 0.0 else math.inf


def divided_by_norm(op: DivideByNorm, x: Fact, shape: Shape) -> Fact:
    """min(√τ/share, X/floor) for τ blocks; entries are t·x with 0 ≤ t ≤ 1/floor.

    Attained: the norm shared equally between blocks.
    """
    steepest, radius = division_norm(op), radius_up(op)
    if not (steepest < math.inf and radius < math.inf):
        return Fact.of(shape)
    axes = {axis % len(shape) for axis in op.axes}
    blocks = math.prod(shape) // max(_block(op, shape), 1)
    norm = min(multiply_up(root_up(blocks), radius), multiply_up(steepest, x.norm))
    box = x.box * Interval(np.zeros(()), np.array(steepest))
    box = box.meet(symmetric(radius, (1,) * len(shape)))
    if (x.box.lo >= 0.0).all():
        box = Interval(np.maximum(box.lo, 0.0), np.maximum(box.hi, 0.0))

    def line(axis: int, before: float) -> float:
        inside = radius if len(shape) + axis in axes else math.inf
        return min(inside, multiply_up(steepest, before))

    return Fact.of(shape, norm, box, line(-1, x.run), line(-2, x.column))
