"""Steps that are not affine in what they read: facts, Lipschitz constants, cotangents."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lipcert.core.arithmetic import multiply_up
from lipcert.core.interval import Interval
from lipcert.core.program import (
    Activation,
    Attention,
    CotangentClip,
    Divide,
    DivideByNorm,
    InputClip,
    LpPool,
    MatMul,
    MaxPool,
    Multiply,
    Normalize,
    Op,
    PRelu,
    ReduceMax,
    ReduceNorm,
    Shape,
    Softmax,
    Sort,
)
from lipcert.core.rules.activations import activated, prelu_fact, prelu_slopes
from lipcert.core.rules.attention import attended, attention_norm
from lipcert.core.rules.clips import clipped_cotangent, clipped_fact
from lipcert.core.rules.facts import Cotangent, Fact, root_up
from lipcert.core.rules.functions import function
from lipcert.core.rules.lengths import length_pooled, lengths_fact, lengths_norm, pool_norm
from lipcert.core.rules.normalize import (
    divided_by_norm,
    division_norm,
    normalize_norm,
    normalized,
)
from lipcert.core.rules.products import (
    divided,
    matrix_norm,
    matrix_product,
    multiplied,
    product_norm,
    quotient_norm,
)
from lipcert.core.rules.selections import extreme, max_pooled, overlap, read_axes, sorted_fact
from lipcert.core.rules.softmax import behind_label, keeps_cotangent, softmax_fact, softmax_norm
from lipcert.core.rules.weights import Weights


def output_fact(  # noqa: PLR0917 (one signature, one case per op)
    op: Op,
    inputs: Sequence[Fact],
    shapes: Sequence[Shape],
    shape: Shape,
    weights: Weights,
    output: str,
) -> Fact:
    """What is known of the output, from what is known of the inputs (of these shapes)."""
    del output
    x, before = inputs[0], shapes[0]
    match op:
        case Activation():
            return activated(op, x, shape)
        case PRelu():
            return prelu_fact(op, x, shape, weights)
        case MaxPool():
            return max_pooled(op, x, before, shape)
        case LpPool():
            return length_pooled(op, x, before, shape)
        case ReduceMax():
            return extreme(op, x, shape)
        case ReduceNorm():
            return lengths_fact(op, x, before, shape)
        case Sort():
            return sorted_fact(op, x, shape)
        case Multiply():
            return multiplied((x, inputs[1]), (before, shapes[1]), shape)
        case Divide():
            return divided((x, inputs[1]), (before, shapes[1]), shape)
        case MatMul():
            return matrix_product((x, inputs[1]), (before, shapes[1]), shape)
        case Softmax():
            return softmax_fact(op, x, shape)
        case Normalize():
            return normalized(op, x, shape)
        case DivideByNorm():
            return divided_by_norm(op, x, shape)
        case Attention():
            three = (before, shapes[1], shapes[2])
            return attended(op, (x, inputs[1], inputs[2]), three, shape, weights)
        case InputClip():
            return clipped_fact(op, x, shape)
        case CotangentClip():
            return x
        case _:
            raise TypeError(f"no rule for {type(op).__name__} here")


def lipschitz(  # noqa: PLR0917 (as above)
    op: Op,
    index: int,
    inputs: Sequence[Fact],
    shapes: Sequence[Shape],
    shape: Shape,
    weights: Weights,
    output: str,
) -> float:
    """≥ ‖∂output/∂input‖₂ for the input at `index`, wherever the facts hold.

    Diagonal maps: the steepest slope on the box. Selections of disjoint entries, clips: 1.
    """
    del output
    x, before = inputs[0], shapes[0]
    match op:
        case Activation() | PRelu():
            slope = slopes(op, x, weights)
            return float(np.max(slope.magnitude(), initial=0.0)) if slope is not None else np.inf
        case MaxPool():
            axes = read_axes(op.window, before)
            return root_up(overlap(axes)) if axes else np.inf
        case LpPool():
            return pool_norm(op, before)
        case ReduceMax() | Sort() | InputClip() | CotangentClip():
            return 1.0
        case ReduceNorm():
            return lengths_norm(op, before)
        case Multiply():
            return product_norm(inputs[1 - index], shapes[index], shape)
        case Divide():
            return quotient_norm(index, (x, inputs[1]), (before, shapes[1]), shape)
        case MatMul():
            return matrix_norm(inputs[1 - index], shapes[index], shapes[1 - index], shape)
        case Softmax():
            return softmax_norm(op, x, shape)
        case Normalize():
            return normalize_norm(op, shape)
        case DivideByNorm():
            return division_norm(op)
        case Attention():
            values = (x, inputs[1], inputs[2])
            return attention_norm(op, index, values, (before, shapes[1], shapes[2]), weights)
        case _:
            raise TypeError(f"no rule for {type(op).__name__} here")


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

    The logarithm of a softmax passes a hull on as it is, and makes one of a single entry; a clip of
    the cotangent passes on what it clips.
    """
    if isinstance(op, CotangentClip):
        return clipped_cotangent(op, cotangent)
    if isinstance(op, Softmax) and keeps_cotangent(op, cotangent, shape):
        return cotangent
    if isinstance(op, Softmax) and cotangent.label is not None:
        found = behind_label(op, cotangent.label, inputs[0], shape)
        if found is not None:
            return found
    stretch = lipschitz(op, index, inputs, shapes, shape, weights, output)
    return Cotangent(multiply_up(stretch, cotangent.norm))


def slopes(op: Op, x: Fact, weights: Weights) -> Interval | None:
    """The derivative of each entry, broadcastable to x, where the Jacobian is diagonal."""
    match op:
        case Activation():
            return function(op.name, op.numbers).derivative(x.box)
        case PRelu():
            return prelu_slopes(op, x, weights)
        case _:
            return None
