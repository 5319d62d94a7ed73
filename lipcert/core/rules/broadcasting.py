"""Broadcasting: how often an entry is repeated, and which entries one entry meets; and gradients
that are summed over the places that share a number, or scaled."""

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from functools import reduce
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from lipcert.core.arithmetic import add_up, multiply_up
from lipcert.core.interval import Interval, enclosed, exact
from lipcert.core.program import Shape
from lipcert.core.rules.facts import Cotangent, Fact, box_norm, lengths_up, root_up

_Number = TypeVar("_Number", np.float64, np.int64)


def copies(before: Shape, after: Shape) -> int:
    """How often broadcasting from one shape into another repeats every entry."""
    if np.broadcast_shapes(before, after) != after:
        raise ValueError(f"{before} does not broadcast into {after}")
    return math.prod(after) // max(math.prod(before), 1)


def ranked(box: Interval, rank: int) -> Interval:
    """With axes of length 1 in front, up to a rank."""
    lengths = (1,) * (rank - len(box.shape)) + box.shape
    return Interval(box.lo.reshape(lengths), box.hi.reshape(lengths))


def met_rows(array: npt.NDArray[_Number], partner: Shape) -> npt.NDArray[_Number]:
    """One row for each entry of a partner of the same rank, with what it meets.

    They lie along the axes on which the partner has length 1.
    """
    kept = [axis for axis, length in enumerate(partner) if length != 1]
    met = [axis for axis, length in enumerate(partner) if length == 1]
    rows = array.transpose(kept + met)
    return rows.reshape(math.prod(rows.shape[: len(kept)]), -1)


def longest_met(box: Interval, partner: Shape, shape: Shape) -> float:
    """The largest norm of the entries, broadcast to a shape, that meet one entry of a partner.

    Within them no entry of the value of the box occurs twice: an axis longer than 1
    belongs to one of the two at least.
    """
    rank = len(shape)
    partner = (1,) * (rank - len(partner)) + partner
    rows = met_rows(ranked(box, rank).magnitude(), partner)
    met = math.prod(shape[axis] for axis in range(rank) if partner[axis] == 1)
    repeated = root_up(met // max(rows.shape[1], 1))
    return multiply_up(repeated, float(np.max(lengths_up(rows), initial=0.0)))


def longest_part(x: Fact, box: Interval, shape: Shape, operand: Shape) -> float:
    """The largest norm of the entries that one entry of an operand of the same rank meets.

    Over the box, where those of x are no smaller; bounds of the runs of x hold too.
    """
    copies(operand, shape)
    longest, rank = longest_met(box, operand, shape), len(shape)
    long = {axis - rank for axis in range(rank) if operand[axis] == 1 and shape[axis] != 1}
    return min(
        longest, x.row_norm if long <= {-1} else longest, x.column_norm if long <= {-2} else longest
    )


def by_token(cotangent: Cotangent, axis: int, shape: Shape) -> float:
    """≥ Σ_i ‖the gradient at place i along an axis‖₂.

    Proof: known, or at most √n times the norm (Cauchy–Schwarz).
    """
    by_norm, known = multiply_up(root_up(shape[axis]), cotangent.norm), cotangent.tokens
    return min(by_norm, known[1]) if known and known[0] == axis else by_norm


def summed(cotangent: Cotangent, shape: Shape, operand: Shape) -> float:
    """≥ the norm of the gradient summed over the axes along which an operand has length 1, with
    factors of magnitude at most 1; inf where its tokens are not among what is summed.

    Proof: of m entries at a place the sum is at most √m‖g_i‖ long (Cauchy–Schwarz), and the places
    add up.
    """
    if cotangent.tokens is None or operand[cotangent.tokens[0]] != 1:
        return math.inf
    axis, total = cotangent.tokens
    met = math.prod(shape) // max(math.prod(operand), 1) // max(shape[axis], 1)
    return multiply_up(root_up(met), total)


def with_tokens(found: Cotangent, shares: Sequence[Cotangent], shape: Shape) -> Cotangent:
    """The sum of several gradients, of which the tokens add up; it is no longer than their sum."""
    axes = {share.tokens[0] for share in shares if share.tokens}
    total, axis = min(
        (reduce(add_up, (by_token(share, axis, shape) for share in shares)), axis) for axis in axes
    )
    return replace(found, norm=min(found.norm, total), tokens=(axis, total))


def scaled(cotangent: Cotangent, factor: float) -> Cotangent:
    """Of the gradient times a factor > 0.

    Proof: norms, sums and entries grow by it, and the members of a hull.
    """
    hull = cotangent.hull and replace(
        cotangent.hull, scale=multiply_up(cotangent.hull.scale, factor)
    )
    rows, tokens = cotangent.rows, cotangent.tokens
    return Cotangent(
        multiply_up(cotangent.norm, factor),
        hull,
        multiply_up(cotangent.sums, factor),
        multiply_up(cotangent.peaks, factor),
        None if cotangent.label is None else multiply_up(cotangent.label, factor),
        tuple((size, scaled(part, factor)) for size, part in cotangent.parts),
        rows and (rows[0], scaled(rows[1], factor)),
        tokens and (tokens[0], multiply_up(tokens[1], factor)),
    )


def block_size(axes: Shape, shape: Shape) -> int:
    """The number of entries of a block."""
    return math.prod(shape[axis] for axis in axes)


def block_holds(axes: Shape, operand: Shape, shape: Shape) -> bool:
    """Whether all that one entry of an operand meets lies in one block."""
    met = {i for i, length in enumerate(operand) if length == 1 and shape[i] != 1}
    return met <= {axis % len(shape) for axis in axes}


def centred(x: Fact, axes: Shape, shape: Shape) -> Fact:
    """Of x less the mean of its block: ‖Px‖ ≤ min(X, ‖x − c‖), the box less its mean; runs that are
    whole blocks as they are.

    Proof: ‖P‖ ≤ 1 and Px = P(x − c) for any c that is constant on blocks, here the middle of what
    the box allows a block. Attained: by x without mean; by equally many entries at both ends.
    """
    if block_size(axes, shape) == 1:
        return Fact.of(shape, 0.0)
    axes = tuple(axis % len(shape) for axis in axes)
    known = math.prod(x.box.shape[axis] for axis in axes)  # each stands for several entries
    low = np.min(x.box.lo, axis=axes, keepdims=True)
    high = np.max(x.box.hi, axis=axes, keepdims=True)
    is_known = np.isfinite(low) & np.isfinite(high)
    middle = 0.5 * np.where(is_known, low, 0.0) + 0.5 * np.where(is_known, high, 0.0)
    return Fact.of(
        shape,
        min(x.norm, box_norm(x.box - exact(middle), shape)),
        x.box - x.box.sum(axes) * enclosed(Fraction(1, known)),
        x.row_norm if axes == (len(shape) - 1,) else math.inf,
        x.column_norm if axes == (len(shape) - 2,) else math.inf,
    )
