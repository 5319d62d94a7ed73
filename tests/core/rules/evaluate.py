"""Linear steps in torch, so that autograd can tell what their Jacobians are."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
import torch.nn.functional as F

from lipcert.core.program import (
    Activation,
    Add,
    AveragePool,
    BatchNorm,
    Centre,
    Concat,
    Conv,
    Dense,
    Move,
    Op,
    Operand,
    PRelu,
    Program,
    ReduceSum,
    Scale,
    Shape,
    Shift,
    Window,
)

Tensors = Mapping[Operand, torch.Tensor]


def operands_of(op: Op) -> list[Operand]:
    """All constant tensors of an op."""
    names = ("weight", "bias", "factor", "offset", "scale", "shift", "mean", "inverse", "slope")
    found = [getattr(op, name, None) for name in names]
    return [operand for operand in found if isinstance(operand, Operand)]


def tensors_of(program: Program) -> dict[Operand, torch.Tensor]:
    """A leaf tensor for every operand."""
    return {
        operand: torch.tensor(operand.lo.copy(), requires_grad=True)
        for step in program.steps
        for operand in operands_of(step.op)
    }


def run(program: Program, x: torch.Tensor, tensors: Tensors) -> dict[str, torch.Tensor]:
    """All values of a program."""
    values = {program.input: x}
    for step in program.steps:
        inputs = [values[name] for name in step.inputs]
        values[step.output] = apply(step.op, inputs, step.shape, tensors)
    return values


def apply(op: Op, xs: Sequence[torch.Tensor], shape: Shape, t: Tensors) -> torch.Tensor:
    """One op."""
    x = xs[0]
    match op:
        case Dense():
            y = x @ t[op.weight].T
            return y if op.bias is None else y + t[op.bias]
        case Conv():
            y = _conv(op, x, shape, t)
            return y if op.bias is None else y + _channels(t[op.bias], y)
        case Scale():
            return x * t[op.factor]
        case Shift():
            return x + t[op.offset]
        case BatchNorm():
            scale, shift, mean, inverse = (
                _channels(t[operand], x) for operand in (op.scale, op.shift, op.mean, op.inverse)
            )
            return scale * (x - mean) * inverse + shift
        case Move():
            padded = torch.cat([x.reshape(-1), torch.zeros(1, dtype=x.dtype)])
            return padded[torch.from_numpy(op.sources)]
        case AveragePool():
            return _average(op, x)
        case ReduceSum():
            return (x.mean if op.mean else x.sum)(dim=op.axes, keepdim=True)
        case Centre():
            count = math.prod(x.shape[axis] for axis in op.axes)
            return x - x.sum(dim=op.axes, keepdim=True) / count
        case Add():
            return sum(
                (sign * term for sign, term in zip(op.signs, xs, strict=True)),
                start=torch.zeros(shape, dtype=x.dtype),
            )
        case Concat():
            return torch.cat(list(xs), dim=op.axis)
        case PRelu():
            return torch.where(x >= 0, x, x * t[op.slope])
        case Activation("relu"):
            return torch.relu(x)
        case Activation("tanh"):
            return torch.tanh(x)
        case _:
            raise NotImplementedError(op)


def _channels(vector: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return vector.reshape(1, -1, *[1] * (like.ndim - 2))


def _conv(op: Conv, x: torch.Tensor, shape: Shape, t: Tensors) -> torch.Tensor:
    w, taps = op.window, len(op.window.taps)
    if not op.transposed:
        f = (F.conv1d, F.conv2d, F.conv3d)[taps - 1]
        padded = F.pad(x, _pads(w, tuple(x.shape[2:])))
        return f(padded, t[op.weight], None, w.strides, 0, w.dilations, op.groups)
    g = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[taps - 1]
    full = g(x, t[op.weight], None, w.strides, 0, 0, op.groups, w.dilations)
    return F.pad(full, [-pad for pad in _pads(w, shape[2:])])


def _average(op: AveragePool, x: torch.Tensor) -> torch.Tensor:
    w, channels = op.window, x.shape[1]
    ones = torch.ones((channels, 1, *w.taps), dtype=x.dtype)
    f = (F.conv1d, F.conv2d, F.conv3d)[len(w.taps) - 1]
    pads = _pads(w, tuple(x.shape[2:]))

    def summed(value: torch.Tensor) -> torch.Tensor:
        return f(F.pad(value, pads), ones, None, w.strides, 0, w.dilations, channels)

    if op.counts_padding:
        return summed(x) / math.prod(w.taps)
    return summed(x) / summed(torch.ones_like(x))


def _pads(w: Window, sizes: Shape) -> list[int]:
    """In the order of torch: last axis first; negative pads crop."""
    pads: list[int] = []
    for axis in reversed(range(len(sizes))):
        reach = (w.outputs[axis] - 1) * w.strides[axis] + w.dilations[axis] * (w.taps[axis] - 1) + 1
        pads += [w.before[axis], reach - sizes[axis] - w.before[axis]]
    return pads


def spectral(matrix: torch.Tensor) -> float:
    """The largest singular value."""
    return float(np.linalg.norm(matrix.detach().numpy(), 2)) if matrix.numel() else 0.0
