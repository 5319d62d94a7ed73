"""Normalisation of blocks: x̂ = (x − m)/√(q + ε), q the mean square or the variance of a block."""

from __future__ import annotations

import math

from lipcert.checker.arithmetic import (
    add_down,
    divide_down,
    divide_up,
    multiply_down,
    multiply_up,
    sqrt_down,
    sqrt_up,
)
from lipcert.checker.graph.program import Normalize, Shape
from lipcert.checker.interval import symmetric
from lipcert.checker.rules.facts import Fact

__all__ = ["normalize_norm", "normalized"]


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


def _block(op: Normalize, shape: Shape) -> int:
    return math.prod(shape[axis] for axis in op.axes)
