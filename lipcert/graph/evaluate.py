"""Evaluate: compute the values of a program, step by step, in plain floating point.

Nothing here is rounded in a direction, and no bound relies on it: it serves to compare a reading of
a file with onnxruntime, and to test bounds at examples.
"""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from lipcert.core import kinds, token_kinds, window_kinds
from lipcert.core import program as p
from lipcert.core.interval import Interval, exact
from lipcert.core.lower.values import Constant
from lipcert.core.rules.activations import function

Array: TypeAlias = npt.NDArray[Any]
_Slices: TypeAlias = tuple[slice, ...]
_Taps: TypeAlias = tuple[tuple[p.Shape, _Slices, _Slices], ...]


def _sigmoid(x: Array) -> Array:
    return np.asarray(1.0 / (1.0 + np.exp(-x)))


_FEW: Final = 2**17
"""Numbers for which Python's own function takes less time and memory than scipy's import."""


def _of_errors(name: str, x: Array) -> Array:
    """Return erf or erfc of x."""
    if x.size <= _FEW:
        return np.fromiter(map(getattr(math, name), x.flat), x.dtype, x.size).reshape(x.shape)
    from scipy import special  # noqa: PLC0415

    return np.asarray(getattr(special, name)(x))


def normal_share(x: Array) -> Array:
    """Return the distribution function of the standard normal distribution at x."""
    return np.asarray(0.5 * _of_errors("erfc", -math.sqrt(0.5) * x))


def _gelu_tanh(x: Array, a: float = math.sqrt(2.0 / math.pi), b: float = 0.044715) -> Array:
    return np.asarray(0.5 * x * (1 + np.tanh(a * (x + b * x**3))))


_PLAIN: Final[Mapping[str, Callable[..., Any]]] = MappingProxyType(
    {
        "relu": lambda x: np.maximum(x, 0.0),
        "abs": np.abs,
        "hard_swish": lambda x: x * np.clip(x / 6.0 + 0.5, 0.0, 1.0),
        "sigmoid": _sigmoid,
        "tanh": np.tanh,
        "atan": np.arctan,
        "softplus": lambda x: np.logaddexp(x, 0.0),
        "erf": partial(_of_errors, "erf"),
        "sin": np.sin,
        "cos": np.cos,
        "gelu": lambda x: x * normal_share(x),
        "silu": lambda x: x * _sigmoid(x),
        "mish": lambda x: x * np.tanh(np.logaddexp(x, 0.0)),
        "exp": np.exp,
        "log": np.log,
        "sqrt": np.sqrt,
        "reciprocal": lambda x: 1.0 / x,
        "leaky_relu": lambda x, slope: np.where(x >= 0, x, slope * x),
        "clip": np.clip,
        "hard_sigmoid": lambda x, a, b: np.clip(a * x + b, 0.0, 1.0),
        "elu": lambda x, a: np.where(x > 0, x, a * np.expm1(x)),
        "selu": lambda x, a, scale: scale * np.where(x > 0, x, a * np.expm1(x)),
        "gelu_tanh": _gelu_tanh,
        "quick_gelu": lambda x, a: x * _sigmoid(a * x),
        "power": np.power,
    }
)
"""Functions of x and of the numbers of the activation."""

_PIECE: Final = 1 << 15
"""How many numbers are enclosed at once, which takes many times their memory."""
_APPROXIMATED: Final = frozenset(
    {"elu", "erf", "gelu", "gelu_tanh", "mish", "quick_gelu", "selu", "sigmoid", "silu"}
    | {"softplus", "tanh"}
)
"""Functions with an absolute error of about eps in a short float type, even near 0."""


def function_of(name: str, numbers: Sequence[float], x: Array) -> Array:
    """Apply one of the functions of `Activation` entry by entry; Unsupported for another name.

    Numbers of a short float type are shifted by the error that they may have, even near 0.
    """
    known = _PLAIN.get(name)
    found = _enclosed(name, numbers, x) if known is None else np.asarray(known(x, *numbers))
    if x.dtype == np.float64 or (known is not None and name not in _APPROXIMATED):
        return found
    return np.asarray(found + np.finfo(x.dtype).eps * np.maximum(1.0, np.abs(x)))


def _enclosed(name: str, numbers: Sequence[float], x: Array) -> Array:
    """Return the middles of the core's enclosures, which are a few roundings wide; slower."""
    flat, middles = x.reshape(-1), np.full(x.size, np.nan)
    image = function(name, tuple(numbers)).image
    for start in range(0, x.size, _PIECE):
        places = start + np.flatnonzero(np.isfinite(flat[start : start + _PIECE]))
        middles[places] = member(image(exact(flat[places].astype(np.float64))))
    return middles.reshape(x.shape)


def _values(
    program: p.Program, x: npt.NDArray[Any], arithmetic: str
) -> Iterator[tuple[str, Array]]:
    """Yield names and values in order, for examples [examples, *shape].

    A value is released once its last reader is computed.
    """
    readers = Counter(name for step in program.steps for name in set(step.inputs))
    known = {program.input: np.asarray(x).astype(arithmetic)}
    yield program.input, known[program.input]
    for step in program.steps:
        found = batch_output(step, [known[name] for name in step.inputs])
        known[step.output] = found.astype(arithmetic, copy=False)
        yield step.output, known[step.output]
        for name in set(step.inputs):
            readers[name] -= 1
            if not readers[name]:
                del known[name]


def values(
    program: p.Program, x: npt.NDArray[Any], arithmetic: str = "float64"
) -> Iterator[tuple[str, Array]]:
    """Yield names and values in order, for one example of the shape of the program's input.

    arithmetic: the dtype of all numbers; the difference between float32 and float64 shows what
    onnxruntime may lose.
    """
    found = _values(program, np.asarray(x)[None], arithmetic)
    return ((name, value[0, ...]) for name, value in found)


def evaluate(
    program: p.Program, x: npt.NDArray[Any], arithmetic: str = "float64"
) -> dict[str, Array]:
    """Return all of `values` at once."""
    return dict(values(program, x, arithmetic))


def output_of(program: p.Program, x: npt.NDArray[Any], arithmetic: str = "float64") -> Array:
    """Return the output alone, without keeping the other values."""
    return next(value for name, value in values(program, x, arithmetic) if name == program.output)


def evaluate_batch(program: p.Program, x: npt.NDArray[Any]) -> dict[str, Array]:
    """Return every value for examples [examples, *shape], as [examples, *shape of the value]."""
    return dict(_values(program, x, "float64"))


def of_one_rank(x: Sequence[Array]) -> list[Array]:
    """Give stacks of examples equally many axes, in front, as broadcasting does for one example."""
    rank = max(item.ndim for item in x)
    return [item.reshape(len(item), *(1,) * (rank - item.ndim), *item.shape[1:]) for item in x]


def member(ends: Constant | Interval | p.Operand) -> Array:
    """Return numbers between two ends: their value where they are equal, else the middle."""
    lo, hi = ends.lo, ends.hi
    return lo if lo is hi else np.where(lo == hi, lo, 0.5 * lo + 0.5 * hi)


def _like(operand: p.Operand, x: Array) -> Array:
    """Return a member of the operand in the dtype of x."""
    return member(operand).astype(x.dtype, copy=False)


def _rows(table: Array, numbers: Array) -> Array:
    """Return rows of a table, negative numbers counting from its end; NaN for missing rows."""
    known = (numbers >= -len(table)) & (numbers < len(table))
    return np.where(known[..., np.newaxis], table[np.where(known, numbers, 0)], np.nan)


@np.errstate(all="ignore")
def batch_output(step: p.Step, inputs: Sequence[Array]) -> Array:
    """Return the output of one step for several examples, stacked along a new first axis."""
    op, x = step.op, of_one_rank(inputs)
    first = x[0]
    match op:
        case p.Dense():
            y = first @ _like(op.weight, first).T
            return y if op.bias is None else y + _like(op.bias, first)
        case kinds.Embedding():
            return _rows(_like(op.table, first), first.astype(np.int64))
        case kinds.Compare():
            found = first > op.limits if op.above else first == op.limits
            return np.asarray(found.astype(first.dtype))
        case kinds.MaskedMean():
            mask, axes = np.broadcast_to(x[1], first.shape), _axes(op.axes)
            total = np.sum(first * mask, axis=axes, keepdims=True)
            return np.asarray(total / np.maximum(np.sum(mask, axis=axes, keepdims=True), op.floor))
        case token_kinds.Scale():
            return np.asarray(first * _like(op.factor, first))
        case token_kinds.Shift():
            return first + _like(op.offset, first)
        case p.Activation():
            return function_of(op.name, op.numbers, first)
        case kinds.PRelu():
            return np.where(first >= 0, first, _like(op.slope, first) * first)
        case p.Move():
            flat = first.reshape(len(first), -1)
            return np.asarray(np.pad(flat, ((0, 0), (0, 1)))[:, op.sources])
        case token_kinds.Multiply():
            return first * x[1]
        case kinds.Divide():
            return first / x[1]
        case token_kinds.MatMul():
            return np.asarray(first @ x[1])
        case token_kinds.Add():
            return np.asarray(sum(s * v for s, v in zip(op.signs, x, strict=True)))
        case kinds.Concat():
            return np.concatenate(x, axis=_axes([op.axis])[0])
        case kinds.Sort():
            return np.sort(first, axis=_axes([op.axis])[0])
        case token_kinds.Attention():
            scores = op.scale * (first @ x[1])
            if op.mask is not None:
                scores = scores + _like(op.mask, first)
            if len(x) > 3:
                scores = np.where(x[3] == 1.0, -np.inf, scores)
            return np.asarray(np.exp(_log_softmax(scores, -1)) @ x[2])
        case kinds.InputClip():
            lengths = np.sqrt(np.sum(first**2, axis=tuple(range(1, first.ndim)), keepdims=True))
            return np.asarray(first * (op.radius / np.maximum(lengths, op.radius)))
        case kinds.CotangentClip():
            return first
    images = _of_images(step, first.reshape(-1, *first.shape[2:]))
    if images is not None:
        return images.reshape(len(first), *step.shape)
    return _along_axes(op, first)


def _of_images(step: p.Step, x: Array) -> Array | None:
    """Return the output of a step for images [images, channels, ...]; None for another step."""
    op = step.op
    match op:
        case window_kinds.Conv():
            y = _transposed(op, x, step.shape) if op.transposed else _convolved(op, x)
            return y if op.bias is None else y + _by_channel(op.bias, y)
        case kinds.BatchNorm():
            centred = x - _by_channel(op.mean, x)
            scaled = _by_channel(op.scale, x) * centred * _by_channel(op.inverse, x)
            return np.asarray(scaled + _by_channel(op.shift, x))
        case window_kinds.MaxPool() | window_kinds.AveragePool() | window_kinds.LpPool():
            return _pooled(op, x)
        case kinds.LocalResponse():
            return _response(op, x)
    return None


def _axes(axes: Sequence[int]) -> tuple[int, ...]:
    """Return the axes of a stack that are those of an example."""
    return tuple(axis + (axis >= 0) for axis in axes)


def _largest(x: Array, axes: p.Shape) -> Array:
    """Return what to subtract along axes, so that exponentials do not overflow."""
    largest = np.max(x, axis=axes, keepdims=True)
    return np.asarray(np.where(np.isfinite(largest), largest, x.dtype.type(0.0)))


def _log_softmax(x: Array, axis: int) -> Array:
    """Return ln softmax(x); in a short float type as files find it that take the softmax first."""
    below = x - _largest(x, (axis,))
    found = np.asarray(below - np.log(np.sum(np.exp(below), axis=axis, keepdims=True)))
    return found if x.dtype == np.float64 else np.log(np.exp(found))


def _along_axes(op: p.Op, x: Array) -> Array:
    """Return the output of an op that reads along axes of one value."""
    if isinstance(op, token_kinds.Softmax):
        logs = _log_softmax(x, _axes([op.axis])[0])
        return logs if op.logarithm else np.asarray(np.exp(logs))
    axes = _axes(getattr(op, "axes", ()))
    match op:
        case token_kinds.ReduceSum():
            return np.asarray((np.mean if op.mean else np.sum)(x, axis=axes, keepdims=True))
        case kinds.ReduceMax():
            return np.asarray((np.min if op.minimum else np.max)(x, axis=axes, keepdims=True))
        case kinds.ReduceNorm():
            total = np.sum(np.abs(x) ** op.p, axis=axes, keepdims=True) + op.floor
            return np.asarray(total ** (1 / op.p))
        case kinds.ReduceLogSumExp():
            largest = _largest(x, axes)
            sums = np.sum(np.exp(x - largest), axis=axes, keepdims=True)
            return np.asarray(largest + np.log(sums))
        case kinds.Centre():
            return _centred(x, axes)
        case kinds.DivideByNorm():
            length = np.sqrt(np.sum(x**2, axis=axes, keepdims=True))
            both = np.broadcast_arrays(_like(op.share, x) * length, _like(op.floor, x))
            divisor = np.linalg.norm(both, op.p, axis=0)
            return np.asarray(x / np.where(divisor > 0.0, divisor, 1.0))
        case token_kinds.Normalize():
            d = _centred(x, axes) if op.centred else x
            return np.asarray(d / np.sqrt(np.mean(d * d, axis=axes, keepdims=True) + op.epsilon))
    raise TypeError(f"steps of the kind {type(op).__name__} cannot be evaluated")


def _response(op: kinds.LocalResponse, x: Array) -> Array:
    """Divide by a power of the sums of squares over neighbouring channels."""
    padded = np.zeros((x.shape[0], x.shape[1] + op.size - 1, *x.shape[2:]), x.dtype)
    padded[:, (op.size - 1) // 2 :][:, : x.shape[1]] = x * x
    windows = np.lib.stride_tricks.sliding_window_view(padded, op.size, axis=1)
    return np.asarray(x / (op.floor + op.strength / op.size * windows.sum(axis=-1)) ** op.power)


def _centred(x: Array, axes: p.Shape) -> Array:
    """Return x − mean(x), shifted by the error of a short float type."""
    d = x - np.mean(x, axis=axes, keepdims=True)
    if x.dtype != np.float64:
        d = d + np.finfo(x.dtype).eps * np.max(np.abs(x), axis=axes, keepdims=True)
    return np.asarray(d)


def _by_channel(operand: p.Operand, x: Array) -> Array:
    return _like(operand, x).reshape(1, -1, *(1,) * (x.ndim - 2))


@lru_cache(maxsize=64)
def by_tap(window: window_kinds.Window, sizes: p.Shape) -> _Taps:
    """Return each tap that reads the input, the outputs that read it, and the inputs they read."""
    found: list[tuple[p.Shape, _Slices, _Slices]] = []
    for tap in itertools.product(*map(range, window.taps)):
        outs, ins = [], []
        for axis, size in enumerate(sizes):
            stride = window.strides[axis]
            offset = tap[axis] * window.dilations[axis] - window.before[axis]
            first = max(0, -(offset // stride))
            last = min(window.outputs[axis] - 1, (size - 1 - offset) // stride)
            outs.append(slice(first, last + 1))
            ins.append(slice(first * stride + offset, last * stride + offset + 1, stride))
        if all(part.stop > part.start for part in outs):
            found.append((tap, tuple(outs), tuple(ins)))
    return tuple(found)


def behind(axes: int, index: Sequence[slice | int]) -> tuple[slice | int, ...]:
    """Return an index of the axes after the first ones."""
    return (*(slice(None),) * axes, *index)


def _convolved(op: window_kinds.Conv, x: Array) -> Array:
    outputs, per_group, *_ = op.weight.shape
    weight = _like(op.weight, x).reshape(op.groups, outputs // op.groups, *op.weight.shape[1:])
    parts = x.reshape(len(x), op.groups, per_group, *x.shape[2:])
    y = np.zeros((len(x), op.groups, outputs // op.groups, *op.window.outputs), x.dtype)
    for tap, outs, ins in by_tap(op.window, x.shape[2:]):
        y[behind(3, outs)] += _mixed(weight[behind(3, tap)], parts[behind(3, ins)])
    return y.reshape(len(x), outputs, *op.window.outputs)


def _transposed(op: window_kinds.Conv, x: Array, shape: p.Shape) -> Array:
    inputs, per_group, *_ = op.weight.shape
    weight = _like(op.weight, x).reshape(op.groups, inputs // op.groups, *op.weight.shape[1:])
    parts = x.reshape(len(x), op.groups, inputs // op.groups, *x.shape[2:])
    y = np.zeros((len(x), op.groups, per_group, *shape[2:]), x.dtype)
    for tap, outs, ins in by_tap(op.window, shape[2:]):
        y[behind(3, ins)] += _mixed(weight[behind(3, tap)].swapaxes(1, 2), parts[behind(3, outs)])
    return y.reshape(len(x), *shape[1:])


def _mixed(matrix: Array, x: Array) -> Array:
    """Multiply the channels of every group, axis 2, by the matrix of the group."""
    flat = matrix @ x.reshape(*x.shape[:3], -1)
    return np.asarray(flat.reshape(*flat.shape[:3], *x.shape[3:]))


def _pooled(
    op: window_kinds.MaxPool | window_kinds.AveragePool | window_kinds.LpPool, x: Array
) -> Array:
    window = op.window
    start = -np.inf if isinstance(op, window_kinds.MaxPool) else 0.0
    y = np.full((*x.shape[:2], *window.outputs), start, x.dtype)
    count = np.zeros(window.outputs, x.dtype)
    for _, outs, ins in by_tap(window, x.shape[2:]):
        read, kept = x[behind(2, ins)], y[behind(2, outs)]
        match op:
            case window_kinds.MaxPool():
                y[behind(2, outs)] = np.maximum(kept, read)
            case window_kinds.AveragePool():
                y[behind(2, outs)] = kept + read
                count[outs] += 1.0
            case window_kinds.LpPool():
                y[behind(2, outs)] = kept + np.abs(read) ** op.p
    match op:
        case window_kinds.AveragePool():
            return y / (math.prod(window.taps) if op.counts_padding else count)
        case window_kinds.LpPool():
            return np.asarray(y ** (1 / op.p))
    return y
