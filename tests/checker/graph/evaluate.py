"""A plain evaluator of programs, in float64, by the docstrings of the steps."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

import numpy as np
from scipy import special

from lipcert.checker.graph import program as p

Array = np.ndarray
_PLAIN = {
    "relu": lambda x: np.maximum(x, 0.0),
    "abs": np.abs,
    "hard_swish": lambda x: x * np.clip(x / 6.0 + 0.5, 0.0, 1.0),
    "sigmoid": special.expit,
    "tanh": np.tanh,
    "atan": np.arctan,
    "softplus": lambda x: np.logaddexp(x, 0.0),
    "softsign": lambda x: x / (1.0 + np.abs(x)),
    "erf": special.erf,
    "sin": np.sin,
    "cos": np.cos,
    "gelu": lambda x: x * special.ndtr(x),
    "silu": lambda x: x * special.expit(x),
    "mish": lambda x: x * np.tanh(np.logaddexp(x, 0.0)),
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "reciprocal": lambda x: 1.0 / x,
}


def apply_function(name: str, numbers: tuple[float, ...], x: Array) -> Array:
    """One of the functions of `Activation`."""
    if name in _PLAIN:
        return _PLAIN[name](x)
    n = numbers
    match name:
        case "leaky_relu":
            return np.where(x >= 0, x, n[0] * x)
        case "clip":
            return np.clip(x, n[0], n[1])
        case "hard_sigmoid":
            return np.clip(n[0] * x + n[1], 0.0, 1.0)
        case "elu":
            return np.where(x > 0, x, n[0] * np.expm1(x))
        case "selu":
            return n[1] * np.where(x > 0, x, n[0] * np.expm1(x))
        case "celu":
            return np.maximum(x, 0) + np.minimum(0, n[0] * np.expm1(x / n[0]))
        case "gelu_tanh":
            a, b = n or (math.sqrt(2 / math.pi), 0.044715)
            return 0.5 * x * (1 + np.tanh(a * (x + b * x**3)))
        case "quick_gelu":
            return x * special.expit(n[0] * x)
        case "power":
            return x ** n[0]
        case "soft_threshold":
            return np.sign(x) * np.maximum(np.abs(x) - n[0], 0)
    raise AssertionError(name)


def middle(operand: p.Operand) -> Array:
    """A member of the operand."""
    return operand.lo if operand.is_exact else (operand.lo + operand.hi) / 2


def evaluate(program: p.Program, x: Array) -> dict[str, Array]:
    """Every value for one example, of the shape of the program's input."""
    values = {program.input: np.asarray(x, dtype=np.float64)}
    assert values[program.input].shape == program.shapes[program.input]
    for step in program.steps:
        value = apply(step.op, [values[name] for name in step.inputs], program.shapes, step)
        assert value.shape == step.shape, (step.op, value.shape, step.shape)
        values[step.output] = value
    return values


def apply(op: p.Op, x: list[Array], shapes: Mapping[str, p.Shape], step: p.Step) -> Array:
    """The output of one step."""
    match op:
        case p.Dense():
            y = x[0] @ middle(op.weight).T
            return y if op.bias is None else y + middle(op.bias)
        case p.Conv():
            y = _transposed(op, x[0], step.shape) if op.transposed else _conv(op, x[0])
            if op.bias is None:
                return y
            return y + middle(op.bias).reshape(1, -1, *(1,) * (y.ndim - 2))
        case p.Scale():
            return x[0] * middle(op.factor)
        case p.Shift():
            return x[0] + middle(op.offset)
        case p.BatchNorm():
            scale, shift, mean, inverse = (
                middle(item).reshape(1, -1, *(1,) * (x[0].ndim - 2))
                for item in (op.scale, op.shift, op.mean, op.inverse)
            )
            return scale * (x[0] - mean) * inverse + shift
        case p.Activation():
            return apply_function(op.name, op.numbers, x[0])
        case p.PRelu():
            return np.where(x[0] >= 0, x[0], middle(op.slope) * x[0])
        case p.Move():
            return np.append(x[0].reshape(-1), 0.0)[op.sources]
        case p.MaxPool():
            return _pooled(op.window, x[0], np.max)
        case p.AveragePool():
            count = math.prod(op.window.taps) if op.counts_padding else None
            return _pooled(op.window, x[0], lambda e: np.sum(e) / (count or len(e)))
        case p.LpPool():
            return _pooled(op.window, x[0], lambda e: np.linalg.norm(e, op.p))
        case p.ReduceSum():
            return (np.mean if op.mean else np.sum)(x[0], axis=op.axes, keepdims=True)
        case p.ReduceMax():
            return (np.min if op.minimum else np.max)(x[0], axis=op.axes, keepdims=True)
        case p.ReduceNorm():
            total = np.sum(np.abs(x[0]) ** op.p, axis=op.axes, keepdims=True) + op.floor
            return total ** (1 / op.p)
        case p.Centre():
            return x[0] - np.mean(x[0], axis=op.axes, keepdims=True)
        case p.DivideByNorm():
            length = np.sqrt(np.sum(x[0] ** 2, axis=op.axes, keepdims=True))
            return x[0] / np.maximum(middle(op.share) * length, op.floor)
        case p.Sort():
            return np.sort(x[0], axis=op.axis)
        case p.Add():
            return sum(s * v for s, v in zip(op.signs, x, strict=True))
        case p.Concat():
            return np.concatenate(x, axis=op.axis)
        case p.Multiply():
            return x[0] * x[1]
        case p.Divide():
            return x[0] / x[1]
        case p.MatMul():
            return x[0] @ x[1]
        case p.Softmax():
            y = special.log_softmax(x[0], axis=op.axis)
            return y if op.logarithm else np.exp(y)
        case p.Normalize():
            d = x[0] - np.mean(x[0], axis=op.axes, keepdims=True) if op.centred else x[0]
            return d / np.sqrt(np.mean(d * d, axis=op.axes, keepdims=True) + op.epsilon)
        case p.Attention():
            scores = op.scale * (x[0] @ x[1])
            if op.mask is not None:
                scores = scores + middle(op.mask)
            return special.softmax(scores, axis=-1) @ x[2]
    raise AssertionError(op)


def _places(window: p.Window, sizes: p.Shape):
    """(output position, tap position, input position) of every tap inside of the input."""
    for out in itertools.product(*map(range, window.outputs)):
        for tap in itertools.product(*map(range, window.taps)):
            at = tuple(
                o * s + t * d - b
                for o, t, s, d, b in zip(
                    out, tap, window.strides, window.dilations, window.before, strict=True
                )
            )
            if all(0 <= place < size for place, size in zip(at, sizes, strict=True)):
                yield out, tap, at


def _by_tap(window: p.Window, sizes: p.Shape):
    """For every tap: slices of outputs and of inputs that it connects."""
    for tap in itertools.product(*map(range, window.taps)):
        outs, ins = [], []
        for axis, size in enumerate(sizes):
            s = window.strides[axis]
            offset = tap[axis] * window.dilations[axis] - window.before[axis]
            places = [o for o in range(window.outputs[axis]) if 0 <= o * s + offset < size]
            outs.append(places)
            ins.append([o * s + offset for o in places])
        if all(outs):
            yield tap, np.ix_(*outs), np.ix_(*ins)


def _conv(op: p.Conv, x: Array) -> Array:
    w = middle(op.weight)
    outputs, per_group = w.shape[:2]
    own = outputs // op.groups
    y = np.zeros((1, outputs, *op.window.outputs))
    for tap, outs, ins in _by_tap(op.window, x.shape[2:]):
        for g in range(op.groups):
            kernel = w[(slice(g * own, (g + 1) * own), slice(None), *tap)]
            part = x[0, g * per_group : (g + 1) * per_group][(slice(None), *ins)]
            y[0, g * own : (g + 1) * own][(slice(None), *outs)] += np.tensordot(kernel, part, 1)
    return y


def _transposed(op: p.Conv, x: Array, shape: p.Shape) -> Array:
    w = middle(op.weight)
    own, per_group = w.shape[0] // op.groups, w.shape[1]
    y = np.zeros(shape)
    for tap, outs, ins in _by_tap(op.window, shape[2:]):
        for g in range(op.groups):
            kernel = w[(slice(g * own, (g + 1) * own), slice(None), *tap)]
            part = x[0, g * own : (g + 1) * own][(slice(None), *outs)]
            y[0, g * per_group : (g + 1) * per_group][(slice(None), *ins)] += np.tensordot(
                kernel.T, part, 1
            )
    return y


def _pooled(window: p.Window, x: Array, function) -> Array:
    y = np.empty((*x.shape[:2], *window.outputs))
    entries: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
    for out, _, at in _places(window, x.shape[2:]):
        entries.setdefault(out, []).append(at)
    for out, places in entries.items():
        taken = np.stack([x[(slice(None), slice(None), *at)] for at in places], axis=-1)
        y[(slice(None), slice(None), *out)] = np.apply_along_axis(function, -1, taken)
    return y
