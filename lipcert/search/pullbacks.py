"""Pullbacks: plain backpropagation through a program, for examples at which a bound is tested.

Numbers are float64, up to rounding: they are compared with bounds, and are never bounds themselves.
Stacks of examples and of cotangents have a first axis of their own; one example serves many
cotangents.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from lipcert.core import kinds, token_kinds, window_kinds
from lipcert.core import program as p
from lipcert.core.interval import exact
from lipcert.core.rules.activations import function
from lipcert.graph.evaluate import batch_output, function_of, member, normal_share, of_one_rank

Array: TypeAlias = npt.NDArray[np.float64]
Pull: TypeAlias = Callable[[Array], list[Array]]
"""Maps cotangents at the output of a step to those at its inputs."""


def pulls(program: p.Program, values: Mapping[str, Array]) -> Mapping[str, Pull]:
    """Return the transposed Jacobians at a stack of examples, by the outputs of the steps.

    At a kink, where frameworks differ too, the slope of least magnitude is used.
    """
    return {
        step.output: _pull(step, [values[name] for name in step.inputs], values[step.output])
        for step in program.steps
    }


def cotangents(
    program: p.Program, jacobians: Mapping[str, Pull], seeds: Mapping[str, Array]
) -> dict[str, Array]:
    """Return Σ over the seeds of (∂value/∂·)ᵀ seed, at every value that one of them depends on."""
    found = dict(seeds)
    for step in reversed(program.steps):
        if step.output not in found:
            continue
        shares = jacobians[step.output](found[step.output])
        for name, share in zip(step.inputs, shares, strict=True):
            found[name] = found[name] + share if name in found else share
    return found


def stretched_most(step: p.Step, given: p.Shape, rounds: int) -> Array:
    """Return (TᵀT)^rounds of a fixed vector, normalised, for the linear step T.  # [1, *given]"""
    x: Array = np.random.default_rng(0).standard_normal((1, *given))
    back = _pull(step, [x], np.empty((1, *step.shape)))
    for _ in range(rounds):
        (image,) = back(batch_output(step, [x]))
        length = float(np.linalg.norm(image))
        if not 0.0 < length < math.inf:
            break
        x = image / length
    return x


def squares(array: Array) -> Array:
    """Return ‖·‖² of each example."""
    flat = array.reshape(len(array), -1)
    return np.asarray(np.einsum("ni,ni->n", flat, flat))


def _pull(step: p.Step, x: Sequence[Array], y: Array) -> Pull:
    """Return the transposed Jacobian of a step at these values."""
    op, first = step.op, x[0]
    match op:
        case p.Dense(weight):
            matrix = member(weight)
            return lambda g: [g @ matrix]
        case kinds.Embedding() | kinds.Compare():  # the derivative by whole numbers is 0
            return lambda g: [np.zeros((len(g), *first.shape[1:]))]
        case window_kinds.Conv():
            adjoint = replace(op, bias=None, transposed=not op.transposed)
            return _linear(adjoint, first)
        case token_kinds.Scale(factor):
            return _times(member(factor))
        case token_kinds.Shift():
            return lambda g: [g]
        case kinds.BatchNorm():
            return _times(by_channel(op.scale, first) * by_channel(op.inverse, first))
        case p.Activation():
            return _times(_gentlest(op, first))
        case kinds.PRelu(slope):
            return _times(np.where(first > 0.0, 1.0, member(slope)))
        case p.Move(sources):
            return _scatter(sources.reshape(1, -1), first.shape[1:])
        case kinds.Sort() | window_kinds.MaxPool() | kinds.ReduceMax():
            return _scatter(_selected(step, first), first.shape[1:])
        case window_kinds.AveragePool():
            return _averaged(op, first)
        case token_kinds.Add(signs):
            shapes = [item.shape[1:] for item in x]
            pairs = list(zip(signs, shapes, strict=True))
            return lambda g: [sign * summed(g, shape) for sign, shape in pairs]
        case kinds.Concat(axis):
            ends = np.cumsum([item.shape[axis + 1] for item in x])[:-1]
            return lambda g: list(np.split(g, ends, axis=axis + 1))
        case token_kinds.Attention():
            return _attended(op, *x)
        case window_kinds.LpPool():
            return _pooled(op, first, y)
        case kinds.InputClip(radius):
            return _clipped(first, radius)
        case kinds.CotangentClip():
            return lambda g: [_within(g, op)]
    if len(x) == 2:
        return _of_two(op, x, y)
    return _along_axes(op, first, y)


def _of_two(op: p.Op, x: Sequence[Array], y: Array) -> Pull:
    """Return the pullback of a bilinear step or a quotient."""
    left, right = (item.shape[1:] for item in x)
    a, b = of_one_rank(x)
    match op:
        case token_kinds.Multiply():
            return lambda g: [summed(g * b, left), summed(g * a, right)]
        case kinds.Divide():
            return lambda g: [summed(g / b, left), summed(-g * y / b, right)]
        case kinds.MaskedMean(axes, floor):
            behind = _behind(axes)
            mask = np.broadcast_to(b, a.shape)
            total = np.sum(mask, axis=behind, keepdims=True)
            least, mean = np.maximum(total, floor), y * (total > floor)
            return lambda g: [g * (mask / least), summed(g * ((a - mean) / least), right)]
        case token_kinds.MatMul():
            return lambda g: [
                summed(g @ b.swapaxes(-1, -2), left),
                summed(a.swapaxes(-1, -2) @ g, right),
            ]
    raise _unknown(op)


def _along_axes(op: p.Op, x: Array, y: Array) -> Pull:
    """Return the pullback of a step that reads along axes of one value."""
    match op:
        case token_kinds.Softmax(axis, logarithm):
            if logarithm:
                shares = np.exp(y)
                return lambda g: [g - shares * g.sum(axis=axis + 1, keepdims=True)]
            return lambda g: [y * (g - (y * g).sum(axis=axis + 1, keepdims=True))]
        case token_kinds.ReduceSum(axes, mean):
            shape = x.shape[1:]
            terms = math.prod(shape[axis] for axis in axes) if mean else 1
            return lambda g: [np.broadcast_to(g / terms, (len(g), *shape))]
        case kinds.Centre(axes):
            behind = _behind(axes)
            return lambda g: [g - g.mean(axis=behind, keepdims=True)]
        case token_kinds.Normalize(axes):
            return _normalised(op, x, y, _behind(axes))
        case kinds.ReduceNorm(p=order):
            slopes = np.sign(x) if order == 1 else x / np.where(y == 0.0, np.inf, y)
            return lambda g: [g * slopes]
        case kinds.ReduceLogSumExp():
            return _times(np.exp(x - y))
        case kinds.DivideByNorm(axes):
            return _divided(op, x, _behind(axes))
        case kinds.LocalResponse():
            return _responding(op, x)
    raise _unknown(op)


def _normalised(op: token_kinds.Normalize, x: Array, y: Array, axes: tuple[int, ...]) -> Pull:
    """Return (g − y·mean(g·y))/s minus its mean, s the root by which x was divided."""
    centred = x - x.mean(axis=axes, keepdims=True) if op.centred else x
    root = np.sqrt(np.mean(centred**2, axis=axes, keepdims=True) + op.epsilon)

    def pull(g: Array) -> list[Array]:
        found = (g - y * (g * y).mean(axis=axes, keepdims=True)) / root
        return [found - found.mean(axis=axes, keepdims=True) if op.centred else found]

    return pull


def _attended(op: token_kinds.Attention, q: Array, k: Array, v: Array, *masks: Array) -> Pull:
    """Pull through the products and the softmax of attention; 0 for a query that sees nothing."""
    scores = op.scale * (q @ k) + (0.0 if op.mask is None else member(op.mask))
    shown = np.ones(1)
    for mask in masks:
        full, shown = of_one_rank([scores, 1.0 - mask])
        scores = np.where(shown == 1.0, full, np.finfo(np.float64).min)
    odds = shown * np.exp(scores - scores.max(axis=-1, keepdims=True))
    total = odds.sum(axis=-1, keepdims=True)
    shares = odds / np.where(total == 0.0, 1.0, total)

    def pull(g: Array) -> list[Array]:
        at_shares = g @ v.swapaxes(-1, -2)
        weighted = (shares * at_shares).sum(axis=-1, keepdims=True)
        at_scores = op.scale * shares * (at_shares - weighted)
        found = (
            at_scores @ k.swapaxes(-1, -2),
            q.swapaxes(-1, -2) @ at_scores,
            shares.swapaxes(-1, -2) @ g,
        )
        pulled = [summed(g, item.shape[1:]) for g, item in zip(found, (q, k, v), strict=True)]
        return [*pulled, *(np.zeros((len(g), *mask.shape[1:])) for mask in masks)]

    return pull


def _averaged(op: window_kinds.AveragePool, x: Array) -> Pull:
    """Distribute each output over the entries of its window, channel by channel."""
    divisor: Array = np.asarray(float(math.prod(op.window.taps)))
    if not op.counts_padding:
        ones = np.ones((1, 1, 1, *x.shape[3:]))
        total = _total(op.window)
        divisor = batch_output(p.Step(total, (), "", (1, 1, *op.window.outputs), 0), [ones])[0]
    back = _to_windows(op.window, x.shape[1:])
    return lambda g: [back(g / divisor)]


def _pooled(op: window_kinds.LpPool, x: Array, y: Array) -> Pull:
    """Pull through (|x|/y)^(p − 1) with the sign of x."""
    back = _to_windows(op.window, x.shape[1:])
    if op.p == 1:
        return lambda g: [back(g) * np.sign(x)]
    length = np.where(y == 0.0, np.inf, y)
    return lambda g: [back(g / length) * x]


def _total(window: window_kinds.Window) -> window_kinds.Conv:
    """Return the convolution that sums over the windows of one channel."""
    ones = np.ones((1, 1, *window.taps))
    return window_kinds.Conv(p.Operand(ones, ones), None, window, 1, transposed=False)


def _to_windows(window: window_kinds.Window, shape: p.Shape) -> Callable[[Array], Array]:
    """Return a function from a number per window to sums over the windows of each entry."""
    back = _linear(replace(_total(window), transposed=True), np.empty((0, 1, 1, *shape[2:])))
    return lambda g: back(g.reshape(-1, 1, 1, *window.outputs))[0].reshape(-1, *shape)


def _clipped(x: Array, radius: float) -> Pull:
    """Pull through a clip: the identity in the ball, else radius/‖x‖ · projection across x."""
    flat = x.reshape(len(x), -1)
    length = np.maximum(np.linalg.norm(flat, axis=1), radius).reshape(-1, *[1] * (x.ndim - 1))
    along = np.where(length > radius, x / length, 0.0)
    axes = tuple(range(1, x.ndim))
    return lambda g: [radius / length * (g - along * (along * g).sum(axis=axes, keepdims=True))]


def _within(g: Array, op: kinds.CotangentClip) -> Array:
    """Scale down each cotangent to the radius."""
    parts = np.abs(g).reshape(*g.shape[:3], -1).sum(axis=3) if op.by_channel else g
    length = np.sqrt(squares(parts)).reshape(-1, *[1] * (g.ndim - 1))
    clipped: Array = g * (op.radius / np.maximum(length, op.radius))
    return clipped


def _divided(op: kinds.DivideByNorm, x: Array, axes: tuple[int, ...]) -> Pull:
    """Pull by (1 − share of the norm in the divisor, along x) over the divisor."""
    norm = np.sqrt(np.sum(x**2, axis=axes, keepdims=True))
    both = np.broadcast_arrays(member(op.share) * norm, member(op.floor))
    divisor = np.linalg.norm(both, op.p, axis=0)
    divisor = np.where(divisor == 0.0, np.inf, divisor)
    along, part = x / np.where(norm == 0.0, np.inf, norm), (both[0] / divisor) ** op.p
    return lambda g: [(g - part * along * (along * g).sum(axis=axes, keepdims=True)) / divisor]


def _responding(op: kinds.LocalResponse, x: Array) -> Pull:
    """Return g·s^(−power), minus what each channel adds to the sums s of its neighbours."""
    share = op.strength / op.size
    before, behind = (op.size - 1) // 2, op.size // 2
    s = op.floor + share * _around(x * x, before, behind)
    own, bend = s**-op.power, 2.0 * op.power * share * x
    return lambda g: [g * own - bend * _around(g * x * own / s, behind, before)]


def _around(x: Array, before: int, behind: int) -> Array:
    """Return sums over channels before and behind each, with channels on axis 2 of the stack."""
    pads = [(0, 0)] * x.ndim
    pads[2] = (before, behind)
    size = before + 1 + behind
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(x, pads), size, axis=2)
    return np.asarray(windows.sum(axis=-1))


def _linear(op: window_kinds.Conv, like: Array) -> Pull:
    """Convolve cotangents, onto values of this shape."""
    step = p.Step(op, (), "", like.shape[1:], 0)
    return lambda g: [batch_output(step, [g])]


def _times(slopes: Array) -> Pull:
    """Return the transposed Jacobian of a diagonal map."""
    return lambda g: [g * slopes]


_ROOT_TWO_OVER_PI: Final = math.sqrt(2.0 / math.pi)
_CUBIC: Final = 0.044715


def _bell(x: Array) -> Array:
    return np.asarray(np.exp(-0.5 * x * x) / math.sqrt(2.0 * math.pi))


def _of_silu(x: Array) -> Array:
    share = function_of("sigmoid", (), x)
    return np.asarray(share * (1.0 + x * (1.0 - share)))


def _of_gelu_tanh(x: Array, slope: float = _ROOT_TWO_OVER_PI, cubic: float = _CUBIC) -> Array:
    """Return the slope of x·σ(2c(x + kx³)), by default with the numbers of GELU."""
    square = x * x
    share = function_of("sigmoid", (), 2.0 * slope * x * (1.0 + cubic * square))
    steep = 2.0 * slope * x * (1.0 + 3.0 * cubic * square)
    bend = share * (1.0 - share)
    return np.asarray(share + np.where(bend == 0.0, 0.0, steep * bend))


def _of_mish(x: Array) -> Array:
    level = np.tanh(function_of("softplus", (), x))
    return np.asarray(level + x * function_of("sigmoid", (), x) * (1.0 - level * level))


def _between(a: float) -> float:
    """Return the slope of least magnitude at a kink between the slopes a and 1."""
    return min(max(a, 0.0), 1.0)


def _of_leaky(x: Array, a: float) -> Array:
    return np.where(x > 0.0, 1.0, np.where(x < 0.0, a, _between(a)))


def _of_elu(x: Array, a: float) -> Array:
    return np.where(x > 0.0, 1.0, np.where(x < 0.0, a * np.exp(x), _between(a)))


_SLOPES: Final[Mapping[str, Callable[..., Any]]] = {
    "relu": lambda x: np.where(x > 0.0, 1.0, 0.0),
    "leaky_relu": _of_leaky,
    "abs": np.sign,
    "clip": lambda x, low, high: np.where((x > low) & (x < high), 1.0, 0.0),
    "hard_swish": lambda x: np.where(x <= -3.0, 0.0, np.where(x < 3.0, x / 3.0 + 0.5, 1.0)),
    "elu": _of_elu,
    "sigmoid": lambda x: np.multiply(*(function_of("sigmoid", (), end) for end in (x, -x))),
    "tanh": lambda x: 1.0 - np.tanh(x) ** 2,
    "silu": _of_silu,
    "quick_gelu": lambda x, factor: _of_silu(factor * x),
    "gelu_tanh": _of_gelu_tanh,
    "mish": _of_mish,
    "softplus": lambda x: function_of("sigmoid", (), x),
    "gelu": lambda x: normal_share(x) + x * _bell(x),
    "erf": lambda x: 2.0 * math.sqrt(2.0) * _bell(math.sqrt(2.0) * x),
    "exp": np.exp,
}
"""Slopes of the most frequent functions, in plain arithmetic, without enclosures."""
_FAR: Final = 1e3
"""Beyond this the slope of each of them without numbers is that at infinity."""
_PIECE: Final = 1 << 15
"""How many slopes are enclosed at once, which takes many times their memory."""
_ENCLOSED: Final = 1000.0
"""Operations of a value and a slope that have to be enclosed."""
_PER_TAP: Final = 5e3
"""Other work for each tap of a convolution, in operations."""


def work(program: p.Program) -> float:
    """Return roughly the operations of the gradients of one example; five of a matrix are one."""
    total = 1.0
    for step in program.steps:
        total += (16.0 if is_quick(step.op) else _ENCLOSED) * math.prod(step.shape)
        match step.op:
            case p.Dense(weight):
                total += 1.2 * weight.lo.size * math.prod(step.shape[:-1])
            case window_kinds.Conv(weight, window=window, transposed=transposed):
                before = program.shapes[step.inputs[0]]
                positions = math.prod(before[2:]) if transposed else math.prod(window.outputs)
                total += 6.0 * weight.lo.size * positions + _PER_TAP * math.prod(window.taps)
            case token_kinds.MatMul():
                total += 6.0 * math.prod(step.shape) * program.shapes[step.inputs[0]][-1]
            case token_kinds.Attention():
                queries, keys, values = (program.shapes[name] for name in step.inputs[:3])
                total += 6.0 * math.prod(queries[:-1]) * keys[-1] * (queries[-1] + values[-1])
    return total


def is_quick(op: p.Op) -> bool:
    """Whether slopes take a few operations, not the hundreds of an enclosure."""
    return not isinstance(op, p.Activation) or op.name in _SLOPES


def _gentlest(op: p.Activation, x: Array) -> Array:
    """Return the slope of least magnitude at each number; NaN at NaN."""
    if op.name in _SLOPES:
        with np.errstate(all="ignore"):
            near = x if op.numbers else np.clip(x, -_FAR, _FAR)
            found = np.asarray(_SLOPES[op.name](near, *op.numbers))
        return np.where(np.isnan(x), np.nan, found)
    flat, slopes = x.reshape(-1), np.full(x.size, np.nan)
    derivative = function(op.name, op.numbers).derivative
    for start in range(0, x.size, _PIECE):
        part = flat[start : start + _PIECE]
        known = ~np.isnan(part)
        ends = derivative(exact(part[known]))
        slopes[start : start + _PIECE][known] = np.clip(0.0, ends.lo, ends.hi)
    return slopes.reshape(x.shape)


def _selected(step: p.Step, x: Array) -> npt.NDArray[np.int64]:
    """Return which entries a step selects by their order: [examples, entries of y].

    The step is applied to the ranks of the entries, which are ordered as these and never equal.
    """
    order = np.argsort(x.reshape(len(x), -1), axis=1, kind="stable")
    ranks = np.empty_like(order)
    np.put_along_axis(ranks, order, np.arange(order.shape[1])[None], axis=1)
    taken = batch_output(step, [ranks.reshape(x.shape).astype(np.float64)]).reshape(len(x), -1)
    return np.take_along_axis(order, taken.astype(np.int64), axis=1)


def _scatter(sources: npt.NDArray[np.int64], shape: p.Shape) -> Pull:
    """Return the pullback of a selection: cotangents add up at the entries they came from."""
    size = math.prod(shape) + 1

    def pull(g: Array) -> list[Array]:
        places = (sources + 1) + size * np.arange(len(g))[:, np.newaxis]
        flat: Array = np.bincount(
            places.ravel(), g.ravel().astype(np.float64), minlength=size * len(g)
        ).astype(np.float64)
        return [flat.reshape(-1, size)[:, 1:].reshape(-1, *shape)]

    return pull


def summed(g: Array, shape: p.Shape) -> Array:
    """Sum over the axes along which a value of this shape was broadcast."""
    added = g.ndim - 1 - len(shape)
    aligned = (*[1] * added, *shape)
    axes = [a for a, size in enumerate(aligned, 1) if size == 1 and g.shape[a] != 1]
    total: Array = g.sum(axis=tuple(axes), keepdims=True)
    return total.reshape(-1, *shape)


def by_channel(operand: p.Operand, x: Array) -> Array:
    """Return the operand along axis 1 of each example."""
    return member(operand).reshape(-1, *(1,) * (x.ndim - 3))


def _behind(axes: p.Shape) -> tuple[int, ...]:
    """Return axes of an example as axes of a stack of examples."""
    return tuple(axis + 1 for axis in axes)


def _unknown(op: Any) -> TypeError:
    return TypeError(f"the Jacobian of a step of the kind {type(op).__name__} is not known")
