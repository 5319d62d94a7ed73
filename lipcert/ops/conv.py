"""Convolution and transposed convolution in any number of dimensions, with zero padding.

On values of shape [channels, *spatial]. A transposed convolution is the exact adjoint of the
convolution from its output grid to its input grid, and is described by that one's geometry.
"""

from __future__ import annotations

import itertools
import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from lipcert.core.program import Shape
from lipcert.geometry import Geometry
from lipcert.operand import Operand
from lipcert.ops.base import Op
from lipcert.upper import FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class _Convolution(Op):
    """y = T x + b in either direction, b added at every position of its channel."""

    weight: Operand
    bias: Operand | None
    geometry: Geometry
    groups: int = 1

    def __post_init__(self) -> None:
        taps = tuple(window.taps for window in self.geometry)
        if self.weight.shape[2:] != taps:
            raise ValueError(f"kernel {self.weight.shape} does not fit windows of {taps} taps")
        if self.groups < 1 or self.weight.shape[0] % self.groups:
            raise ValueError(f"kernel {self.weight.shape} does not split into {self.groups} groups")
        if self.bias is not None and self.bias.shape != (self.out_channels,):
            raise ValueError(f"bias {self.bias.shape} does not fit {self.out_channels} channels")

    @property
    @abstractmethod
    def out_channels(self) -> int:
        """Channels of y."""

    @abstractmethod
    def _kernel(self, array: FloatArray) -> FloatArray:
        """The kernel as [groups, out/groups, in/groups, all taps]."""

    def operands(self) -> Mapping[str, Operand]:
        """Kernel, and bias where there is one."""
        return {"weight": self.weight} | ({} if self.bias is None else {"bias": self.bias})


@final
@dataclass(frozen=True, slots=True, eq=False)
class Conv(_Convolution):
    """Cross-correlation. weight: [out, in/groups, *taps]; geometry: from x to y."""

    @property
    def out_channels(self) -> int:
        """Rows of the kernel."""
        return self.weight.shape[0]

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        """[out channels, *window positions]."""
        (shape,) = inputs
        expected = (self.weight.shape[1] * self.groups, *(w.size for w in self.geometry))
        if shape != expected:
            raise ValueError(f"a convolution of {expected} does not fit input {shape}")
        return (self.out_channels, *(window.outputs for window in self.geometry))

    def evaluate(self, *inputs: FloatArray) -> FloatArray:
        """One matrix product per tap, in float64."""
        (x,) = inputs
        pads = [(0, 0), (0, 0), *((w.pad_begin, w.pad_end) for w in self.geometry)]
        padded = np.pad(x, pads)
        kernel = self._kernel(self.weight.array)
        positions = tuple(window.outputs for window in self.geometry)
        result: FloatArray = np.zeros((len(x), *kernel.shape[:2], math.prod(positions)))
        for tap, where in enumerate(_tap_slices(self.geometry)):
            read = padded[(slice(None), slice(None), *where)]
            result += kernel[..., tap] @ read.reshape(len(x), self.groups, -1, math.prod(positions))
        return _with_bias(result.reshape(len(x), self.out_channels, *positions), self.bias)

    def _kernel(self, array: FloatArray) -> FloatArray:
        outputs = array.shape[0] // self.groups
        return array.reshape(self.groups, outputs, array.shape[1], -1)


@final
@dataclass(frozen=True, slots=True, eq=False)
class ConvTranspose(_Convolution):
    """Adjoint of a cross-correlation. weight: [in, out/groups, *taps]; geometry: from y to x."""

    @property
    def out_channels(self) -> int:
        """Columns of the kernel, over all groups."""
        return self.weight.shape[1] * self.groups

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        """[out channels, *positions that the windows read]."""
        (shape,) = inputs
        expected = (self.weight.shape[0], *(window.outputs for window in self.geometry))
        if shape != expected:
            raise ValueError(f"a transposed convolution of {expected} does not fit input {shape}")
        return (self.out_channels, *(window.size for window in self.geometry))

    def evaluate(self, *inputs: FloatArray) -> FloatArray:
        """One matrix product per tap, in float64."""
        (x,) = inputs
        kernel = self._kernel(self.weight.array)
        columns = x.reshape(len(x), self.groups, kernel.shape[2], -1)
        sizes = tuple(w.size + w.pad_begin + w.pad_end for w in self.geometry)
        padded: FloatArray = np.zeros((len(x), self.out_channels, *sizes))
        for tap, where in enumerate(_tap_slices(self.geometry)):
            spread = kernel[..., tap] @ columns
            read = (slice(None), slice(None), *where)
            padded[read] += spread.reshape(len(x), self.out_channels, *x.shape[2:])
        inside = [slice(w.pad_begin, w.pad_begin + w.size) for w in self.geometry]
        return _with_bias(padded[(slice(None), slice(None), *inside)], self.bias)

    def _kernel(self, array: FloatArray) -> FloatArray:
        inputs = array.shape[0] // self.groups
        return array.reshape(self.groups, inputs, array.shape[1], -1).transpose(0, 2, 1, 3)


def _tap_slices(geometry: Geometry) -> Iterator[tuple[slice, ...]]:
    """For each tap, where all windows read the padded input."""
    for taps in itertools.product(*(range(window.taps) for window in geometry)):
        yield tuple(
            slice(tap * w.dilation, tap * w.dilation + w.stride * (w.outputs - 1) + 1, w.stride)
            for tap, w in zip(taps, geometry, strict=True)
        )


def _with_bias(result: FloatArray, bias: Operand | None) -> FloatArray:
    if bias is None:
        return result
    shifted: FloatArray = result + bias.array.reshape(-1, *[1] * (result.ndim - 2))
    return shifted
