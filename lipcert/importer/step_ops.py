"""The op of a graph that a step of a program is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

from lipcert.core import program as p
from lipcert.geometry import Geometry, Window
from lipcert.importer.views import Operands, middle
from lipcert.operand import Operand
from lipcert.ops.affine import Divide, Scale, Shift
from lipcert.ops.attention import Attention
from lipcert.ops.base import Op
from lipcert.ops.clip import ClipNorm, CotangentClip, InputClip
from lipcert.ops.combine import Add, Concat, MatMul, Multiply, Quotient
from lipcert.ops.conv import Conv, ConvTranspose
from lipcert.ops.entrywise import Activation, PRelu
from lipcert.ops.linear import Dense
from lipcert.ops.move import Move
from lipcert.ops.normalize import BatchNorm, Lrn, Normalize
from lipcert.ops.pooling import AveragePool, LpPool, MaxPool
from lipcert.ops.reduction import (
    Centre,
    DivideByNorm,
    ReduceLogSumExp,
    ReduceMax,
    ReduceMean,
    ReduceNorm,
    ReduceSum,
)
from lipcert.ops.softmax import LogSoftmax, Softmax
from lipcert.ops.sort import Sort
from lipcert.upper import Upper

IMAGES: Final = p.Conv | p.BatchNorm | p.MaxPool | p.AveragePool | p.LpPool | p.LocalResponse
"""steps whose ops read [channels, *positions]"""
_ANYWHERE: Final = (
    p.Activation | p.Add | p.Divide | p.InputClip | p.CotangentClip | p.Move | p.Multiply
)
_ALONG: Final = (
    p.ReduceSum
    | p.ReduceMax
    | p.ReduceNorm
    | p.ReduceLogSumExp
    | p.Centre
    | p.DivideByNorm
    | p.Normalize
)


def example(shape: p.Shape) -> p.Shape:
    """The shape of a value in the graph, from that in the program."""
    return shape[1:] if shape[:1] == (1,) else shape


def works_on_examples(step: p.Step, given: Sequence[p.Shape]) -> bool:
    """Whether a step is an op on values of the graph; given: the shapes of its inputs.

    Broadcasting adds axes of length 1 in front, so that none is missed there.
    """
    if isinstance(step.op, _ANYWHERE):
        return True
    if any(shape[:1] != (1,) for shape in (*given, step.shape)):
        return False
    match step.op:
        case p.Dense():
            return len(step.shape) > 1
        case p.MatMul() | p.Attention():
            return min(map(len, given)) > 2
        case p.Softmax(axis) | p.Sort(axis) | p.Concat(axis):
            return axis > 0
        case op if isinstance(op, _ALONG):
            return op.axes != (0,)
    return True


@final
@dataclass(frozen=True, slots=True)
class StepOp:
    """A step that becomes an op; number: its position among the steps.

    given: shapes of its inputs. first: how many axes of length 1 the op does without. swapped:
    whether the op reads the images of one example as [channels, images, *positions].
    """

    step: p.Step
    number: int
    given: Sequence[p.Shape]
    operands: Operands
    first: int
    swapped: bool = False

    def op(self) -> Op:
        """The op."""
        match self.step.op:
            case p.Dense(weight, bias):
                return Dense(self._operand("weight", weight), self._bias(bias))
            case p.Conv(weight, bias, window, groups, transposed):
                back = (self.step.shape if transposed else self.given[0])[2:]
                kind = ConvTranspose if transposed else Conv
                taps = weight.shape[2:] if not self.swapped else (1, *weight.shape[2:])
                kernel = self._operand("weight", weight, (*weight.shape[:2], *taps))
                return kind(kernel, self._bias(bias), self._geometry(window, back), groups)
            case p.BatchNorm(scale, shift, mean, inverse):
                operands = self._operand("scale", scale), self._operand("shift", shift)
                variance = self.operands.stored(inverse)
                return BatchNorm(middle(mean), middle(inverse), *operands, variance)
            case p.Scale(factor):
                operand = self._entrywise("factor", factor)
                is_divisor = self.operands.is_inverted((self.number, "factor"))
                return Divide(operand) if is_divisor else Scale(operand)
            case p.Shift(offset):
                return Shift(self._entrywise("offset", offset))
            case p.PRelu(slope):
                return PRelu(self._entrywise("slope", slope))
            case p.MaxPool() | p.AveragePool() | p.LpPool():
                return self._pool(self.step.op)
        return self._of_axes(self.step.op)

    def _of_axes(self, op: p.Op) -> Op:
        match op:
            case p.ReduceSum(axes, mean):
                return (ReduceMean if mean else ReduceSum)(self._axes(axes))
            case p.ReduceMax(axes, minimum):
                return ReduceMax(self._axes(axes), minimum)
            case p.ReduceNorm(axes, norm, floor):
                return ReduceNorm(norm, self._axes(axes), floor=floor)
            case p.ReduceLogSumExp(axes):
                return ReduceLogSumExp(self._axes(axes))
            case p.Centre(axes):
                return Centre(self._axes(axes))
            case p.DivideByNorm(axes, share, floor):
                return DivideByNorm(self._axes(axes), 1.0 / middle(share).item(), floor)
            case p.Normalize(axes, epsilon, centred):
                return Normalize(self._axes(axes), epsilon, centred)
            case p.Softmax(axis, logarithm):
                return (LogSoftmax if logarithm else Softmax)(axis - self.first)
            case p.Sort(axis):
                return Sort(axis - self.first)
            case p.Concat(axis):
                return Concat(axis - self.first)
            case p.Attention(scale, mask):
                numbers = None if mask is None else middle(mask)
                if numbers is not None and self.first:
                    numbers = numbers.reshape(example(numbers.shape))
                return Attention(scale, numbers)
        return self._plain(op)

    def _plain(self, op: p.Op) -> Op:
        match op:
            case p.Activation(name, numbers):
                return Activation(name, numbers)
            case p.Move(sources):
                return Move(example(self.given[0]), sources.reshape(example(self.step.shape)))
            case p.Add(signs):
                return Add(tuple(map(float, signs)))
            case p.Multiply():
                return Multiply()
            case p.Divide():
                return Quotient()
            case p.MatMul():
                return MatMul()
            case p.LocalResponse(size, strength, power, floor):
                return Lrn(size, strength, power, floor)
            case p.InputClip(radius):
                return InputClip(Upper(radius))
            case p.CotangentClip(radius, by_channel):
                return CotangentClip(Upper(radius), ClipNorm.L15 if by_channel else ClipNorm.L2)
        raise TypeError(f"a step of the kind {type(op).__name__} is no op")

    def _operand(self, name: str, operand: p.Operand, shape: p.Shape | None = None) -> Operand:
        wanted = operand.shape if shape is None else shape
        return self.operands.of((self.number, name), operand, wanted)

    def _bias(self, bias: p.Operand | None) -> Operand | None:
        return None if bias is None else self._operand("bias", bias)

    def _entrywise(self, name: str, operand: p.Operand) -> Operand:
        return self._operand(name, operand, operand.shape[self.first :])

    def _axes(self, axes: p.Shape) -> p.Shape:
        return tuple(axis - self.first for axis in axes if axis >= self.first)

    def _pool(self, op: p.MaxPool | p.AveragePool | p.LpPool) -> Op:
        sizes = self.given[0][2:]
        geometry = self._geometry(op.window, sizes)
        match op:
            case p.MaxPool():
                return MaxPool(geometry)
            case p.LpPool():
                return LpPool(geometry, op.p)
            case p.AveragePool():
                counts = [
                    (window.taps,) * window.outputs if op.counts_padding else window.reads()
                    for window in geometry
                ]
                return AveragePool(geometry, tuple(counts))

    def _geometry(self, window: p.Window, sizes: p.Shape) -> Geometry:
        """sizes: of the positions that the windows read."""
        images = (Window(self.given[0][0], 1),) if self.swapped else ()
        return (*images, *(_window(window, axis, size) for axis, size in enumerate(sizes)))


def _window(window: p.Window, axis: int, size: int) -> Window:
    taps, stride = window.taps[axis], window.strides[axis]
    dilation, before = window.dilations[axis], window.before[axis]
    reach = (window.outputs[axis] - 1) * stride + dilation * (taps - 1) + 1
    found = Window(size, taps, stride, dilation, before, max(0, reach - before - size))
    if found.outputs != window.outputs[axis]:
        raise ValueError(f"{window.outputs[axis]} windows of {found.outputs}")
    return found
