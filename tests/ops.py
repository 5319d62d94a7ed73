# ruff: noqa: N802  (makers are called as the steps that they make)
"""Nodes as tests write them: for one example, without the axis of the batch.

Each maker returns a function from the shapes of the inputs, per example, to the node.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from weakref import WeakKeyDictionary

import numpy as np

from lipcert.core import kinds, token_kinds, window_kinds
from lipcert.core import program as p
from lipcert.graph.evaluate import batch_output
from lipcert.graph.ir import Graph, Node, Operand

Shape = tuple[int, ...]
Maker = Callable[..., Node]
_WRITTEN: WeakKeyDictionary[Operand, Shape] = WeakKeyDictionary()


def node(op: p.Op, given: Sequence[Shape], shape: Shape, **operands: Operand | None) -> Node:
    """A node without names; shapes are those per example."""
    names = tuple(f"x{number}" for number in range(len(given)))
    step = p.Step(op, names, "y", (1, *shape), 0)
    held = {role: operand for role, operand in operands.items() if operand is not None}
    return Node("node", step, tuple((1, *each) for each in given), held)


def named(item: Node, inputs: Sequence[str], output: str) -> Node:
    step = replace(item.step, inputs=tuple(inputs), output=output)
    return replace(item, name=f"{output}_node", step=step)


def evaluated(item: Node, *x: np.ndarray) -> np.ndarray:
    """The numbers of a node for arrays [examples, *shape], by the core's meaning of its step."""
    wide = [np.reshape(a, (len(a), *shape)) for a, shape in zip(x, item.given, strict=True)]
    found = batch_output(item.step, wide).reshape(len(x[0]), *item.shape)
    both = isinstance(item.op, token_kinds.Scale) and "bias" in item.operands
    return found + item.operands["bias"].array if both else found


def evaluate(graph: Graph, x: np.ndarray) -> dict[str, np.ndarray]:
    """Every value of a graph for a batch [examples, *input_shape]."""
    values = {graph.input_name: x}
    for item in graph.nodes:
        values[item.output] = evaluated(item, *(values[name] for name in item.inputs))
    return values


def exact(operand: Operand | None) -> p.Operand | None:
    return None if operand is None else p.Operand(operand.array, operand.array)


def placed(operand: Operand, shape: Shape) -> Operand:
    """As a program has it that broadcasts into values of this shape per example."""
    wide = (1,) * (len(shape) + 1 - operand.array.ndim) + operand.shape
    places = None if operand.places is None else operand.places.reshape(wide)
    found = replace(operand, array=operand.array.reshape(wide), places=places)
    _WRITTEN[found] = operand.shape
    return found


def written_shape(operand: Operand) -> Shape:
    """As the test wrote it."""
    return _WRITTEN.get(operand, operand.shape)


def window(geometry) -> window_kinds.Window:
    return window_kinds.Window(
        tuple(each.taps for each in geometry),
        tuple(each.stride for each in geometry),
        tuple(each.dilation for each in geometry),
        tuple(each.pad_begin for each in geometry),
        tuple(each.outputs for each in geometry),
    )


def Dense(weight: Operand, bias: Operand | None = None) -> Maker:
    op = p.Dense(exact(weight), exact(bias))
    return lambda x: node(op, [x], (*x[:-1], weight.shape[0]), weight=weight, bias=bias)


def Embedding(table: Operand) -> Maker:
    op = kinds.Embedding(exact(table))
    return lambda x: node(op, [x], (*x, table.shape[1]), weight=table)


def Conv(weight: Operand, bias: Operand | None, geometry, groups: int = 1) -> Maker:
    op = window_kinds.Conv(exact(weight), exact(bias), window(geometry), groups, False)
    shape = (weight.shape[0], *(each.outputs for each in geometry))
    return lambda x: node(op, [x], shape, weight=weight, bias=bias)


def ConvTranspose(weight: Operand, bias: Operand | None, geometry, groups: int = 1) -> Maker:
    op = window_kinds.Conv(exact(weight), exact(bias), window(geometry), groups, True)
    shape = (weight.shape[1] * groups, *(each.size for each in geometry))
    return lambda x: node(op, [x], shape, weight=weight, bias=bias)


def Scale(scale: Operand, bias: Operand | None = None) -> Maker:
    def of(x: Shape) -> Node:
        factor = placed(scale, x)
        term = None if bias is None else placed(bias, x)
        return node(token_kinds.Scale(exact(factor)), [x], x, scale=factor, bias=term)

    return of


def Divide(divisor: Operand) -> Maker:
    def of(x: Shape) -> Node:
        own = placed(divisor, x)
        factor = 1.0 / own.array
        return node(token_kinds.Scale(p.Operand(factor, factor)), [x], x, divisor=own)

    return of


def Shift(bias: Operand) -> Maker:
    def of(x: Shape) -> Node:
        own = placed(bias, x)
        return node(token_kinds.Shift(exact(own)), [x], x, bias=own)

    return of


def PRelu(slope: Operand) -> Maker:
    def of(x: Shape) -> Node:
        own = placed(slope, x)
        return node(kinds.PRelu(exact(own)), [x], x, slope=own)

    return of


def entrywise(op: p.Op) -> Maker:
    return lambda x: node(op, [x], x)


def Compare(limits: np.ndarray, above: bool) -> Maker:
    return entrywise(kinds.Compare(limits, above))


def MaskedMean(axes: Sequence[int], floor: float) -> Maker:
    axes = behind(axes)

    def of(x: Shape, mask: Shape) -> Node:
        after = tuple(1 if axis + 1 in axes else n for axis, n in enumerate(x))
        return node(kinds.MaskedMean(axes, floor), [x, mask], after)

    return of


def Activation(name: str, numbers: tuple[float, ...] = ()) -> Maker:
    return entrywise(p.Activation(name, numbers))


def InputClip(radius: float) -> Maker:
    return entrywise(kinds.InputClip(radius))


def CotangentClip(radius: float, by_channel: bool = False) -> Maker:
    return entrywise(kinds.CotangentClip(radius, by_channel))


def Lrn(size: int, strength: float, power: float, floor: float) -> Maker:
    return entrywise(kinds.LocalResponse(size, strength, power, floor))


def Sort(axis: int) -> Maker:
    return entrywise(kinds.Sort(axis + 1))


def behind(axes: Sequence[int]) -> Shape:
    return tuple(axis + 1 for axis in axes)


def Normalize(axes: Sequence[int], epsilon: float, centred: bool) -> Maker:
    return entrywise(token_kinds.Normalize(behind(axes), epsilon, centred))


def Centre(axes: Sequence[int]) -> Maker:
    return entrywise(kinds.Centre(behind(axes)))


def DivideByNorm(
    axes: Sequence[int], radius: float, floor: float, order: float = math.inf
) -> Maker:
    share, least = (p.Operand(item, item) for item in (np.array([1.0 / radius]), np.array([floor])))
    return entrywise(kinds.DivideByNorm(behind(axes), share, least, order))


def Softmax(axis: int = -1) -> Maker:
    return lambda x: node(token_kinds.Softmax(axis % len(x) + 1, False), [x], x)


def LogSoftmax(axis: int = -1) -> Maker:
    return lambda x: node(token_kinds.Softmax(axis % len(x) + 1, True), [x], x)


def BatchNorm(
    mean: np.ndarray,
    inverse: np.ndarray,
    scale: Operand,
    bias: Operand,
    variance: np.ndarray | None = None,
) -> Maker:
    op = kinds.BatchNorm(exact(scale), exact(bias), exact(Operand(mean)), exact(Operand(inverse)))
    held = None if variance is None else Operand(variance)
    return lambda x: node(op, [x], x, scale=scale, bias=bias, mean=Operand(mean), variance=held)


def Move(shape: Shape, sources: np.ndarray) -> Maker:
    wide = np.asarray(sources, np.int64)[None]
    return lambda *_: node(p.Move(wide), [shape], wide.shape[1:])


def MaxPool(geometry) -> Maker:
    return _pool(window_kinds.MaxPool(window(geometry)), geometry)


def AveragePool(geometry, counts_padding: bool = True) -> Maker:
    return _pool(window_kinds.AveragePool(window(geometry), counts_padding), geometry)


def LpPool(geometry, order: int = 2) -> Maker:
    return _pool(window_kinds.LpPool(window(geometry), order), geometry)


def _pool(op: p.Op, geometry) -> Maker:
    return lambda x: node(op, [x], (x[0], *(each.outputs for each in geometry)))


def _reduced(op: p.Op) -> Maker:
    def of(x: Shape) -> Node:
        kept = (1 if axis + 1 in op.axes else size for axis, size in enumerate(x))
        return node(op, [x], tuple(kept))

    return of


def ReduceSum(axes: Sequence[int]) -> Maker:
    return _reduced(token_kinds.ReduceSum(behind(axes), False))


def ReduceMean(axes: Sequence[int]) -> Maker:
    return _reduced(token_kinds.ReduceSum(behind(axes), True))


def ReduceMax(axes: Sequence[int], minimum: bool) -> Maker:
    return _reduced(kinds.ReduceMax(behind(axes), minimum))


def ReduceNorm(order: int, axes: Sequence[int], floor: float = 0.0) -> Maker:
    return _reduced(kinds.ReduceNorm(behind(axes), order, floor))


def ReduceLogSumExp(axes: Sequence[int]) -> Maker:
    return _reduced(kinds.ReduceLogSumExp(behind(axes)))


def _broadcast(op: p.Op) -> Maker:
    return lambda *x: node(op, x, np.broadcast_shapes(*x))


def Add(signs: Sequence[int] = (1, 1)) -> Maker:
    return _broadcast(token_kinds.Add(tuple(signs)))


def Multiply() -> Maker:
    return _broadcast(token_kinds.Multiply())


def Quotient() -> Maker:
    return _broadcast(kinds.Divide())


def Concat(axis: int) -> Maker:
    def of(*x: Shape) -> Node:
        length = sum(each[axis] for each in x)
        return node(kinds.Concat(axis + 1), x, (*x[0][:axis], length, *x[0][axis + 1 :]))

    return of


def MatMul() -> Maker:
    def of(a: Shape, b: Shape) -> Node:
        return node(
            token_kinds.MatMul(), [a, b], (*np.broadcast_shapes(a[:-2], b[:-2]), a[-2], b[-1])
        )

    return of


def Attention(scale: float, mask: np.ndarray | None = None) -> Maker:
    numbers = None if mask is None else np.array(mask, np.float64)
    op = token_kinds.Attention(scale, None if numbers is None else p.Operand(numbers, numbers))
    return lambda q, k, v: node(op, [q, k, v], (*q[:-1], v[-1]))


def moved(function: Callable[[np.ndarray], np.ndarray]) -> Maker:
    """The move that does to a value what a function does to indices of its entries."""

    def of(shape: Shape) -> Node:
        own = np.arange(math.prod(shape)).reshape(shape)
        return Move(shape, np.asarray(function(own)).copy())()

    return of
