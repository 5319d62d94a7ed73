"""Plain backpropagation through the steps of a program, for examples at which a bound is tried out.

Numbers in float64, up to rounding: to hold against bounds, never bounds themselves. Stacks of
examples and of cotangents have a first axis of their own; one example serves many cotangents.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from lipcert.core import program as p
from lipcert.core.interval import exact
from lipcert.core.rules.functions import function
from lipcert.evaluate import batch_output, member, of_one_rank

Array: TypeAlias = npt.NDArray[np.float64]
Pull: TypeAlias = Callable[[Array], list[Array]]
"""From cotangents at the output of a step to those at its inputs."""

_KNOWN: Final = (
    p.Activation
    | p.Add
    | p.Attention
    | p.AveragePool
    | p.BatchNorm
    | p.Centre
    | p.Concat
    | p.Conv
    | p.Dense
    | p.Divide
    | p.MatMul
    | p.MaxPool
    | p.Move
    | p.Multiply
    | p.Normalize
    | p.PRelu
    | p.ReduceMax
    | p.ReduceNorm
    | p.ReduceSum
    | p.Scale
    | p.Shift
    | p.Softmax
    | p.Sort
)


def is_known(program: p.Program) -> bool:
    """Whether the Jacobian of every step is known here."""
    return all(isinstance(step.op, _KNOWN) for step in program.steps)


def pulls(program: p.Program, values: Mapping[str, Array]) -> Mapping[str, Pull]:
    """The transposed Jacobians at a stack of examples, by the outputs of the steps.

    At a kink, where frameworks differ too, the slope of least magnitude is taken.
    """
    return {
        step.output: _pull(step, [values[name] for name in step.inputs], values[step.output])
        for step in program.steps
    }


def cotangents(
    program: p.Program, jacobians: Mapping[str, Pull], seeds: Mapping[str, Array]
) -> dict[str, Array]:
    """Σ over the seeds of (∂value/∂·)ᵀ seed, at every value that one of them depends on."""
    found = dict(seeds)
    for step in reversed(program.steps):
        if step.output not in found:
            continue
        shares = jacobians[step.output](found[step.output])
        for name, share in zip(step.inputs, shares, strict=True):
            found[name] = found[name] + share if name in found else share
    return found


def gradient_squares(step: p.Step, x: Array, g: Array) -> Iterator[tuple[p.Operand, Array]]:
    """‖∂loss/∂operand‖² of each example for the operands of a step; of others nothing is known."""
    match step.op:
        case p.Dense(weight, bias):
            left, right = g.reshape(len(g), -1, g.shape[-1]), x.reshape(len(x), -1, x.shape[-1])
            yield weight, _product_squares(left, right)
            if bias is not None:
                yield bias, squares(left.sum(axis=1))
        case p.Conv(weight, bias):
            ends = (x, g) if step.op.transposed else (g, x)
            yield weight, _kernel_squares(*ends, step.op.window, step.op.groups)
            if bias is not None:
                yield bias, _channel_squares(g)
        case p.BatchNorm(scale, shift, mean, inverse):
            centred = x - _by_channel(mean, x)
            yield scale, _channel_squares(centred * _by_channel(inverse, x) * g)
            yield shift, _channel_squares(g)
        case p.Scale(operand):
            yield operand, squares(_summed(x * g, operand.shape))
        case p.Shift(operand):
            yield operand, squares(_summed(g, operand.shape))
        case p.PRelu(operand):
            yield operand, squares(_summed(np.minimum(x, 0.0) * g, operand.shape))


def squares(array: Array) -> Array:
    """‖·‖² of each example."""
    flat = array.reshape(len(array), -1)
    return np.asarray(np.einsum("ni,ni->n", flat, flat))


def _pull(step: p.Step, x: Sequence[Array], y: Array) -> Pull:
    """The transposed Jacobian of a step at these values."""
    op, first = step.op, x[0]
    match op:
        case p.Dense(weight):
            matrix = member(weight)
            return lambda g: [g @ matrix]
        case p.Conv():
            adjoint = replace(op, bias=None, transposed=not op.transposed)
            return _linear(adjoint, first)
        case p.Scale(factor):
            return _times(member(factor))
        case p.Shift():
            return lambda g: [g]
        case p.BatchNorm():
            return _times(_by_channel(op.scale, first) * _by_channel(op.inverse, first))
        case p.Activation():
            return _times(_gentlest(op, first))
        case p.PRelu(slope):
            return _times(np.where(first > 0.0, 1.0, member(slope)))
        case p.Move(sources):
            return _scatter(sources.reshape(1, -1), first.shape[1:])
        case p.Sort() | p.MaxPool() | p.ReduceMax():
            return _scatter(_selected(step, first), first.shape[1:])
        case p.AveragePool():
            return _averaged(op, first)
        case p.Add(signs):
            shapes = [item.shape[1:] for item in x]
            pairs = list(zip(signs, shapes, strict=True))
            return lambda g: [sign * _summed(g, shape) for sign, shape in pairs]
        case p.Concat(axis):
            ends = np.cumsum([item.shape[axis + 1] for item in x])[:-1]
            return lambda g: list(np.split(g, ends, axis=axis + 1))
        case p.Attention():
            return _attended(op, *x)
    if len(x) == 2:
        return _of_two(op, x, y)
    return _along_axes(op, first, y)


def _of_two(op: p.Op, x: Sequence[Array], y: Array) -> Pull:
    """Of steps that are bilinear, or a quotient."""
    left, right = (item.shape[1:] for item in x)
    a, b = of_one_rank(x)
    match op:
        case p.Multiply():
            return lambda g: [_summed(g * b, left), _summed(g * a, right)]
        case p.Divide():
            return lambda g: [_summed(g / b, left), _summed(-g * y / b, right)]
        case p.MatMul():
            return lambda g: [
                _summed(g @ b.swapaxes(-1, -2), left),
                _summed(a.swapaxes(-1, -2) @ g, right),
            ]
    raise _unknown(op)


def _along_axes(op: p.Op, x: Array, y: Array) -> Pull:
    """Of steps that read along axes of one value."""
    match op:
        case p.Softmax(axis, logarithm):
            if logarithm:
                shares = np.exp(y)
                return lambda g: [g - shares * g.sum(axis=axis + 1, keepdims=True)]
            return lambda g: [y * (g - (y * g).sum(axis=axis + 1, keepdims=True))]
        case p.ReduceSum(axes, mean):
            shape = x.shape[1:]
            terms = math.prod(shape[axis] for axis in axes) if mean else 1
            return lambda g: [np.broadcast_to(g / terms, (len(g), *shape))]
        case p.Centre(axes):
            behind = _behind(axes)
            return lambda g: [g - g.mean(axis=behind, keepdims=True)]
        case p.Normalize(axes):
            return _normalised(op, x, y, _behind(axes))
        case p.ReduceNorm(p=order):
            slopes = np.sign(x) if order == 1 else x / np.where(y == 0.0, np.inf, y)
            return lambda g: [g * slopes]
    raise _unknown(op)


def _normalised(op: p.Normalize, x: Array, y: Array, axes: tuple[int, ...]) -> Pull:
    """(g − y·mean(g·y))/s less its mean, s the root by which x was divided."""
    centred = x - x.mean(axis=axes, keepdims=True) if op.centred else x
    root = np.sqrt(np.mean(centred**2, axis=axes, keepdims=True) + op.epsilon)

    def pull(g: Array) -> list[Array]:
        found = (g - y * (g * y).mean(axis=axes, keepdims=True)) / root
        return [found - found.mean(axis=axes, keepdims=True) if op.centred else found]

    return pull


def _attended(op: p.Attention, q: Array, k: Array, v: Array) -> Pull:
    """Through the products and the softmax of attention."""
    scores = op.scale * (q @ k) + (0.0 if op.mask is None else member(op.mask))
    odds = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares = odds / odds.sum(axis=-1, keepdims=True)

    def pull(g: Array) -> list[Array]:
        at_shares = g @ v.swapaxes(-1, -2)
        weighted = (shares * at_shares).sum(axis=-1, keepdims=True)
        at_scores = op.scale * shares * (at_shares - weighted)
        found = (
            at_scores @ k.swapaxes(-1, -2),
            q.swapaxes(-1, -2) @ at_scores,
            shares.swapaxes(-1, -2) @ g,
        )
        return [_summed(g, item.shape[1:]) for g, item in zip(found, (q, k, v), strict=True)]

    return pull


def _averaged(op: p.AveragePool, x: Array) -> Pull:
    """Each output shared out among the entries of its window, channel by channel."""
    ones = np.ones((1, 1, *op.window.taps))
    total = p.Conv(p.Operand(ones, ones), None, op.window, 1, transposed=False)
    spatial, shape = x.shape[3:], x.shape[1:]
    counted = p.Step(total, (), "", (1, 1, *op.window.outputs), 0)
    divisor: Array = np.asarray(float(math.prod(op.window.taps)))
    if not op.counts_padding:
        divisor = batch_output(counted, [np.ones((1, 1, 1, *spatial))])[0]
    back = _linear(replace(total, transposed=True), np.empty((0, 1, 1, *spatial)))

    def pull(g: Array) -> list[Array]:
        each = (g / divisor).reshape(-1, 1, 1, *op.window.outputs)
        return [back(each)[0].reshape(-1, *shape)]

    return pull


def _linear(op: p.Conv, like: Array) -> Pull:
    """A convolution of cotangents, onto values of this shape."""
    step = p.Step(op, (), "", like.shape[1:], 0)
    return lambda g: [batch_output(step, [g])]


def _times(slopes: Array) -> Pull:
    """The transposed Jacobian of a diagonal map."""
    return lambda g: [g * slopes]


def _gentlest(op: p.Activation, x: Array) -> Array:
    """The slope of least magnitude at each number; what is no number has none."""
    known = ~np.isnan(x)
    slopes = function(op.name, op.numbers).derivative(exact(np.where(known, x, 0.0)))
    return np.where(known, np.clip(0.0, slopes.lo, slopes.hi), np.nan)


def _selected(step: p.Step, x: Array) -> npt.NDArray[np.int64]:
    """For a step that selects entries by their order: which it takes, [examples, entries of y].

    The step is applied to the ranks of the entries, which are ordered as these and never equal.
    """
    order = np.argsort(x.reshape(len(x), -1), axis=1, kind="stable")
    ranks = np.empty_like(order)
    np.put_along_axis(ranks, order, np.arange(order.shape[1])[None], axis=1)
    taken = batch_output(step, [ranks.reshape(x.shape).astype(np.float64)]).reshape(len(x), -1)
    return np.take_along_axis(order, taken.astype(np.int64), axis=1)


def _scatter(sources: npt.NDArray[np.int64], shape: p.Shape) -> Pull:
    """The transposed Jacobian of a selection: cotangents add up at the entries they came from."""
    size = math.prod(shape) + 1

    def pull(g: Array) -> list[Array]:
        places = (sources + 1) + size * np.arange(len(g))[:, np.newaxis]
        flat: Array = np.bincount(
            places.ravel(), g.ravel().astype(np.float64), minlength=size * len(g)
        ).astype(np.float64)
        return [flat.reshape(-1, size)[:, 1:].reshape(-1, *shape)]

    return pull


def _summed(g: Array, shape: p.Shape) -> Array:
    """Summed over the axes along which a value of this shape was broadcast."""
    added = g.ndim - 1 - len(shape)
    aligned = (*[1] * added, *shape)
    axes = [a for a, size in enumerate(aligned, 1) if size == 1 and g.shape[a] != 1]
    total: Array = g.sum(axis=tuple(axes), keepdims=True)
    return total.reshape(-1, *shape)


def _channel_squares(g: Array) -> Array:
    """‖Σ over the positions‖² for [examples, 1, channels, *positions]."""
    return squares(g.reshape(*g.shape[:3], -1).sum(axis=(1, 3)))


def _product_squares(left: Array, right: Array) -> Array:
    """‖Σ_p left_p ⊗ right_p‖² of each example, for [examples, positions, ·]."""
    if left.shape[1] == 1:
        return squares(left) * squares(right)
    return squares(left.swapaxes(1, 2) @ right)


def _kernel_squares(g: Array, x: Array, window: p.Window, groups: int) -> Array:
    """‖∂/∂kernel‖² where the windows on x meet g, position by position."""
    g, x = g[:, 0], x[:, 0]
    axes = tuple(range(2, x.ndim))
    sides = zip(window.taps, window.strides, window.dilations, strict=True)
    reach, pads, steps, taps = [], [(0, 0), (0, 0)], [], []
    for axis, (count, stride, dilation) in enumerate(sides):
        reach.append(dilation * (count - 1) + 1)
        last = (window.outputs[axis] - 1) * stride
        short = last + reach[-1] - window.before[axis] - x.shape[axis + 2]
        pads.append((window.before[axis], max(short, 0)))
        steps.append(slice(0, last + 1, stride))
        taps.append(slice(None, None, dilation))
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(x, pads), reach, axis=axes)
    patches: Array = windows[(slice(None), slice(None), *steps, *taps)]
    patches = np.moveaxis(patches, axes, range(1, 1 + len(axes)))
    positions = math.prod(window.outputs)
    patches = patches.reshape(len(x), positions, groups, -1)
    left = g.reshape(len(g), groups, -1, positions)
    found = [squares(left[:, i] @ patches[:, :, i]) for i in range(groups)]
    return np.asarray(np.sum(found, axis=0))


def _by_channel(operand: p.Operand, x: Array) -> Array:
    """Along axis 1 of each example."""
    return member(operand).reshape(-1, *(1,) * (x.ndim - 3))


def _behind(axes: p.Shape) -> tuple[int, ...]:
    """Axes of an example, counted in a stack of examples."""
    return tuple(axis + 1 for axis in axes)


def _unknown(op: Any) -> TypeError:
    return TypeError(f"the Jacobian of a step of the kind {type(op).__name__} is not known")
