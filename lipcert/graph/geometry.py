"""Geometry: how a kernel slides over a grid, one dimension at a time.

`geometry_of` takes the windows of a step and the sizes of the grid that they read, and returns a
`Window` per spatial dimension, with exact counts.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from lipcert.core import program, window_kinds
from lipcert.core.rules.windows import Axis, axes_of, overlap


@dataclass(frozen=True, slots=True)
class Window:
    """One spatial dimension: output o reads input positions o·stride + t·dilation − pad_begin.

    size:   number of input positions;     taps: number of kernel taps;
    pad_begin, pad_end: implicit zeros before and after the input.
    """

    size: int
    taps: int
    stride: int = 1
    dilation: int = 1
    pad_begin: int = 0
    pad_end: int = 0

    def __post_init__(self) -> None:
        if min(self.size, self.taps, self.stride, self.dilation) < 1:
            raise ValueError(f"size, taps, stride and dilation must be positive: {self}")
        if min(self.pad_begin, self.pad_end) < 0:
            raise ValueError(f"pads must not be negative: {self}")
        if self.outputs < 1:
            raise ValueError(f"the kernel is larger than the padded input: {self}")

    @property
    def outputs(self) -> int:
        """The number of positions of the window."""
        reach = self.dilation * (self.taps - 1) + 1
        return (self.size + self.pad_begin + self.pad_end - reach) // self.stride + 1

    @property
    def axis(self) -> Axis:
        """The positions that each tap of each window reads."""
        numbers = (self.taps, self.stride, self.dilation, self.pad_begin, self.outputs)
        return axes_of(window_kinds.Window(*((number,) for number in numbers)), (self.size,))[0]

    def reads(self) -> npt.NDArray[np.int64]:
        """Return for each output how many taps of its window read the input: [outputs]."""
        return np.asarray(self.axis.at_outputs.sum(axis=1))


Geometry = tuple[Window, ...]


@cache
def copies(geometry: Geometry) -> int:
    """Return the largest number of windows that read one position, at least 1."""
    return overlap(tuple(window.axis for window in geometry))


def geometry_of(window: window_kinds.Window, sizes: program.Shape) -> Geometry:
    """Return the windows of a step by dimension; sizes: of the grid that they read."""
    found = []
    for axis, size in enumerate(sizes):
        taps, stride = window.taps[axis], window.strides[axis]
        dilation, before = window.dilations[axis], window.before[axis]
        reach = (window.outputs[axis] - 1) * stride + dilation * (taps - 1) + 1
        found.append(Window(size, taps, stride, dilation, before, max(0, reach - before - size)))
        if found[-1].outputs != window.outputs[axis]:
            raise ValueError(f"{window.outputs[axis]} windows where {found[-1].outputs} fit")
    return tuple(found)
