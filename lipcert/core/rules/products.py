"""Products and quotients of two values, entry by entry or as matrices.

Both factors come from the input, so that each one's Jacobian is as large as the other can be.
"""

from __future__ import annotations

import math

import numpy as np

from lipcert.core.arithmetic import multiply_up
from lipcert.core.interval import Interval, symmetric
from lipcert.core.program import Shape
from lipcert.core.rules.facts import Fact, lengths_up, root_up
from lipcert.core.rules.matrices import product


def product_norm(other: Fact, value: Shape, shape: Shape) -> float:
    """≥ the largest norm of the entries of the other value that meet one entry of the value.

    Proof: the columns of the Jacobian are these, with disjoint supports.
    Attained: where the other value can sit on one of these sets of entries.
    """
    return min(other.norm, _met(other.box, value, shape))


def multiplied(inputs: tuple[Fact, Fact], shapes: tuple[Shape, Shape], shape: Shape) -> Fact:
    """The lesser of X_a·L_a and X_b·L_b, linear in either one, and the product of the boxes.

    Attained: when both norms sit on one entry.
    """
    a, b = inputs
    norm = min(
        multiply_up(a.norm, product_norm(b, shapes[0], shape)),
        multiply_up(b.norm, product_norm(a, shapes[1], shape)),
    )
    return Fact.of(shape, norm, _ranked(a.box, shape) * _ranked(b.box, shape))


def quotient_norm(
    index: int, inputs: tuple[Fact, Fact], shapes: tuple[Shape, Shape], shape: Shape
) -> float:
    """≥ the norm of the entries of 1/b, or of a/b², that meet one entry of a, or of b.

    Proof: ∂y/∂a = 1/b and ∂y/∂b = −a/b²; the columns of each Jacobian have disjoint supports. inf
    where the box of b holds 0.
    Attained: where |b| is least on all that meets an entry, and |a| largest.
    """
    a, b = inputs
    inverse = _ranked(b.box, shape).reciprocal()
    if index == 0:
        return _met(inverse, shapes[0], shape)
    largest = float(np.max(inverse.magnitude(), initial=0.0))
    by_norm = multiply_up(multiply_up(product_norm(a, shapes[1], shape), largest), largest)
    slopes = _ranked(a.box, shape) * (inverse * inverse)
    return min(by_norm, _met(slopes, shapes[1], shape))


def divided(inputs: tuple[Fact, Fact], shapes: tuple[Shape, Shape], shape: Shape) -> Fact:
    """X_a·L_a, linear in a, and the quotient of the boxes; nothing where b may be 0."""
    a, b = inputs
    inverse = _ranked(b.box, shape).reciprocal()
    if not np.isfinite(inverse.magnitude()).all():
        return Fact.of(shape)
    norm = multiply_up(a.norm, quotient_norm(0, inputs, shapes, shape))
    return Fact.of(shape, norm, _ranked(a.box, shape) * inverse)


def matrix_norm(other: Fact, value: Shape, partner: Shape, shape: Shape) -> float:
    """≥ the Frobenius norm of all matrices of the other value that multiply one of the value.

    Proof: A ↦ AB has norm ‖B‖₂ ≤ ‖B‖_F. A matrix of A that is repeated meets B_1, …, B_r, and
    the norm is that of [B_1 | … | B_r]; matrices of A are independent. (AB)ᵀ = BᵀAᵀ for B.
    Hypothesis: both have two axes or more. Attained: by matrices of rank one.
    """
    if min(len(value), len(partner)) < 2:
        return math.inf
    return min(other.norm, _met(other.box, (*value[:-2], 1, 1), (*shape[:-2], *partner[-2:])))


def matrix_product(inputs: tuple[Fact, Fact], shapes: tuple[Shape, Shape], shape: Shape) -> Fact:
    """The lesser of X_a·L_a and X_b·L_b, and the product of the boxes, rows times columns.

    Proof: linear in either one; an entry is a row of A times a column of B (Cauchy–Schwarz).
    Attained: by matrices of rank one.
    """
    (a, b), (left, right) = inputs, shapes
    if min(len(left), len(right)) < 2:
        return Fact.of(shape)
    norm = min(
        multiply_up(a.norm, matrix_norm(b, left, right, shape)),
        multiply_up(b.norm, matrix_norm(a, right, left, shape)),
    )
    box = product(
        a.box.broadcast((*a.box.shape[:-2], *left[-2:])),
        b.box.broadcast((*b.box.shape[:-2], *right[-2:])),
    )
    entry = symmetric(multiply_up(a.run, b.column), (1,) * len(shape))
    return Fact.of(shape, norm, _ranked(box, shape).meet(entry))


def _met(box: Interval, partner: Shape, shape: Shape) -> float:
    """The largest norm of the entries, broadcast to a shape, that meet one entry of a partner.

    They lie along the axes on which the partner is repeated. Within them no entry of the value
    that the box speaks of occurs twice: an axis longer than 1 belongs to one of the two at least.
    """
    rank = len(shape)
    lengths = (1,) * (rank - len(partner)) + partner
    magnitude = _ranked(box, shape).magnitude()
    kept = [axis for axis in range(rank) if lengths[axis] != 1]
    met = [axis for axis in range(rank) if lengths[axis] == 1]
    rows = magnitude.transpose(kept + met)
    rows = rows.reshape(math.prod(rows.shape[: len(kept)]), -1)
    copies = math.prod(shape[axis] for axis in met) // max(rows.shape[1], 1)
    return multiply_up(root_up(copies), float(np.max(lengths_up(rows), initial=0.0)))


def _ranked(box: Interval, shape: Shape) -> Interval:
    """With axes of length 1 in front, up to the rank of a shape."""
    lengths = (1,) * (len(shape) - len(box.shape)) + box.shape
    return Interval(box.lo.reshape(lengths), box.hi.reshape(lengths))
