"""Random linear steps and random facts of what they read, with members to attack them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from lipcert.core.interval import Interval
from lipcert.core.program import (
    Add,
    AveragePool,
    BatchNorm,
    Centre,
    Concat,
    Conv,
    Dense,
    FloatArray,
    Move,
    Op,
    Operand,
    ReduceSum,
    Scale,
    Shape,
    Shift,
    Window,
)
from lipcert.core.rules.facts import Fact

Rng = np.random.Generator


@dataclass(frozen=True)
class Case:
    """An op between shapes."""

    op: Op
    shapes: tuple[Shape, ...]
    shape: Shape


def operand(rng: Rng, *shape: int, name: str = "w") -> Operand:
    """Exact, of one initializer; sometimes all zero."""
    array = rng.normal(size=shape) * (0.0 if rng.random() < 0.05 else 1.0)
    return Operand(array, array, {name: 1.0})


def window(rng: Rng, sizes: Shape) -> Window:
    """With any stride, dilation and padding that leaves an output."""
    taps, strides, dilations, before, outputs = [], [], [], [], []
    for size in sizes:
        t, d, s = (int(rng.integers(1, high)) for high in (4, 3, 4))
        pad, after = (int(rng.integers(0, 3)) for _ in range(2))
        if size + pad + after < d * (t - 1) + 1:
            t = 1
        taps, dilations, strides = [*taps, t], [*dilations, d], [*strides, s]
        before = [*before, pad]
        outputs = [*outputs, (size + pad + after - d * (t - 1) - 1) // s + 1]
    return Window(tuple(taps), tuple(strides), tuple(dilations), tuple(before), tuple(outputs))


def _dense(rng: Rng) -> Case:
    leading = tuple(int(n) for n in rng.integers(1, 4, size=rng.integers(0, 3)))
    n, m = (int(k) for k in rng.integers(1, 6, size=2))
    bias = operand(rng, m, name="b") if rng.random() < 0.7 else None
    return Case(Dense(operand(rng, m, n), bias), ((*leading, n),), (*leading, m))


def _conv(rng: Rng) -> Case:
    sizes = tuple(int(n) for n in rng.integers(1, 6, size=rng.integers(1, 3)))
    w, groups = window(rng, sizes), int(rng.integers(1, 3))
    i, o = (int(k) for k in rng.integers(1, 3, size=2))
    shapes = ((1, groups * i, *sizes), (1, groups * o, *w.outputs))
    weight = operand(rng, groups * o, i, *w.taps)
    transposed = bool(rng.random() < 0.4)
    before, after = reversed(shapes) if transposed else shapes
    bias = operand(rng, after[1], name="b") if rng.random() < 0.7 else None
    return Case(Conv(weight, bias, w, groups, transposed), (before,), after)


def _shape(rng: Rng, low: int = 1) -> Shape:
    return tuple(int(n) for n in rng.integers(1, 5, size=rng.integers(low, 4)))


def _part(rng: Rng, shape: Shape) -> Shape:
    return tuple(n if rng.random() < 0.5 else 1 for n in shape)


def _scale(rng: Rng) -> Case:
    shape = _shape(rng)
    return Case(Scale(operand(rng, *_part(rng, shape))), (shape,), shape)


def _shift(rng: Rng) -> Case:
    shape = _shape(rng)
    return Case(Shift(operand(rng, *_part(rng, shape))), (shape,), shape)


def _batch_norm(rng: Rng) -> Case:
    shape = _shape(rng, 2)
    four = [operand(rng, shape[1], name=name) for name in ("scale", "shift", "mean", "inverse")]
    return Case(BatchNorm(*four), (shape,), shape)


def _move(rng: Rng) -> Case:
    before = _shape(rng)
    size = math.prod(before)
    places = np.arange(size).reshape(before)
    kind = rng.integers(5)
    if kind == 0:
        sources = places.reshape(1, -1)
    elif kind == 1:
        sources = places.transpose(rng.permutation(len(before)))
    elif kind == 2:
        pads = [(int(a), int(b)) for a, b in rng.integers(0, 3, size=(len(before), 2))]
        sources = np.pad(places, pads, constant_values=-1)
    elif kind == 3:
        sources = np.tile(places, rng.integers(1, 3, size=len(before)))
    else:
        sources = rng.integers(-1, size, size=_shape(rng))
    return Case(Move(np.ascontiguousarray(sources, dtype=np.int64)), (before,), sources.shape)


def _average(rng: Rng) -> Case:
    while True:
        sizes = tuple(int(n) for n in rng.integers(1, 7, size=rng.integers(1, 3)))
        w, channels = window(rng, sizes), int(rng.integers(1, 3))
        reads = [
            np.arange(o)[:, None] * s + np.arange(t) * d - p
            for o, s, t, d, p in zip(
                w.outputs, w.strides, w.taps, w.dilations, w.before, strict=True
            )
        ]
        if all(((r >= 0) & (r < n)).any(axis=1).all() for r, n in zip(reads, sizes, strict=True)):
            op = AveragePool(w, bool(rng.integers(2)))
            return Case(op, ((1, channels, *sizes),), (1, channels, *w.outputs))


def _reduce(rng: Rng) -> Case:
    before = _shape(rng)
    axes = tuple(axis for axis in range(len(before)) if rng.random() < 0.6) or (0,)
    after = tuple(1 if axis in axes else n for axis, n in enumerate(before))
    return Case(ReduceSum(axes, bool(rng.integers(2))), (before,), after)


def _add(rng: Rng) -> Case:
    shape = _shape(rng)
    shapes = (shape, *(_part(rng, shape) for _ in range(rng.integers(1, 3))))
    signs = tuple(int(s) for s in rng.choice([-1, 1], size=len(shapes)))
    return Case(Add(signs), shapes, shape)


def _concat(rng: Rng) -> Case:
    shape, count = _shape(rng), int(rng.integers(1, 4))
    axis = int(rng.integers(len(shape)))
    lengths = [int(n) for n in rng.integers(1, 4, size=count)]
    shapes = tuple((*shape[:axis], n, *shape[axis + 1 :]) for n in lengths)
    return Case(Concat(axis), shapes, (*shape[:axis], sum(lengths), *shape[axis + 1 :]))


def _centre(rng: Rng) -> Case:
    shape = tuple(int(rng.integers(1, 5)) for _ in range(int(rng.integers(1, 4))))
    axes = tuple(axis for axis in range(len(shape)) if rng.random() < 0.5) or (len(shape) - 1,)
    return Case(Centre(axes), (shape,), shape)


KINDS: dict[str, Callable[[Rng], Case]] = {
    "dense": _dense,
    "conv": _conv,
    "scale": _scale,
    "shift": _shift,
    "batch_norm": _batch_norm,
    "move": _move,
    "average": _average,
    "reduce": _reduce,
    "centre": _centre,
    "add": _add,
    "concat": _concat,
}


def fact(rng: Rng, shape: Shape) -> tuple[Fact, list[FloatArray]]:
    """Facts that three random values of the shape satisfy, and these values.

    Norm, box, runs and columns are each stated exactly, loosely, or not at all.
    """
    scale = 10.0 ** rng.integers(-3, 4)
    values = [rng.normal(size=shape) * scale for _ in range(3)]
    stack = np.stack(values)
    if rng.random() < 0.3:
        stack = np.abs(stack)
    compressed = tuple(1 + axis for axis in range(len(shape)) if rng.random() < 0.5)
    box = Interval(
        np.min(stack, axis=(0, *compressed), keepdims=True)[0],
        np.max(stack, axis=(0, *compressed), keepdims=True)[0],
    )
    norms = [float(np.max(np.linalg.norm(stack.reshape(3, -1), axis=1)))]
    norms += [
        float(np.max(np.linalg.norm(stack, axis=axis))) if len(shape) >= -axis else math.inf
        for axis in (-1, -2)
    ]
    kept = [value * (1 + 1e-12) if rng.random() < 0.5 else math.inf for value in norms]
    known = box if rng.random() < 0.6 or kept[0] == math.inf else None
    return Fact.of(shape, kept[0], known, kept[1], kept[2]), list(stack)
