"""Geometry: how a kernel slides over a grid, one dimension at a time.

Input: the windows of a step, and the sizes of the grid that they read. Output: `Window`,
one per spatial dimension, with exact counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from lipcert.core import program


@final
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

    def readers(self, tap: int) -> range:
        """The outputs whose window reads the input, not padding, through this tap."""
        offset = tap * self.dilation - self.pad_begin
        first = max(0, -(offset // self.stride))
        last = min(self.outputs - 1, (self.size - 1 - offset) // self.stride)
        return range(first, last + 1)

    def positions(self, tap: int) -> range:
        """The input positions which those outputs read, in the same order."""
        outputs = self.readers(tap)
        offset = tap * self.dilation - self.pad_begin
        return range(
            outputs.start * self.stride + offset, outputs.stop * self.stride + offset, self.stride
        )

    def multiplicity(self) -> tuple[int, ...]:
        """For each input position, how many (window, tap) pairs read it: [size]."""
        counts = np.zeros(self.size, dtype=np.int64)
        for tap in range(self.taps):
            positions = self.positions(tap)
            if positions:
                counts[positions.start : positions.stop : self.stride] += 1
        return tuple(int(count) for count in counts)

    def reads(self) -> tuple[int, ...]:
        """For each output, how many taps of its window read the input: [outputs]."""
        counts = np.zeros(self.outputs, dtype=np.int64)
        for tap in range(self.taps):
            outputs = self.readers(tap)
            if outputs:
                counts[outputs.start : outputs.stop] += 1
        return tuple(int(count) for count in counts)

    @property
    def overlap(self) -> int:
        """The largest number of windows that read one input position."""
        return max(self.multiplicity())


Geometry = tuple[Window, ...]


def geometry_of(window: program.Window, sizes: program.Shape) -> Geometry:
    """The windows of a step one by one; sizes: of the positions that they read."""
    found = []
    for axis, size in enumerate(sizes):
        taps, stride = window.taps[axis], window.strides[axis]
        dilation, before = window.dilations[axis], window.before[axis]
        reach = (window.outputs[axis] - 1) * stride + dilation * (taps - 1) + 1
        found.append(Window(size, taps, stride, dilation, before, max(0, reach - before - size)))
        if found[-1].outputs != window.outputs[axis]:
            raise ValueError(f"{window.outputs[axis]} windows of {found[-1].outputs}")
    return tuple(found)
