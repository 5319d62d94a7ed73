"""Graphs evaluated in torch, from the attributes of steps: the truth that attacks differentiate.

Everything works on one example in float64 and is written with torch alone, so that autograd and
`torch.func` see through it; no code of the rules or of `evaluate` is used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional

from lipcert.core import program as p
from lipcert.core.losses.base import Loss
from lipcert.core.losses.entries import (
    AbsoluteError,
    BinaryCrossEntropy,
    Cosine,
    Huber,
    SquaredError,
)
from lipcert.core.losses.focal import Focal
from lipcert.core.losses.margins import (
    HingeKantorovichRubinstein,
    KantorovichRubinstein,
    MulticlassHinge,
    MultiMargin,
    NegativeLogLikelihood,
)
from lipcert.core.losses.softmax import CrossEntropy
from lipcert.graph.evaluate import member
from lipcert.graph.geometry import Geometry
from lipcert.graph.ir import Graph, Node

Tensors = Mapping[str, Tensor]
Function = Callable[[Tensor], Tensor]
View = Callable[[Tensor], Tensor]
Views = Mapping[tuple[str, str], View]

FUNCTIONS: Mapping[str, Callable[..., Function]] = {
    "relu": lambda: torch.relu,
    "abs": lambda: torch.abs,
    "leaky_relu": lambda a: lambda x: torch.where(x > 0, x, a * x),
    "clip": lambda low, high: lambda x: torch.clamp(x, low, high),
    "soft_threshold": lambda limit: lambda x: torch.sign(x) * torch.relu(x.abs() - limit),
    "hard_sigmoid": lambda a, b: lambda x: torch.clamp(a * x + b, 0.0, 1.0),
    "hard_swish": lambda: lambda x: x * torch.clamp(x / 6.0 + 0.5, 0.0, 1.0),
    "elu": lambda a: _exponential(1.0, a, 1.0),
    "selu": lambda a, gain: _exponential(gain, a, 1.0),
    "celu": lambda a: _exponential(1.0, a, a),
    "sigmoid": lambda: torch.sigmoid,
    "tanh": lambda: torch.tanh,
    "atan": lambda: torch.atan,
    "softplus": lambda: lambda x: torch.logaddexp(x, torch.zeros_like(x)),
    "softsign": lambda: lambda x: x / (1.0 + x.abs()),
    "erf": lambda: torch.erf,
    "sin": lambda: torch.sin,
    "cos": lambda: torch.cos,
    "gelu": lambda: _gelu,
    "gelu_tanh": lambda *n: _tanh_gelu(*(n or (math.sqrt(2.0 / math.pi), 0.044715))),
    "silu": lambda: lambda x: x * torch.sigmoid(x),
    "quick_gelu": lambda a: lambda x: x * torch.sigmoid(a * x),
    "mish": lambda: lambda x: x * torch.tanh(torch.logaddexp(x, torch.zeros_like(x))),
    "exp": lambda: torch.exp,
    "log": lambda: torch.log,
    "sqrt": lambda: torch.sqrt,
    "reciprocal": lambda: lambda x: 1.0 / x,
    "power": lambda a: lambda x: x**a,
}


def _exponential(gain: float, scale: float, width: float) -> Function:
    def apply(x: Tensor) -> Tensor:
        below = scale * torch.expm1(torch.clamp(x, max=0.0) / width)
        return gain * torch.where(x > 0, x, below)

    return apply


def _gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1.0 + torch.erf(x / math.sqrt(2.0)))


def _tanh_gelu(slope: float, cubic: float) -> Function:
    return lambda x: 0.5 * x * (1.0 + torch.tanh(slope * (x + cubic * x**3)))


def parameters(graph: Graph, views: Views) -> dict[str, Tensor]:
    """The trained tensors, as they are where an op sees them without a view."""
    found: dict[str, Tensor] = {}
    for node in graph.nodes:
        for slot, operand in node.operands.items():
            if operand.parameter is not None and (node.name, slot) not in views:
                found.setdefault(operand.parameter, torch.tensor(operand.array))
    return found


def run(
    graph: Graph,
    x: Tensor,
    theta: Tensors,
    views: Views,
    shifts: Tensors | None = None,
) -> dict[str, Tensor]:
    """Every value of the graph for one example.

    views: (node name, slot) → how the op sees its parameter, where that is not the tensor itself.
    shifts: zeros added to the values; the gradient with respect to them is the cotangent.
    """
    shifts = shifts or {}
    values = {graph.input_name: _shifted(x, graph.input_name, shifts)}
    for node in graph.nodes:
        operands = {}
        for slot, operand in node.operands.items():
            if operand.parameter is None:
                operands[slot] = torch.tensor(operand.array)
            else:
                view = views.get((node.name, slot), lambda t: t)
                operands[slot] = view(theta[operand.parameter])
        result = apply(node, [values[name] for name in node.inputs], operands)
        assert tuple(result.shape) == node.shape
        values[node.output] = _shifted(result, node.output, shifts)
    return values


def _shifted(value: Tensor, name: str, shifts: Tensors) -> Tensor:
    return value + shifts[name] if name in shifts else value


def apply(node: Node, x: list[Tensor], operands: Tensors) -> Tensor:
    """One node on one example."""
    wide = [each.reshape(shape) for each, shape in zip(x, node.given, strict=True)]
    return _apply(node.op, wide, operands, node).reshape(node.shape)


def _apply(op: p.Op, x: list[Tensor], operands: Tensors, node: Node) -> Tensor:
    match op:
        case p.Dense():
            y = x[0] @ operands["weight"].T
            return y + operands["bias"] if "bias" in operands else y
        case p.Embedding():
            return operands["weight"][x[0].long()]
        case p.Conv(transposed=False):
            y = correlation(x[0], operands["weight"], node.geometry, op.groups)
            return _with_bias(y, operands)
        case p.Conv():
            return _with_bias(_adjoint(x[0], operands["weight"], node.geometry, op), operands)
        case p.MaxPool():
            return windows(x[0], node.geometry, -math.inf).amax(-1)
        case p.AveragePool():
            summed = windows(x[0], node.geometry, 0.0).sum(-1)
            if op.counts_padding:
                return summed / math.prod(op.window.taps)
            return summed / windows(torch.ones_like(x[0]), node.geometry, 0.0).sum(-1)
        case p.LpPool():
            powers = windows(x[0], node.geometry, 0.0).abs() ** op.p
            return (powers.sum(-1) + 1e-300) ** (1.0 / op.p)
        case p.PRelu():
            return torch.where(x[0] > 0, x[0], operands["slope"] * x[0])
        case p.Scale() if "divisor" in operands:
            return x[0] / operands["divisor"]
        case p.Scale():
            return x[0] * operands["scale"] + operands.get("bias", 0.0)
        case p.Shift():
            return x[0] + operands["bias"]
        case p.BatchNorm():
            shape = (-1, *[1] * (x[0].dim() - 2))
            mean, inverse = (torch.tensor(member(o)) for o in (op.mean, op.inverse))
            scale = (operands["scale"] * inverse).reshape(shape)
            return scale * (x[0] - mean.reshape(shape)) + operands["bias"].reshape(shape)
        case p.Move():
            flat = functional.pad(x[0].reshape(-1), (0, 1))
            return flat[torch.tensor(op.sources)]
        case p.Compare():
            limits = torch.tensor(op.limits)
            return (x[0] > limits if op.above else x[0] == limits).to(x[0])
        case p.Activation():
            return FUNCTIONS[op.name](*op.numbers)(x[0])
        case p.InputClip():
            length = x[0].norm()
            return torch.where(length > op.radius, x[0] * (op.radius / length), x[0])
        case p.CotangentClip():
            return _ClippedBackward.apply(x[0], op.radius, op.by_channel)
        case p.LocalResponse():
            return _response(op, x[0])
    return _together(op, x)


def _together(op: p.Op, x: list[Tensor]) -> Tensor:
    match op:
        case p.Add():
            return sum(sign * term for sign, term in zip(op.signs, x, strict=True))
        case p.Concat():
            return torch.cat(x, dim=op.axis)
        case p.Multiply():
            return x[0] * x[1]
        case p.MatMul():
            return x[0] @ x[1]
        case p.Divide():
            return x[0] / x[1]
        case p.MaskedMean():
            shown = x[1].expand_as(x[0])
            return (x[0] * shown).sum(op.axes, keepdim=True) / shown.sum(
                op.axes, keepdim=True
            ).clamp(min=op.floor)
        case p.Attention():
            scores = op.scale * (x[0] @ x[1])
            if op.mask is not None:
                scores = scores + torch.tensor(member(op.mask))
            if len(x) > 3:
                scores = scores.masked_fill(x[3] == 1.0, -math.inf)
            return torch.softmax(scores, -1) @ x[2]
    return _along(op, x[0])


def _along(op: p.Op, x: Tensor) -> Tensor:
    match op:
        case p.Sort():
            return x.sort(dim=op.axis).values
        case p.Softmax():
            return (torch.log_softmax if op.logarithm else torch.softmax)(x, op.axis)
        case _ if not op.axes:
            return x.abs() if isinstance(op, p.ReduceNorm) else x
        case p.Normalize():
            centred = x - x.mean(op.axes, keepdim=True) if op.centred else x
            return centred / torch.sqrt((centred**2).mean(op.axes, keepdim=True) + op.epsilon)
        case p.ReduceSum():
            return (x.mean if op.mean else x.sum)(op.axes, keepdim=True)
        case p.ReduceMax():
            return (torch.amin if op.minimum else torch.amax)(x, op.axes, keepdim=True)
        case p.ReduceNorm():
            powers = x.abs() if op.p == 1 else x**2
            summed = powers.sum(op.axes, keepdim=True) + op.floor
            return summed if op.p == 1 else torch.sqrt(summed + 1e-300)
        case p.ReduceLogSumExp():
            return torch.logsumexp(x, op.axes, keepdim=True)
        case p.Centre():
            count = math.prod(x.shape[axis] for axis in op.axes)
            return x - x.sum(op.axes, keepdim=True) / count
        case p.DivideByNorm():
            norms = torch.sqrt((x**2).sum(op.axes, keepdim=True) + 1e-300)
            scaled = norms * op.share.lo.item()
            return torch.where(scaled > op.floor, x / scaled, x / op.floor)
    raise NotImplementedError(type(op).__name__)


def correlation(x, kernel, geometry: Geometry, groups: int) -> Tensor:
    run_conv = (functional.conv1d, functional.conv2d, functional.conv3d)[len(geometry) - 1]
    pads = [pad for w in reversed(geometry) for pad in (w.pad_begin, w.pad_end)]
    return run_conv(
        functional.pad(x, pads),
        kernel,
        stride=tuple(w.stride for w in geometry),
        dilation=tuple(w.dilation for w in geometry),
        groups=groups,
    )


def _adjoint(x: Tensor, kernel: Tensor, geometry: Geometry, op: p.Conv) -> Tensor:
    run_conv = (
        functional.conv_transpose1d,
        functional.conv_transpose2d,
        functional.conv_transpose3d,
    )[len(geometry) - 1]
    full = run_conv(
        x,
        kernel,
        stride=tuple(w.stride for w in geometry),
        dilation=tuple(w.dilation for w in geometry),
        groups=op.groups,
    )
    for axis, w in enumerate(geometry, start=2):
        missing = max(0, w.pad_begin + w.size - full.shape[axis])
        full = functional.pad(full, [0, 0] * (full.dim() - 1 - axis) + [0, missing])
        full = full.narrow(axis, w.pad_begin, w.size)
    return full


def _with_bias(y: Tensor, operands: Tensors) -> Tensor:
    if "bias" not in operands:
        return y
    return y + operands["bias"].reshape(-1, *[1] * (y.dim() - 2))


def windows(x: Tensor, geometry: Geometry, padding: float) -> Tensor:
    """[1, channels, *outputs, taps]."""
    for axis, w in enumerate(geometry, start=2):
        pads = [0, 0] * (x.dim() - 1 - axis) + [w.pad_begin, w.pad_end]
        x = functional.pad(x, pads, value=padding)
        reach = w.dilation * (w.taps - 1) + 1
        x = x.unfold(axis, reach, w.stride)[..., :: w.dilation]
    return x.flatten(2 + len(geometry))


def _response(op: p.LocalResponse, x: Tensor) -> Tensor:
    channels, before = x.shape[1], (op.size - 1) // 2
    band = torch.zeros(channels, channels, dtype=torch.float64)
    for channel in range(channels):
        band[channel, max(0, channel - before) : channel - before + op.size] = 1.0
    squares = (band @ x.reshape(channels, -1) ** 2).reshape(x.shape)
    return x * (op.floor + op.strength / op.size * squares) ** -op.power


class _ClippedBackward(torch.autograd.Function):
    """The identity, whose backward pass shrinks the cotangent into the ball."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x, radius, by_channel):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, ctx.radius, ctx.by_channel = inputs

    @staticmethod
    def backward(ctx, cotangent):
        by_channel = ctx.by_channel and cotangent.dim() > 2
        sums = cotangent[0].flatten(1).abs().sum(1) if by_channel else cotangent.flatten()
        length = sums.norm()
        factor = torch.where(length > ctx.radius, ctx.radius / length, torch.ones_like(length))
        return cotangent * factor, None, None


def loss_value(loss: Loss, output: Tensor, label: Tensor) -> Tensor:
    """The loss of one example. label: [outputs]; class losses take one-hot labels."""
    z, y = output.reshape(-1), label
    match loss:
        case CrossEntropy():
            a = loss.label_smoothing
            target = (1.0 - a) * y + a / len(z)
            return -(target * torch.log_softmax(z / loss.temperature, 0)).sum()
        case NegativeLogLikelihood():
            return -(z * y).sum()
        case Focal():
            log_p = (torch.log_softmax(z, 0) * y).sum()
            return -((1.0 - log_p.exp()).clamp_min(1e-15) ** loss.focal_gamma) * log_p
        case BinaryCrossEntropy():
            scaled = z / loss.temperature
            return _reduced(loss, torch.logaddexp(scaled, torch.zeros_like(scaled)) - y * scaled)
        case SquaredError():
            return (0.5 if loss.half else 1.0) * _reduced(loss, (z - y) ** 2)
        case AbsoluteError():
            return _reduced(loss, (z - y).abs())
        case Huber():
            d, delta = (z - y).abs(), loss.huber_delta
            return _reduced(loss, torch.where(d <= delta, 0.5 * d**2, delta * (d - 0.5 * delta)))
        case MulticlassHinge():
            return _hinge(loss.margin, loss.output_reduction, z, y)
        case MultiMargin():
            gaps = torch.relu(loss.margin - (z * y).sum() + z) * (1.0 - y)
            return _reduced(loss, gaps)
        case KantorovichRubinstein():
            return _kr(z, y)
        case HingeKantorovichRubinstein():
            hinge = _hinge(loss.margin, "mean", z, y)
            return _kr(z, y) + loss.hkr_weight * hinge
        case Cosine():
            return -(z * y).sum() / z.norm().clamp_min(loss.cosine_floor or 1e-300)
    raise NotImplementedError(type(loss).__name__)


def _reduced(loss, terms: Tensor) -> Tensor:
    return terms.mean() if loss.output_reduction == "mean" else terms.sum()


def _hinge(margin: float, reduction: str, z: Tensor, y: Tensor) -> Tensor:
    hinges = torch.relu(0.5 * margin - (2.0 * y - 1.0) * z)
    if reduction == "sum":
        return hinges.sum()
    weights = y * (len(z) - 1) + (1.0 - y)
    return (weights * hinges).sum() / len(z)


def _kr(z: Tensor, y: Tensor) -> Tensor:
    return (z * (1.0 - y)).sum() / (len(z) - 1) - (z * y).sum()
