"""Kinds of steps that transformers have besides matrices: factors, shifts, sums, products,
normalisation and attention.

They follow the conventions of those in `program`.
"""

from typing import ClassVar

from lipcert.core.program import Op, Operand, Shape, kind_of_step


@kind_of_step
class Scale(Op):
    """y = factor·x entry by entry; factor has the rank of x, with 1 where it is repeated."""

    factor: Operand


@kind_of_step
class Shift(Op):
    """y = x + offset entry by entry; offset has the rank of x, with 1 where it is repeated."""

    offset: Operand


@kind_of_step
class Add(Op):
    """y = Σ signs[i]·x_i, broadcast as numpy does."""

    signs: tuple[int, ...]


@kind_of_step
class ReduceSum(Op):
    """Sum over axes, which keep the length 1; mean: divided by the number of terms."""

    axes: Shape
    mean: bool


@kind_of_step
class Multiply(Op):
    """y = x_0·x_1 entry by entry, broadcast as numpy does; both may be the same value."""


@kind_of_step
class MatMul(Op):
    """y = x_0 @ x_1 as numpy does, both computed from the input."""


@kind_of_step
class Softmax(Op):
    """softmax along an axis, or its logarithm."""

    axis: int
    logarithm: bool


@kind_of_step
class Normalize(Op):
    """y = (x − m)/√(mean of (x − m)² + epsilon) over axes.

    m is the mean over the axes, or 0 if not centred.
    LayerNormalization, InstanceNormalization, RMSNormalization and, between two reshapes,
    GroupNormalization, without their scale and shift, which are steps behind it.
    """

    axes: Shape
    epsilon: float
    centred: bool


@kind_of_step
class Attention(Op):
    """y = softmax(scale·(x_0 @ x_1) + mask) @ x_2 along the last axis of the scores.

    x_0: queries [..., n, d], x_1: transposed keys [..., d, m], x_2: values [..., m, e]. The mask is
    any constant, perhaps −inf in places but not in a whole row: no rule depends on it.
    x_3, if there is one, is 1 where a score is hidden and 0 elsewhere, broadcast to the scores; a
    query that sees nothing has the output 0, or none at all.
    """

    hides: ClassVar[bool] = True
    scale: float
    mask: Operand | None = None


@kind_of_step
class Hide(Op):
    """y = x_0, or −inf where x_1 is 1: scores of an `Attention`, until that is assembled.

    Programs do not contain it, as no rule covers infinities.
    """

    is_final: ClassVar[bool] = False
