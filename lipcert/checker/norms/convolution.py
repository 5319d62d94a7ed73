"""‖T‖₂ ≤ c for a convolution T with zero padding, without a witness.

Two routes, each a proof by itself, for any number of dimensions, strides, dilations, groups and
paddings:

* windows: T = K∘P, where P lays out the window of every output position and K is the kernel as
  a matrix. An input entry lies in at most r windows, counted exactly, so ‖Px‖² ≤ r‖x‖² and
  ‖T‖ ≤ √r·‖K‖ (T = 0 if r = 0); with groups, T is block diagonal and the largest group counts.
  Attained where a kernel matrix is an isometry on the windows of an input whose entries all lie
  in r of them.
* explicit: T written out as a matrix, entry by entry, where it is small enough. Exact.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, final

import numpy as np
import numpy.typing as npt

from lipcert.checker.arithmetic import divide_down, sqrt_up
from lipcert.checker.norms.claim import FloatMatrix

__all__ = ["MAX_ENTRIES", "Convolution", "NormCheck"]

NormCheck = Callable[[FloatMatrix, float], bool]

MAX_ENTRIES: Final = 1 << 24
"""entries of a convolution written out as a matrix"""
_MAX_TAPS: Final = 1 << 12
_MAX_SIDE: Final = 1 << 16
_MAX_WINDOWS: Final = 1 << 22


@final
@dataclass(frozen=True, slots=True, eq=False)
class Convolution:
    """A kernel [outputs, inputs of a group, *taps] and where its windows lie.

    `size` is the spatial shape of the input; `before` and `after` are the zeros added at the two
    ends of each dimension.
    """

    kernel: npt.NDArray[np.float64]
    size: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    groups: int = 1

    def __post_init__(self) -> None:
        geometry = (self.size, self.strides, self.dilations, self.before, self.after)
        if self.kernel.ndim < 3 or self.kernel.dtype != np.float64:
            raise ValueError("a kernel has outputs, inputs and at least one dimension of float64")
        if any(len(numbers) != self.kernel.ndim - 2 for numbers in geometry):
            raise ValueError("a convolution needs one number for each dimension of its kernel")
        if any(not 0 <= number <= _MAX_SIDE for numbers in geometry for number in numbers):
            raise ValueError("a size, stride, dilation or padding is negative or too large")
        if min(*self.kernel.shape, *self.size, *self.strides, *self.dilations, self.groups) < 1:
            raise ValueError("a size, stride, dilation or number of groups is zero")
        if self.kernel.shape[0] % self.groups:
            raise ValueError("the outputs of a convolution cannot be divided among its groups")
        if min(self.outputs) < 1 or any(
            outputs * taps > _MAX_WINDOWS
            for outputs, taps in zip(self.outputs, self.kernel.shape[2:], strict=True)
        ):
            raise ValueError("a convolution has no output position, or too many")

    @property
    def outputs(self) -> tuple[int, ...]:
        """The spatial shape of the output."""
        return tuple(
            (n + before + after - dilation * (taps - 1) - 1) // stride + 1
            for n, before, after, dilation, taps, stride in zip(
                self.size,
                self.before,
                self.after,
                self.dilations,
                self.kernel.shape[2:],
                self.strides,
                strict=True,
            )
        )

    def norm_at_most(self, claim: float, check: NormCheck) -> bool:
        """Whether ‖T‖₂ ≤ claim could be proved, with `check` deciding about matrices."""
        by_windows = divide_down(claim, sqrt_up(float(self.overlap())))
        matrices = np.split(self.kernel.reshape(len(self.kernel), -1), self.groups)
        if all(check(matrix, by_windows) for matrix in matrices):
            return True
        return self.is_small and check(self.matrix(), claim)

    @property
    def is_small(self) -> bool:
        """Whether T is written out as a matrix."""
        outputs, inputs = self.kernel.shape[0], self.kernel.shape[1] * self.groups
        entries = outputs * math.prod(self.outputs) * inputs * math.prod(self.size)
        return entries <= MAX_ENTRIES and math.prod(self.kernel.shape[2:]) <= _MAX_TAPS

    def overlap(self) -> int:
        """The largest number of windows that an input entry lies in.

        Windows are products of one-dimensional ones, so the count is a product too.
        """
        counts = [
            np.bincount(np.concatenate([x for _, x in pairs]), minlength=1).max()
            for pairs in map(self._pairs, range(len(self.size)))
        ]
        return math.prod(max(int(count), 1) for count in counts)

    def matrix(self) -> FloatMatrix:
        """T itself: rows by output channel and position, columns by input channel and position."""
        if not self.is_small:
            raise ValueError("a convolution of this size is not written out as a matrix")
        m, n = math.prod(self.outputs), math.prod(self.size)
        blocks = [self._block(kernel, m, n) for kernel in np.split(self.kernel, self.groups)]
        rows, columns = blocks[0].shape
        result = np.zeros((self.groups, rows, self.groups, columns))
        for group, block in enumerate(blocks):
            result[group, :, group] = block
        return result.reshape(self.groups * rows, self.groups * columns)

    def _block(self, kernel: FloatMatrix, m: int, n: int) -> FloatMatrix:
        """The matrix of one group, with m output and n input positions."""
        outputs, inputs = kernel.shape[:2]
        result = np.zeros((outputs, m, inputs, n))
        taps = kernel.reshape(outputs, inputs, -1)
        axes = [self._pairs(axis) for axis in range(len(self.size))]
        for tap, pairs in enumerate(itertools.product(*axes)):
            y = _flat([pair[0] for pair in pairs], self.outputs)
            x = _flat([pair[1] for pair in pairs], self.size)
            result[:, y, :, x] = taps[:, :, tap]
        return result.reshape(outputs * m, inputs * n)

    def _pairs(self, axis: int) -> list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
        """For each tap along an axis, the output positions y and the input positions x it joins.

        x = y·stride + tap·dilation − before, where that lies inside the input.
        """
        positions = np.arange(self.outputs[axis], dtype=np.int64)
        pairs = []
        for tap in range(self.kernel.shape[2 + axis]):
            offset = tap * self.dilations[axis] - self.before[axis]
            x = positions * self.strides[axis] + offset
            inside = (x >= 0) & (x < self.size[axis])
            pairs.append((positions[inside], x[inside]))
        return pairs


def _flat(places: list[npt.NDArray[np.int64]], shape: tuple[int, ...]) -> npt.NDArray[np.intp]:
    """Flat indices of a grid of positions, one array for each dimension."""
    return np.ravel_multi_index(np.ix_(*places), shape).ravel()
