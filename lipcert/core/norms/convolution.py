"""A convolution T with exact kernel: which tap of which output reads what, and a plain bound.

Of any number of dimensions, strides, dilations, groups and paddings, also of an input whose
entries were moved about before. A `Kernel` is one that lies in an interval, or a matrix taken as a
convolution; a witness names the route by which its norm is proved.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from lipcert.core.arithmetic import divide_down, sqrt_up
from lipcert.core.interval import Array, Interval
from lipcert.core.line import NotProved
from lipcert.core.norms.claim import FloatMatrix, NormCheck, NormWitness, all_at_most, matrix_of
from lipcert.core.program import Dense, IndexArray, Op, Shape, Step
from lipcert.core.window_kinds import Conv, Window

MAX_ENTRIES: Final = 1 << 24
"""entries of a convolution written out as a matrix"""
_MAX_WORK: Final = 1 << 27
"""of a product of this matrix with itself, above which it is formed from strips that repeat"""
_MAX_TAPS: Final = 1 << 12
_MAX_SIDE: Final = 1 << 16
_MAX_WINDOWS: Final = 1 << 22


@dataclass(frozen=True, slots=True, eq=False)
class Convolution:
    """A kernel [outputs, inputs of a group, *taps] and where its windows lie.

    size: the spatial shape of the input. moved: empty where the windows lie on the input itself;
    otherwise, for each axis, the numbers of the input entries that the windowed line is made of,
    −1 for 0.
    """

    kernel: npt.NDArray[np.float64]
    size: tuple[int, ...]
    window: Window
    groups: int = 1
    moved: tuple[IndexArray, ...] = ()

    def __post_init__(self) -> None:
        window = self.window
        geometry = (self.size, window.strides, window.dilations, window.before, window.outputs)
        if self.kernel.ndim < 3 or self.kernel.dtype != np.float64:
            raise NotProved("a kernel has outputs, inputs and at least one dimension of float64")
        if any(len(numbers) != self.kernel.ndim - 2 for numbers in geometry):
            raise NotProved("a convolution needs one number for each dimension of its kernel")
        if window.taps != self.kernel.shape[2:]:
            raise NotProved("the taps of a window are not those of the kernel")
        if any(abs(number) > _MAX_SIDE for numbers in geometry for number in numbers):
            raise NotProved("a size, stride, dilation or padding is too large")
        if (
            min(*self.kernel.shape, self.groups, *(min(g) for g in (*geometry[:3], geometry[4])))
            < 1
        ):
            raise NotProved("a size, stride, dilation or number of groups is not positive")
        if self.kernel.shape[0] % self.groups:
            raise NotProved("the outputs of a convolution cannot be divided among its groups")
        if any(
            m * taps > _MAX_WINDOWS for m, taps in zip(window.outputs, window.taps, strict=True)
        ):
            raise NotProved("a convolution has too many windows")
        if self.moved and (
            len(self.moved) != len(self.size)
            or any(line.ndim != 1 or len(line) < 1 for line in self.moved)
            or any(line.max() >= n for line, n in zip(self.moved, self.size, strict=True))
        ):
            raise NotProved("moved entries do not come from the input")

    def reads(self, axis: int) -> IndexArray:
        """[outputs, taps]: the number of the input entry read along an axis, −1 for none."""
        if not self.moved:
            return self.window.reads(axis, self.size[axis])
        line = self.moved[axis]
        reads = self.window.reads(axis, len(line))
        return np.where(reads >= 0, np.maximum(line[reads], -1), -1)

    def overlap(self) -> int:
        """The largest number of windows that an input entry lies in, counted as often as it does.

        Windows are products of one-dimensional ones, so the count is a product too.
        """
        tables = [self.reads(axis) for axis in range(len(self.size))]
        counts = [np.bincount(table[table >= 0], minlength=1).max() for table in tables]
        return math.prod(max(int(count), 1) for count in counts)

    def by_windows(self, claim: float, check: NormCheck) -> bool:
        """Whether ‖T‖₂ ≤ claim follows from the norms of the kernels as matrices.

        Proof: T = K∘P, where P lays out the window of every output position and K is the kernel as
        a matrix. An input entry lies in at most r windows, counted exactly, so ‖Px‖² ≤ r‖x‖² and
        ‖T‖ ≤ √r·‖K‖ (T = 0 if r = 0); with groups, T is block diagonal and the largest group
        counts. Attained where a kernel matrix is an isometry on the windows of an input whose
        entries all lie in r of them.
        """
        share = divide_down(claim, sqrt_up(float(self.overlap())))
        matrices = np.split(self.kernel.reshape(len(self.kernel), -1), self.groups)
        return all(check(matrix, share) for matrix in matrices)

    @property
    def _sides(self) -> tuple[int, int]:
        """Rows and columns of T."""
        outputs, inputs = self.kernel.shape[0], self.kernel.shape[1] * self.groups
        return outputs * math.prod(self.window.outputs), inputs * math.prod(self.size)

    @property
    def work(self) -> int:
        """Multiplications in TᵀT or TTᵀ, whichever is smaller, as if T were one group."""
        return math.prod(self._sides) * min(self._sides)

    @property
    def is_small(self) -> bool:
        """Whether T is written out as a matrix."""
        few = math.prod(self._sides) <= MAX_ENTRIES and math.prod(self.window.taps) <= _MAX_TAPS
        return few and self._reads_once()

    def require_small(self) -> None:
        """NotProved where T is not written out as a matrix."""
        if not self.is_small:
            raise NotProved("a convolution of this size is not written out as a matrix")

    def _reads_once(self) -> bool:
        """Whether no window reads an entry through two taps, so that no entry of T is a sum."""
        tables = [np.sort(self.reads(axis), axis=1) for axis in range(len(self.size))]
        return not any(((t[:, 1:] == t[:, :-1]) & (t[:, 1:] >= 0)).any() for t in tables)

    def matrix(self) -> FloatMatrix:
        """T itself: rows by output channel and position, columns by input channel and position."""
        self.require_small()
        blocks = list(self.blocks())
        rows, columns = blocks[0].shape
        result = np.zeros((self.groups, rows, self.groups, columns))
        for group, block in enumerate(blocks):
            result[group, :, group] = block
        return result.reshape(self.groups * rows, self.groups * columns)

    def blocks(self) -> Iterator[FloatMatrix]:
        """T by groups, which act on different channels: ‖T‖ is the largest norm of these."""
        for kernel in np.split(self.kernel, self.groups):
            block = self.block(kernel, range(len(self.size)))
            yield block.reshape(block.shape[0] * block.shape[1], -1)

    def block(self, kernel: FloatMatrix, axes: Sequence[int]) -> FloatMatrix:
        """[outputs, output positions, inputs, input positions] of one group along some axes."""
        above = [self.window.outputs[axis] for axis in axes]
        below = [self.size[axis] for axis in axes]
        outputs, inputs = kernel.shape[:2]
        result = np.zeros((outputs, math.prod(above), inputs, math.prod(below)))
        taps = kernel.reshape(outputs, inputs, -1)
        reads = (self.reads(axis).T for axis in axes)
        for tap, columns in enumerate(itertools.product(*reads)):
            y = x = np.zeros(1, dtype=np.int64)
            for column, n, m in zip(columns, above, below, strict=True):
                own = np.flatnonzero(column >= 0)
                y, x = (y[:, None] * n + own).ravel(), (x[:, None] * m + column[own]).ravel()
            result[:, y, :, x] = taps[:, :, tap]
        return result


@dataclass(frozen=True, slots=True, eq=False)
class Kernel:
    """A convolution whose kernel lies in `entries`; a matrix is one of one tap at one position.

    frame: its windows, with some kernel of the same shape. adjoint: the linear map is the
    transpose of that convolution, and has the same norm.
    """

    entries: Interval
    frame: Convolution
    adjoint: bool

    @classmethod
    def of(cls, op: Op, shape_in: Shape, shape_out: Shape) -> Kernel:
        """The linear part of a step; NotProved where it does not fit its shapes."""
        if isinstance(op, Dense):
            entries = matrix_of(op, shape_in, shape_out).moved(lambda end: end[:, :, None])
            return cls(entries, Convolution(entries.lo, (1,), _POINT), False)
        if not isinstance(op, Conv):
            raise NotProved("only matrices and convolutions have such a norm")
        entries = Interval(op.weight.lo, op.weight.hi)
        above, below = (shape_in, shape_out) if op.transposed else (shape_out, shape_in)
        frame = Convolution(entries.lo, below[2:], op.window, op.groups)
        outputs, inputs = entries.shape[:2]
        fits = below[:2] == (1, inputs * op.groups) and above == (1, outputs, *op.window.outputs)
        if not fits:
            raise NotProved("a convolution does not fit the shapes of its step")
        return cls(entries, frame, op.transposed)

    @property
    def is_matrix(self) -> bool:
        """Whether it acts on the last axis of a value, not on axis 1."""
        return self.frame.window is _POINT

    def norm_at_most(self, claim: float, witness: NormWitness, check: NormCheck) -> bool:
        """Whether the norm of every convolution by a kernel in `entries` is at most a claim.

        Proof: ‖T_D‖ ≤ √overlap·‖D‖_F.
        """

        def check_kernel(kernel: Array, bound: float) -> bool:
            return _proved(replace(self.frame, kernel=kernel), bound, witness, check)

        stretch = sqrt_up(float(self.frame.overlap()))
        return all_at_most(self.entries, stretch, claim, check_kernel)


def kernel_of(steps: Sequence[Step], shapes: Mapping[str, Shape]) -> Kernel:
    """The linear part of consecutive steps as one kernel; raise NotProved where it is none, or one
    beyond the limits of a proof."""
    (first, *more) = steps
    if more:
        from lipcert.core.norms.fused import fused_kernel  # noqa: PLC0415  runs only

        return fused_kernel(steps, shapes)
    return Kernel.of(first.op, shapes[first.inputs[0]], first.shape)


def _proved(frame: Convolution, claim: float, witness: NormWitness, check: NormCheck) -> bool:
    """By the route of the witness."""
    match witness.method:
        case "dense" | "windows":
            return frame.by_windows(claim, check)
        case "explicit" if frame.is_small and frame.work <= _MAX_WORK:
            return all(check(block, claim) for block in frame.blocks())
        case "explicit":
            from lipcert.core.norms.explicit import explicit_at_most  # noqa: PLC0415  large ones

            return explicit_at_most(frame, claim, check)
        case "absolute":
            from lipcert.core.norms.torus import absolute_at_most  # noqa: PLC0415  this route only

            return absolute_at_most(frame, claim, check)
        case "torus":
            from lipcert.core.norms.torus import torus_at_most  # noqa: PLC0415  this route only

            return torus_at_most(frame, witness.counts, witness.twists, claim, check)
    return False


_POINT = Window((1,), (1,), (1,), (0,), (1,))
"""one tap at one position"""
