"""Steps that are affine in what they read: what they do to facts, and their Lipschitz constants.

What an operand is, `Weights` knows; no rule looks at a number of the file itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from lipcert.core.arithmetic import multiply_up
from lipcert.core.interval import Interval
from lipcert.core.program import (
    Add,
    AveragePool,
    BatchNorm,
    Centre,
    Concat,
    Conv,
    Dense,
    Move,
    Op,
    ReduceSum,
    Scale,
    Shape,
    Shift,
)
from lipcert.core.rules.averages import average_box, average_norm
from lipcert.core.rules.convolution import conv_fact
from lipcert.core.rules.dense import dense_cotangent, dense_fact
from lipcert.core.rules.diagonals import (
    batch_factor,
    copies,
    normalised,
    per_channel,
    scaled,
    shifted,
)
from lipcert.core.rules.facts import Cotangent, Fact, root_up
from lipcert.core.rules.moves import keeps_order, move_fact, move_norm
from lipcert.core.rules.normalize import centre_norm, centred
from lipcert.core.rules.sums import added, joined, sum_norm, summed
from lipcert.core.rules.weights import Weights

LINEAR: Final = (
    Dense,
    Conv,
    Scale,
    Shift,
    BatchNorm,
    Move,
    AveragePool,
    ReduceSum,
    Centre,
    Add,
    Concat,
)
"""The ops of this module."""


def output_fact(  # noqa: PLR0917 (one signature for all rules)
    op: Op,
    inputs: Sequence[Fact],
    shapes: Sequence[Shape],
    shape: Shape,
    weights: Weights,
    output: str,
) -> Fact:
    """What is known of the output, from what is known of the inputs (of these shapes)."""
    x, before = inputs[0], shapes[0]
    match op:
        case Dense():
            return dense_fact(op, x, before, shape, weights=weights, output=output)
        case Conv():
            return conv_fact(op, x, before, shape, weights=weights, output=output)
        case Scale():
            return scaled(op, x, shape, weights)
        case Shift():
            return shifted(op, x, shape, weights)
        case BatchNorm():
            return normalised(op, x, shape, weights)
        case Move():
            return move_fact(op, x, before, shape)
        case AveragePool():
            norm = multiply_up(average_norm(op, before), x.norm)
            return Fact.of(shape, norm, average_box(op, x.box, before))
        case ReduceSum():
            return summed(op, x, before, shape)
        case Centre():
            return centred(op, x, shape)
        case Add():
            return added(op, inputs, shapes, shape)
        case Concat():
            return joined(op, inputs, shapes, shape)
        case _:
            raise TypeError(f"{type(op).__name__} is not a linear step")


def lipschitz(  # noqa: PLR0917 (one signature for all rules)
    op: Op,
    index: int,
    inputs: Sequence[Fact],
    shapes: Sequence[Shape],
    shape: Shape,
    weights: Weights,
    output: str,
) -> float:
    """≥ ‖∂output/∂input‖₂ for the input at `index`, whatever the facts are.

    Diagonal maps: the largest factor. Sums of n entries: √n, means 1/√n (disjoint rows of that
    norm). Repetition m times, also by broadcasting: √m (disjoint columns). All attained.
    """
    del inputs
    before = shapes[index]
    match op:
        case Dense() | Conv():
            return weights.operator_norm(output, op, before, shape)
        case Scale():
            return weights.max_abs(op.factor)
        case Shift() | Concat():
            return 1.0
        case BatchNorm():
            return float(np.max(batch_factor(op, weights).magnitude(), initial=0.0))
        case Move():
            return move_norm(op)
        case AveragePool():
            return average_norm(op, before)
        case ReduceSum():
            return sum_norm(op, before)
        case Centre():
            return centre_norm(op, before)
        case Add():
            return root_up(copies(before, shape))
        case _:
            raise TypeError(f"{type(op).__name__} is not a linear step")


def pulled(  # noqa: PLR0917 (one signature for all rules)
    op: Op,
    index: int,
    cotangent: Cotangent,
    inputs: Sequence[Fact],
    shapes: Sequence[Shape],
    shape: Shape,
    weights: Weights,
    output: str,
) -> Cotangent:
    """What the input at `index` receives from the cotangent of the output: L·l, by the chain rule.

    A hull stays one where the gradient only changes its shape, or is multiplied by one positive
    number: a hull holds its members' shorter multiples. A Dense step uses it up. A single entry
    stays one where the gradient only changes its shape.
    """
    before = shapes[index]
    if isinstance(op, Dense):
        return dense_cotangent(op, cotangent, before, shape, weights=weights, output=output)
    stretch = lipschitz(op, index, inputs, shapes, shape, weights, output)
    hull, label = cotangent.hull, None
    match op:
        case Shift():
            kept = 1.0
        case Move() if keeps_order(op, before):
            kept, label = 1.0, cotangent.label
        case Add() if op.signs[index] == 1 and before == shape:
            kept = 1.0
        case Scale() if _is_one_positive_number(weights.entries(op.factor)):
            kept = weights.max_abs(op.factor)
        case _:
            kept, hull = 1.0, None
    if hull is not None:
        hull = replace(hull, scale=multiply_up(hull.scale, kept))
    return Cotangent(multiply_up(stretch, cotangent.norm), hull, label=label)


def slopes(op: Op, shape: Shape, weights: Weights) -> Interval | None:
    """The factor of each entry, broadcastable to the shape, where the Jacobian is diagonal."""
    match op:
        case Scale():
            return weights.entries(op.factor)
        case BatchNorm():
            return per_channel(batch_factor(op, weights), len(shape))
        case _:
            return None


def _is_one_positive_number(entries: Interval) -> bool:
    """Whether all entries are the same, whichever member of the interval they are."""
    low, high = float(np.min(entries.lo)), float(np.max(entries.hi))
    return low > 0.0 and (entries.lo.size == 1 or low == high)
