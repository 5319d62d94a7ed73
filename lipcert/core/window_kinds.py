"""Kinds of steps that slide a window over images: convolutions and pools.

They follow the conventions of those in `program`.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lipcert.core.program import IndexArray, Op, Operand, Shape, kind_of_step


@dataclass(frozen=True, slots=True)
class Window:
    """Windows along the spatial axes: tap t of output o reads o·stride + t·dilation − before.

    One number per axis; positions outside the input read as padding.
    """

    taps: Shape
    strides: Shape
    dilations: Shape
    before: Shape
    outputs: Shape

    def reads(self, axis: int, size: int) -> IndexArray:
        """[outputs, taps]: the position of the input, of this size, that is read; −1: padding."""
        first = np.arange(self.outputs[axis], dtype=np.int64)[:, None] * self.strides[axis]
        taps = np.arange(self.taps[axis], dtype=np.int64) * self.dilations[axis]
        places = first + taps - self.before[axis]
        return np.where((places >= 0) & (places < size), places, -1)


@kind_of_step
class Conv(Op):
    """Convolution of x [1, channels, *spatial] with zero padding.

    weight: [outputs, inputs of a group, *taps]. transposed: the linear map is the transpose of the
    convolution by `weight` and `window` from an input of the shape of y to an output of the shape
    of x, so that weight is [channels of x, outputs of a group, *taps]. bias: per output channel.
    """

    is_stored: ClassVar[bool] = True
    weight: Operand
    bias: Operand | None
    window: Window
    groups: int
    transposed: bool


@kind_of_step
class MaxPool(Op):
    """Maximum over windows of the axes behind the first two; padding is never the maximum."""

    window: Window


@kind_of_step
class AveragePool(Op):
    """Mean over windows of the axes behind the first two.

    counts_padding: whether padding counts as 0 or not at all (the divisor is then the number of
    positions of the window inside the input).
    """

    window: Window
    counts_padding: bool


@kind_of_step
class LpPool(Op):
    """(Σ |x|^p)^(1/p) over windows of the axes behind the first two; p = 1 or 2."""

    window: Window
    p: int
