"""Random steps of every kind and random facts of what they read, with members to attack them."""

import math
from dataclasses import dataclass

import numpy as np

from lipcert.core import kinds, program, token_kinds, window_kinds
from lipcert.core.interval import Interval
from lipcert.core.program import Activation, Dense, FloatArray, Move, Op, Operand, Shape
from lipcert.core.rules.base import Weights, rule_class
from lipcert.core.rules.facts import Cotangent, Fact
from lipcert.core.window_kinds import AveragePool, Conv, LpPool, MaxPool, Window
from tests.core.rules.attack import distances, grouped
from tests.core.rules.evaluate import ACTIVATIONS, ON_POSITIVE, places_of

POINT = Weights({})
STEPS: tuple[type[Op], ...] = tuple(
    kind
    for kind in {**vars(program), **vars(kinds), **vars(window_kinds), **vars(token_kinds)}.values()
    if isinstance(kind, type) and issubclass(kind, Op) and kind is not Op and kind.is_final
)
"""every kind of step that a program may have"""
Rng = np.random.Generator


@dataclass(frozen=True)
class Case:
    """An op between shapes. positive, masks: the inputs that have to be that; masks are 0 or 1."""

    op: Op
    shapes: tuple[Shape, ...]
    shape: Shape
    positive: tuple[int, ...] = ()
    masks: tuple[int, ...] = ()


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


def _embedding(rng: Rng) -> Case:
    """Numbers that are not whole choose the row before them: every number may choose any."""
    shape, (rows, width) = _shape(rng), (int(k) for k in rng.integers(1, 5, size=2))
    return Case(kinds.Embedding(operand(rng, rows, width)), (shape,), (*shape, width))


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
    return Case(token_kinds.Scale(operand(rng, *_part(rng, shape))), (shape,), shape)


def _shift(rng: Rng) -> Case:
    shape = _shape(rng)
    return Case(token_kinds.Shift(operand(rng, *_part(rng, shape))), (shape,), shape)


def _batch_norm(rng: Rng) -> Case:
    shape = _shape(rng, 2)
    four = [operand(rng, shape[1], name=name) for name in ("scale", "shift", "mean", "inverse")]
    return Case(kinds.BatchNorm(*four), (shape,), shape)


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
    return Case(token_kinds.ReduceSum(axes, bool(rng.integers(2))), (before,), after)


def _add(rng: Rng) -> Case:
    shape = _shape(rng)
    shapes = (shape, *(_part(rng, shape) for _ in range(rng.integers(1, 3))))
    signs = tuple(int(s) for s in rng.choice([-1, 1], size=len(shapes)))
    return Case(token_kinds.Add(signs), shapes, shape)


def _concat(rng: Rng) -> Case:
    shape, count = _shape(rng), int(rng.integers(1, 4))
    axis = int(rng.integers(len(shape)))
    lengths = [int(n) for n in rng.integers(1, 4, size=count)]
    shapes = tuple((*shape[:axis], n, *shape[axis + 1 :]) for n in lengths)
    return Case(kinds.Concat(axis), shapes, (*shape[:axis], sum(lengths), *shape[axis + 1 :]))


def _centre(rng: Rng) -> Case:
    shape = tuple(int(rng.integers(1, 5)) for _ in range(int(rng.integers(1, 4))))
    axes = tuple(axis for axis in range(len(shape)) if rng.random() < 0.5) or (len(shape) - 1,)
    return Case(kinds.Centre(axes), (shape,), shape)


def _axes(rng: Rng, before: Shape) -> tuple[tuple[int, ...], Shape]:
    axes = tuple(axis for axis in range(len(before)) if rng.random() < 0.6) or (0,)
    return axes, tuple(1 if axis in axes else n for axis, n in enumerate(before))


def _activation(rng: Rng) -> Case:
    keys = list(ACTIVATIONS)
    key = keys[int(rng.integers(len(keys)))]
    shape = _shape(rng)
    positive = (0,) if key[0] in ON_POSITIVE or key[1] == (1.5,) else ()
    return Case(Activation(*key), (shape,), shape, positive)


def _prelu(rng: Rng) -> Case:
    shape = _shape(rng)
    return Case(kinds.PRelu(operand(rng, *_part(rng, shape), name="s")), (shape,), shape)


def _pool(rng: Rng, make) -> Case:
    while True:
        sizes = tuple(int(n) for n in rng.integers(1, 7, size=rng.integers(1, 3)))
        w, channels = window(rng, sizes), int(rng.integers(1, 3))
        if all(places_of(w, sizes)):
            return Case(make(w), ((1, channels, *sizes),), (1, channels, *w.outputs))


def _reduce_max(rng: Rng) -> Case:
    before = _shape(rng)
    axes, after = _axes(rng, before)
    return Case(kinds.ReduceMax(axes, bool(rng.integers(2))), (before,), after)


def _reduce_norm(rng: Rng) -> Case:
    before = _shape(rng)
    axes, after = _axes(rng, before)
    op = kinds.ReduceNorm(axes, int(rng.integers(1, 3)), float(rng.choice([0.0, 0.5])))
    return Case(op, (before,), after)


def _log_sum_exp(rng: Rng) -> Case:
    before = _shape(rng)
    axes, after = _axes(rng, before)
    return Case(kinds.ReduceLogSumExp(axes), (before,), after)


def _response(rng: Rng) -> Case:
    shape = (1, *(int(n) for n in rng.integers(1, 5, size=2)))
    numbers = (rng.choice([0.0, 3.0]), rng.choice([0.0, 0.5, 2.5]), rng.choice([0.3, 2.0]))
    op = kinds.LocalResponse(int(rng.choice([1, 3, 5])), *map(float, numbers))
    return Case(op, (shape,), shape)


def _sort(rng: Rng) -> Case:
    shape = _shape(rng)
    return Case(kinds.Sort(int(rng.integers(len(shape)))), (shape,), shape)


def _pair(rng: Rng) -> tuple[Shape, Shape, Shape]:
    shape = _shape(rng)
    first = tuple(n if rng.random() < 0.7 else 1 for n in shape)
    second = tuple(n if rng.random() < 0.7 else 1 for n in shape)
    second = second[int(rng.integers(2)) if second[0] == 1 and len(second) > 1 else 0 :]
    return first, second, np.broadcast_shapes(first, second)


def _multiply(rng: Rng) -> Case:
    first, second, shape = _pair(rng)
    return Case(token_kinds.Multiply(), (first, second), shape)


def _divide(rng: Rng) -> Case:
    first, second, shape = _pair(rng)
    return Case(kinds.Divide(), (first, second), shape, (1,))


def _matmul(rng: Rng) -> Case:
    n, k, m = (int(count) for count in rng.integers(1, 4, size=3))
    a, b, batch = _pair(rng) if rng.random() < 0.7 else ((), (), ())
    return Case(token_kinds.MatMul(), ((*a, n, k), (*b, k, m)), (*batch, n, m))


def _softmax(rng: Rng) -> Case:
    shape = _shape(rng)
    op = token_kinds.Softmax(int(rng.integers(len(shape))), bool(rng.integers(2)))
    return Case(op, (shape,), shape)


def _normalize(rng: Rng) -> Case:
    shape = _shape(rng)
    axes, _ = _axes(rng, shape)
    op = token_kinds.Normalize(axes, float(rng.choice([1e-2, 1.0])), bool(rng.integers(2)))
    return Case(op, (shape,), shape)


def number(value: float, rank: int) -> Operand:
    """One exact number that no initializer holds."""
    array = np.full((1,) * rank, value)
    return Operand(array, array)


def _divide_by_norm(rng: Rng) -> Case:
    shape = _shape(rng)
    axes, _ = _axes(rng, shape)
    share = number(float(rng.choice([0.3, 1.0, 20.0])), len(shape))
    floor = number(float(rng.choice([0.0, 0.05, 1.0])), len(shape))
    order = float(rng.choice([1.0, 2.0, math.inf]))
    return Case(kinds.DivideByNorm(axes, share, floor, order), (shape,), shape)


def _attention(rng: Rng) -> Case:
    n, m, d, e = (int(count) for count in rng.integers(1, 4, size=4))
    heads = tuple(int(k) for k in rng.integers(1, 5, size=rng.integers(0, 2)))
    mask = np.zeros((n, m))
    mask[rng.random((n, m)) < 0.3] = -math.inf
    mask[:, int(rng.integers(m))] = float(rng.normal())
    known = Operand(mask, mask, {"m": 1.0}) if rng.random() < 0.5 else None
    shapes: tuple[Shape, ...] = ((*heads, n, d), (*heads, d, m), (*heads, m, e))
    masks = (3,) if (n * m + d + e) % 4 == 0 else ()
    shapes += tuple((*(1 for _ in heads), 1 if d > 1 else n, m) for _ in masks)
    op = token_kinds.Attention(float(rng.choice([-0.7, 0.5, 2.0])), known)
    return Case(op, shapes, (*heads, n, e), masks=masks)


def _compare(rng: Rng) -> Case:
    shape = _shape(rng)
    limits = np.asarray(rng.integers(-2, 3, size=shape), np.float64)
    return Case(kinds.Compare(limits, bool(rng.integers(2))), (shape,), shape)


def _masked_mean(rng: Rng) -> Case:
    """The mask the same for whole runs, or not; of 0 and 1, or of numbers above 0."""
    shape = _shape(rng, 2)
    axes, after = _axes(rng, shape)
    mask = tuple(int(rng.choice([1, length])) for length in shape)
    op = kinds.MaskedMean(axes, float(rng.choice([-math.inf, 1e-9, 1.0, 2.5])))
    is_mask = op.floor > 0.0 and rng.random() < 0.5
    return Case(op, (shape, mask), after, () if is_mask else (1,), (1,) if is_mask else ())


def _input_clip(rng: Rng) -> Case:
    shape = _shape(rng)
    return Case(kinds.InputClip(10.0 ** rng.uniform(-3.0, 4.0)), (shape,), shape)


def _cotangent_clip(rng: Rng) -> Case:
    shape = _shape(rng, 2)
    return Case(kinds.CotangentClip(1e9, bool(rng.integers(2))), (shape,), shape)


KINDS = {
    "Activation": _activation,
    "Add": _add,
    "Attention": _attention,
    "AveragePool": _average,
    "BatchNorm": _batch_norm,
    "Centre": _centre,
    "Compare": _compare,
    "Concat": _concat,
    "Conv": _conv,
    "CotangentClip": _cotangent_clip,
    "Dense": _dense,
    "Divide": _divide,
    "DivideByNorm": _divide_by_norm,
    "Embedding": _embedding,
    "InputClip": _input_clip,
    "LocalResponse": _response,
    "LpPool": lambda rng: _pool(rng, lambda w: LpPool(w, int(rng.integers(1, 3)))),
    "MaskedMean": _masked_mean,
    "MatMul": _matmul,
    "MaxPool": lambda rng: _pool(rng, MaxPool),
    "Move": _move,
    "Multiply": _multiply,
    "Normalize": _normalize,
    "PRelu": _prelu,
    "ReduceLogSumExp": _log_sum_exp,
    "ReduceMax": _reduce_max,
    "ReduceNorm": _reduce_norm,
    "ReduceSum": _reduce,
    "Scale": _scale,
    "Shift": _shift,
    "Softmax": _softmax,
    "Sort": _sort,
}
"""by the name of the kind of step"""


def rule(op: Op, inputs, shapes, shape: Shape, weights: Weights = POINT, behind=None):
    """The rule of a step that computes "y"."""
    return rule_class(type(op))(
        op=op, inputs=inputs, shapes=shapes, shape=shape, weights=weights, output="y", behind=behind
    )


def output(op: Op, inputs, shapes, shape: Shape) -> Fact:
    """What is known behind a step."""
    return rule(op, inputs, shapes, shape).fact()


def fact_behind(op: Op, x: Fact, before: Shape, after: Shape, norms: dict[str, float]) -> Fact:
    """What is known behind a step with one input, and norms of linear steps by their output."""
    return rule(op, [x], [before], after, Weights(norms)).fact()


def stretch(op: Op, index: int, inputs, shapes, shape: Shape) -> float:
    """The Lipschitz constant in one of the inputs."""
    return rule(op, inputs, shapes, shape).lipschitz(index)


def shares(op: Op, x: Fact, before: Shape, after: Shape) -> dict[str, float]:
    """Gradient bounds of the initializers of a step, under a cotangent of norm 1."""
    return dict(rule(op, [x], [before], after).gradients(Cotangent(1.0)))


def behind_one(op: Op, x: Fact, before: Shape):
    """The rule of a step that computes an input from one value."""
    return rule(op, [x], [before], op.sources.shape if isinstance(op, Move) else before)


def exactly(array: object) -> Operand:
    """Numbers that no initializer holds."""
    numbers = np.asarray(array, dtype=np.float64)
    return Operand(numbers, numbers)


def ones(shape: Shape, name: str, gain: float = 1.0) -> Operand:
    """An initializer of ones."""
    array = np.ones(shape)
    return Operand(array, array, {name: gain})


def everywhere(low: float, high: float, rank: int) -> Interval:
    """One range for all entries."""
    return Interval(np.full((1,) * rank, low), np.full((1,) * rank, high))


def facts(rng: Rng, case: Case) -> tuple[list[Fact], list[list[FloatArray]]]:
    """A fact of each input, positive where it has to be, with values that satisfy it."""
    found, known = [], []
    for index, shape in enumerate(case.shapes):
        one, values = fact(rng, shape)
        if index in case.positive:
            values = [np.abs(value) + 0.3 for value in values]
            one = Fact.of(shape, box=Interval(np.min(values, axis=0), np.max(values, axis=0)))
        if index in case.masks:
            share = rng.random()
            values = [(rng.random(shape) < share).astype(np.float64) for _ in values]
            one = Fact.of(shape, box=everywhere(0.0, 1.0, len(shape)))
        found.append(one)
        known.append(values)
    return found, known


def fact(rng: Rng, shape: Shape) -> tuple[Fact, list[FloatArray]]:
    """Facts that three random values of the shape satisfy, and these values.

    Norm, box, runs and columns are each stated exactly, loosely, or not at all; the spreads where
    the first number has an even digit.
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
    spreads = [math.inf, math.inf]
    if stack.size and int(abs(stack.flat[0]) / scale * 1e6) % 2 == 0:
        groups = zip(*map(grouped, stack), strict=True)
        spreads = [max(distances(each)[1] for each in row) * (1 + 1e-12) for row in groups]
    return Fact.of(shape, kept[0], known, kept[1], kept[2], *spreads), list(stack)
