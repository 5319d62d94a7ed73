"""Convolution and transposed convolution in any number of dimensions, with zero padding.

What enters: facts about x of shape [channels, *spatial], and a scope that bounds kernel and bias.
What leaves: norm and per-channel box of the result, and the Jacobian norms in x, kernel and bias.
A transposed convolution is the exact adjoint of the convolution from its output grid to its input
grid, and is described by that convolution's geometry.

Images that are constant on each channel need no image: what a position receives depends only on
the set of taps that reach it, its *pattern*, and a grid has few patterns.
"""

from __future__ import annotations

import itertools
import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Final, final

import numpy as np
import numpy.typing as npt

from lipcert.facts import (
    Bound,
    CotangentFacts,
    Shape,
    ValueFacts,
    no_bound,
    product_of,
    sum_of,
    tightest,
)
from lipcert.interval import Interval
from lipcert.links import Link, matrix_of
from lipcert.norms.geometry import Geometry, Window
from lipcert.norms.linear_map import ConvMap
from lipcert.norms.windows import window_multiplicity
from lipcert.operand import Operand
from lipcert.ops.base import Op
from lipcert.ops.broadcasting import root_of
from lipcert.scope import Scope
from lipcert.upper import FloatArray, Upper, row_norms

_Mask = npt.NDArray[np.bool_]
_TWO: Final = Upper(2.0)


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

    @abstractmethod
    def _taps_at_outputs(self) -> tuple[_Mask, ...]:
        """Per dimension: which taps contribute to a position of y: [positions, taps]."""

    @abstractmethod
    def _taps_at_inputs(self) -> tuple[_Mask, ...]:
        """Per dimension: which taps read a position of x: [positions, taps]."""

    def operands(self) -> Mapping[str, Operand]:
        """Kernel, and bias where there is one."""
        return {"weight": self.weight} | ({} if self.bias is None else {"bias": self.bias})

    def operator_norm(self, scope: Scope) -> Bound:
        """Norm of the finite map; the adjoint has the same."""
        return scope.operator_norm(ConvMap(self.weight, self.geometry, self.groups))

    def output_facts(self, inputs: Sequence[ValueFacts], scope: Scope) -> ValueFacts:
        """Returns B ≥ sup ‖Tx + b⊗1‖ at P positions, and a box for each channel.

        Proof: ‖Tx + b⊗1‖ ≤ ‖T‖X + √P‖b‖. Sharper, because the square is expanded:
        √(‖T‖²X² + 2X‖Tᵀ(b⊗1)‖ + P‖b‖²). Round a channel-constant image c, from which the box is r
        away: ‖Tc + b⊗1‖ + ‖T‖‖r‖. Each entry of Tx is a sum over the taps of its pattern of
        kernel entries times values in the boxes of their channels, and at most the norm of
        these kernel entries times X (Cauchy–Schwarz).
        Attained: without bias, by the top right singular vector.
        """
        (x,) = inputs
        shape = self.output_shape([x.shape])
        kernel = scope.entries(self.weight).map(self._kernel)
        box = self._channel_box(x, kernel, scope)
        if self.bias is not None:
            box = box + scope.entries(self.bias)
        bounds = (self._around_zero(x, kernel, scope), self._around_centre(x, kernel, scope))
        spatial = (slice(None), *[None] * len(self.geometry))
        return ValueFacts.of(shape, tightest(*bounds), box.map(lambda end: end[spatial]))

    def _around_zero(self, x: ValueFacts, kernel: Interval, scope: Scope) -> Bound:
        """‖T‖X + √P‖b‖, or √(‖T‖²X² + 2X‖Tᵀ(b⊗1)‖ + P‖b‖²)."""
        rule = f"{self.family}.output_norm"
        linear = product_of(rule, self.operator_norm(scope), x.norm)
        if self.bias is None:
            return linear
        positions = math.prod(self.output_shape([x.shape])[1:])
        shift = scope.norm(self.bias).scaled(root_of(positions))
        joint = sum_of(rule, linear, shift)
        rows = kernel.map(lambda end: end.reshape(*end.shape[:2], -1))
        shifts = scope.entries(self.bias).map(lambda b: b.reshape(self.groups, 1, -1))
        taps = kernel.shape[-1]
        per_tap = shifts.matmul(rows).map(lambda end: end.reshape(-1, taps))
        cross = _image_norm(per_tap, self._taps_at_inputs())
        if not (joint.is_finite and cross.is_finite):
            return joint
        square = linear.value * linear.value + shift.value * shift.value
        square = square + _TWO * x.norm.value * cross
        if not square.is_finite:
            return joint
        return tightest(joint, Bound(square.sqrt(), f"{rule}.expanded"))

    def _around_centre(self, x: ValueFacts, kernel: Interval, scope: Scope) -> Bound:
        """‖Tc + b⊗1‖ + ‖T‖‖r‖, where the box is known and smaller than the ball."""
        rule = f"{self.family}.output_norm.centred"
        box = _channel_ends(x)
        with np.errstate(invalid="ignore", over="ignore"):
            centre = 0.5 * box.lo + 0.5 * box.hi
        if not np.all(np.isfinite(centre)):
            return no_bound(rule, "the box of the input is not bounded")
        image = centre.reshape(-1, *[1] * len(self.geometry))
        radius = (x.box - Interval.exact(np.broadcast_to(image, x.shape))).norm()
        if not radius < x.norm.value:
            return no_bound(rule, "the box of the input is not smaller than its ball")
        per_tap = self._by_taps(kernel, Interval.exact(centre))
        shift = None if self.bias is None else scope.entries(self.bias)
        value = _image_norm(per_tap, self._taps_at_outputs(), shift)
        if not value.is_finite:
            return no_bound(rule, "the entries of the kernel are not bounded")
        stretch = product_of(rule, self.operator_norm(scope), Bound(radius, rule))
        return sum_of(rule, Bound(value, rule), stretch)

    def _channel_box(self, x: ValueFacts, kernel: Interval, scope: Scope) -> Interval:
        """Entries of T x: [out channels]."""
        mask, _ = _patterns(self._taps_at_outputs())
        to_patterns = Interval.exact(mask.T)
        by_box = self._by_taps(kernel, _channel_ends(x)).matmul(to_patterns)
        by_tap = Interval.exact(_tap_norms(kernel.magnitude()))
        lengths = (by_tap * by_tap).matmul(to_patterns).clip(0.0, np.inf).monotone(np.sqrt).hi
        cap = min(self.operator_norm(scope).value, scope.norm(self.weight).value).value
        reach = Interval.exact(np.minimum(lengths, cap))
        box = by_box.intersect(reach * Interval.symmetric(x.norm.value, (1, 1)))
        return Interval(np.min(box.lo, axis=1), np.max(box.hi, axis=1))

    def _by_taps(self, kernel: Interval, channels: Interval) -> Interval:
        """What each tap adds to each channel of y for values `channels` of x: [out, taps]."""
        rows = channels.map(lambda end: end.reshape(self.groups, 1, 1, -1))
        return rows.matmul(kernel).map(_channels_by_taps)

    def input_lipschitz(self, index: int, inputs: Sequence[ValueFacts], scope: Scope) -> Bound:
        """Returns B ≥ ‖T‖₂ of the finite, zero-padded map. Attained: always."""
        del index, inputs
        return self.operator_norm(scope)

    def link(self, inputs: Sequence[ValueFacts], scope: Scope) -> Link | None:
        """T itself, where it is small and the scope knows the kernel exactly."""
        if not scope.entries(self.weight).is_exact:
            return None
        shape = inputs[0].shape
        return matrix_of(replace(self, bias=None).evaluate, shape, self.output_shape([shape]))

    def param_lipschitz(self, inputs: Sequence[ValueFacts], scope: Scope) -> Mapping[str, Bound]:
        """Returns, for the kernel, B ≥ sup ‖X_col‖₂ = κX; for the bias, √P at P positions.

        Proof: W ↦ Tx is, for each output channel, the patch matrix X_col of its group. For one
        channel ‖X_col‖ ≤ κ‖x‖, where κ depends on the geometry alone; channels stand side by
        side, so squares add. Also ‖X_col‖₂ ≤ ‖X_col‖_F, in which every entry of x counts as often
        as it is read. The trilinear form behind κ is symmetric in x and y, so the transposed
        convolution has the same κ.
        Attained: asymptotically, by constant images and cotangents.
        """
        del scope
        (x,) = inputs
        rule = f"{self.family}.param_lipschitz.weight"
        by_norm = product_of(rule, Bound(window_multiplicity(self.geometry), rule), x.norm)
        found = {"weight": tightest(by_norm, self._patch_norm(x))}
        if self.bias is not None:
            positions = math.prod(self.output_shape([x.shape])[1:])
            found["bias"] = Bound(root_of(positions), f"{self.family}.param_lipschitz.bias")
        return found

    def param_grad_norms(
        self, inputs: Sequence[ValueFacts], cotangent: CotangentFacts, scope: Scope
    ) -> Mapping[str, Bound]:
        """Returns, besides the chain rule, X·S for the kernel and S for the bias, where S bounds
        the channel sums √Σ_c ‖g_c‖₁² of the cotangent.

        Proof (Young): the gradient for output channel c and input channel i, as a function of the
        tap, is Σ_p g_c(p)·x_i(p·stride + tap·dilation − pad), x being 0 outside. For each p the
        taps read different entries of x_i, so it is a sum of vectors of norm at most
        |g_c(p)|·‖x_i‖, hence at most ‖g_c‖₁‖x_i‖; squares add over c and i. The bias receives
        Σ_p g_c(p). In a transposed convolution, position p of the output receives different
        entries of x_i through different taps, and the same holds.
        Attained: at one position and one tap.
        """
        found = Op.param_grad_norms(self, inputs, cotangent, scope)
        if cotangent.channel_sums is None:
            return found
        rule = f"{self.family}.param_grad_norms.channel_sums"
        kernel = product_of(rule, inputs[0].norm, cotangent.channel_sums)
        by_sums = {"weight": kernel, "bias": cotangent.channel_sums}
        return {slot: tightest(bound, by_sums[slot]) for slot, bound in found.items()}

    def _patch_norm(self, x: ValueFacts) -> Bound:
        """‖X_col‖_F over the box."""
        rule = f"{self.family}.param_lipschitz.weight.patches"
        reads = [np.sum(mask, axis=1, dtype=np.float64) for mask in self._taps_at_inputs()]
        counts: FloatArray = reduce(np.multiply.outer, reads, np.ones(()))
        roots = Interval.exact(counts).monotone(np.sqrt)
        magnitude = x.box.broadcast(x.shape).magnitude()
        value = (Interval.exact(magnitude) * roots).norm()
        if value.is_finite:
            return Bound(value, rule)
        return no_bound(rule, "the box of the input is not bounded")


@final
@dataclass(frozen=True, slots=True, eq=False)
class Conv(_Convolution):
    """Cross-correlation. weight: [out, in/groups, *taps]; geometry: from x to y."""

    @property
    def kind(self) -> str:
        """ONNX name."""
        return "Conv"

    @property
    def family(self) -> str:
        """Rule family."""
        return "conv"

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

    def _taps_at_outputs(self) -> tuple[_Mask, ...]:
        return tuple(_taps_of_windows(window) for window in self.geometry)

    def _taps_at_inputs(self) -> tuple[_Mask, ...]:
        return tuple(_taps_over_positions(window) for window in self.geometry)


@final
@dataclass(frozen=True, slots=True, eq=False)
class ConvTranspose(_Convolution):
    """Adjoint of a cross-correlation. weight: [in, out/groups, *taps]; geometry: from y to x."""

    @property
    def kind(self) -> str:
        """ONNX name."""
        return "ConvTranspose"

    @property
    def family(self) -> str:
        """Rule family."""
        return "conv_transpose"

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

    def _taps_at_outputs(self) -> tuple[_Mask, ...]:
        return tuple(_taps_over_positions(window) for window in self.geometry)

    def _taps_at_inputs(self) -> tuple[_Mask, ...]:
        return tuple(_taps_of_windows(window) for window in self.geometry)


def _taps_of_windows(window: Window) -> _Mask:
    """Which taps of each window read the input and not the padding: [outputs, taps]."""
    reads = np.arange(window.outputs)[:, None] * window.stride
    reads = reads + np.arange(window.taps) * window.dilation - window.pad_begin
    inside: _Mask = (reads >= 0) & (reads < window.size)
    return inside


def _taps_over_positions(window: Window) -> _Mask:
    """By which taps each input position is read: [size, taps]."""
    offsets = np.arange(window.size)[:, None] + window.pad_begin
    offsets = offsets - np.arange(window.taps) * window.dilation
    output, remainder = np.divmod(offsets, window.stride)
    reached: _Mask = (remainder == 0) & (output >= 0) & (output < window.outputs)
    return reached


def _patterns(axes: Sequence[_Mask]) -> tuple[FloatArray, FloatArray]:
    """The distinct sets of taps over a grid, and how often each occurs: [patterns, taps], [·]."""
    masks: FloatArray = np.ones((1, 1))
    counts: FloatArray = np.ones(1)
    for axis in axes:
        rows, times = np.unique(axis, axis=0, return_counts=True)
        masks = np.asarray(np.kron(masks, rows), dtype=np.float64)
        counts = np.asarray(np.kron(counts, times), dtype=np.float64)
    return masks, counts


def _image_norm(per_tap: Interval, axes: Sequence[_Mask], shift: Interval | None = None) -> Upper:
    """Norm of the image that receives per_tap [channels, taps] by pattern, plus a channel shift."""
    mask, counts = _patterns(axes)
    image = per_tap.matmul(Interval.exact(mask.T))
    if shift is not None:
        image = image + shift.map(lambda end: end[:, None])
    return (image * Interval.exact(counts).monotone(np.sqrt)).norm()


def _channel_ends(x: ValueFacts) -> Interval:
    """The range of all entries of each channel: [channels]."""
    box = x.box.broadcast(x.shape)
    axes = tuple(range(1, len(x.shape)))
    return Interval(np.min(box.lo, axis=axes), np.max(box.hi, axis=axes))


def _tap_norms(magnitude: FloatArray) -> FloatArray:
    """Bounds of the norms over input channels: [groups, out, in, taps] to [out channels, taps]."""
    inputs, taps = magnitude.shape[2:]
    return row_norms(np.swapaxes(magnitude, 2, 3).reshape(-1, inputs)).reshape(-1, taps)


def _channels_by_taps(array: FloatArray) -> FloatArray:
    """[groups, channels/groups, 1, taps] as [channels, taps]."""
    return array.reshape(-1, array.shape[-1])


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
