"""Steps in torch, so that autograd can tell what their Jacobians are."""

import itertools
import math
import operator

import numpy as np
import torch
import torch.nn.functional as F

from lipcert.core import kinds, token_kinds
from lipcert.core.program import Activation, Dense, Move, Op, Operand, Program, Shape
from lipcert.core.window_kinds import AveragePool, Conv, LpPool, MaxPool, Window

ACTIVATIONS = {
    ("relu", ()): torch.relu,
    ("leaky_relu", (0.2,)): lambda x: F.leaky_relu(x, 0.2),
    ("abs", ()): torch.abs,
    ("clip", (-0.5, 1.0)): lambda x: torch.clamp(x, -0.5, 1.0),
    ("hard_sigmoid", (0.2, 0.5)): lambda x: torch.clamp(0.2 * x + 0.5, 0.0, 1.0),
    ("hard_swish", ()): F.hardswish,
    ("elu", (1.5,)): lambda x: F.elu(x, 1.5),
    ("selu", (1.6732632423543772, 1.0507009873554805)): F.selu,
    ("celu", (0.7,)): lambda x: F.celu(x, 0.7),
    ("sigmoid", ()): torch.sigmoid,
    ("tanh", ()): torch.tanh,
    ("atan", ()): torch.atan,
    ("softplus", ()): F.softplus,
    ("softsign", ()): F.softsign,
    ("erf", ()): torch.erf,
    ("sin", ()): torch.sin,
    ("cos", ()): torch.cos,
    ("gelu", ()): F.gelu,
    ("gelu_tanh", ()): lambda x: F.gelu(x, approximate="tanh"),
    ("silu", ()): F.silu,
    ("quick_gelu", (1.702,)): lambda x: x * torch.sigmoid(1.702 * x),
    ("mish", ()): F.mish,
    ("power", (2.0,)): lambda x: x**2,
    ("power", (3.0,)): lambda x: x**3,
    ("soft_threshold", (0.5,)): lambda x: F.softshrink(x, 0.5),
    ("log", ()): torch.log,
    ("sqrt", ()): torch.sqrt,
    ("reciprocal", ()): torch.reciprocal,
    ("power", (1.5,)): lambda x: x**1.5,
}
ON_POSITIVE = {"log", "sqrt", "reciprocal"}


def operands_of(op: Op) -> list[Operand]:
    """All constant tensors of an op."""
    names = (
        "weight",
        "table",
        "bias",
        "factor",
        "offset",
        "scale",
        "shift",
        "mean",
        "inverse",
        "slope",
    )
    found = [getattr(op, name, None) for name in names]
    return [operand for operand in found if isinstance(operand, Operand)]


def tensors_of(program: Program) -> dict[Operand, torch.Tensor]:
    """A leaf tensor for every operand."""
    return {
        operand: torch.tensor(operand.lo.copy(), requires_grad=True)
        for step in program.steps
        for operand in operands_of(step.op)
    }


def run(program: Program, x: torch.Tensor, tensors) -> dict[str, torch.Tensor]:
    """All values of a program."""
    values = {program.input: x}
    for step in program.steps:
        inputs = [values[name] for name in step.inputs]
        values[step.output] = apply(step.op, inputs, step.shape, tensors)
    return values


def _joined(norms: torch.Tensor, op: kinds.DivideByNorm) -> torch.Tensor:
    """What x is divided by, without a 0."""
    own, floor = norms * float(op.share.lo.flat[0]), float(op.floor.lo.flat[0])
    found = {1.0: own + floor, 2.0: torch.sqrt(own**2 + floor**2)}.get(op.p, own.clamp(min=floor))
    return torch.where(found == 0.0, torch.inf, found)


def apply(op: Op, xs, shape: Shape, t) -> torch.Tensor:
    """One op."""
    x = xs[0]
    match op:
        case Dense():
            y = x @ t[op.weight].T
            return y if op.bias is None else y + t[op.bias]
        case kinds.Embedding():
            return t[op.table][x.detach().long() % op.table.shape[0]]
        case kinds.Compare():
            limits = torch.tensor(op.limits)
            found = x > limits if op.above else x == limits
            return found.double() + 0.0 * x  # without a slope, but a part of the graph
        case kinds.MaskedMean():
            mask = xs[1].expand_as(x)
            count = sum_over(mask, op.axes).clamp(min=op.floor)
            return sum_over(x * mask, op.axes) / count
        case Conv():
            y = _conv(op, x, shape, t)
            return y if op.bias is None else y + _channels(t[op.bias], y)
        case token_kinds.Scale():
            return x * t[op.factor]
        case token_kinds.Shift():
            return x + t[op.offset]
        case kinds.BatchNorm():
            scale, shift, mean, inverse = (
                _channels(t[operand], x) for operand in (op.scale, op.shift, op.mean, op.inverse)
            )
            return scale * (x - mean) * inverse + shift
        case Move():
            padded = torch.cat([x.reshape(-1), torch.zeros(1, dtype=x.dtype)])
            return padded[torch.from_numpy(op.sources)]
        case AveragePool():
            return _average(op, x)
        case token_kinds.ReduceSum():
            return (x.mean if op.mean else x.sum)(dim=op.axes, keepdim=True)
        case kinds.Centre():
            return x - x.mean(dim=op.axes, keepdim=True)
        case token_kinds.Add():
            terms = (sign * term for sign, term in zip(op.signs, xs, strict=True))
            return sum(terms, start=torch.zeros(shape, dtype=x.dtype))
        case kinds.Concat():
            return torch.cat(list(xs), dim=op.axis)
        case kinds.PRelu():
            return torch.where(x >= 0, x, x * t[op.slope])
        case Activation(name, numbers):
            return ACTIVATIONS[name, numbers](x)
        case MaxPool():
            return _pooled(op.window, x, lambda part: part.max(dim=1).values)
        case LpPool():
            return _pooled(op.window, x, lambda p: torch.linalg.vector_norm(p, op.p, dim=1))
        case kinds.ReduceMax():
            return (torch.amin if op.minimum else torch.amax)(x, op.axes, keepdim=True)
        case kinds.ReduceNorm():
            return ((x.abs() ** op.p).sum(dim=op.axes, keepdim=True) + op.floor) ** (1 / op.p)
        case kinds.ReduceLogSumExp():
            return torch.logsumexp(x, op.axes, keepdim=True)
        case kinds.LocalResponse():
            return F.local_response_norm(x, op.size, op.strength, op.power, op.floor)
        case kinds.Sort():
            return torch.sort(x, op.axis).values
        case token_kinds.Multiply():
            return x * xs[1]
        case kinds.Divide():
            return x / xs[1]
        case token_kinds.MatMul():
            return x @ xs[1]
        case token_kinds.Softmax():
            return (F.log_softmax if op.logarithm else F.softmax)(x, dim=op.axis)
        case token_kinds.Normalize():
            moved = x - x.mean(dim=op.axes, keepdim=True) if op.centred else x
            return moved / torch.sqrt((moved**2).mean(dim=op.axes, keepdim=True) + op.epsilon)
        case kinds.DivideByNorm():
            return x / _joined(torch.linalg.vector_norm(x, dim=op.axes, keepdim=True), op)
        case token_kinds.Attention():
            scores = op.scale * (x @ xs[1])
            masked = scores if op.mask is None else scores + torch.tensor(op.mask.lo)
            if len(xs) == 3:
                return torch.softmax(masked, dim=-1) @ xs[2]
            hidden = xs[3].detach().expand_as(masked) == 1.0
            shares = torch.softmax(masked.masked_fill(hidden, -1e300), dim=-1)
            return shares.masked_fill(hidden, 0.0) @ xs[2]
        case kinds.InputClip():
            return x * (op.radius / x.norm()).clamp(max=1.0)
        case kinds.CotangentClip():
            return x.clone()


def sum_over(x: torch.Tensor, axes: Shape) -> torch.Tensor:
    """Of no axes: the value itself."""
    return x.sum(dim=axes, keepdim=True) if axes else x


def places_of(w: Window, sizes: Shape) -> list[list[int]]:
    """For each output the positions it reads, in row-major order."""
    axes = []
    for n, t, s, d, p, o in zip(
        sizes, w.taps, w.strides, w.dilations, w.before, w.outputs, strict=True
    ):
        axes.append(
            [[k * s + i * d - p for i in range(t) if 0 <= k * s + i * d - p < n] for k in range(o)]
        )
    weights = [math.prod(sizes[axis + 1 :]) for axis in range(len(sizes))]
    return [
        [sum(map(operator.mul, place, weights)) for place in itertools.product(*reads)]
        for reads in itertools.product(*axes)
    ]


def _pooled(w: Window, x: torch.Tensor, pooled) -> torch.Tensor:
    flat = x.reshape(x.shape[1], -1)
    columns = [pooled(flat[:, places]) for places in places_of(w, tuple(x.shape[2:]))]
    return torch.stack(columns, dim=1).reshape(1, x.shape[1], *w.outputs)


def _channels(vector: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return vector.reshape(1, -1, *[1] * (like.ndim - 2))


def _conv(op: Conv, x: torch.Tensor, shape: Shape, t) -> torch.Tensor:
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
