"""Steps of every kind with inputs of them, in the words of `tests.core.rules.evaluate`."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lipcert.core import kinds, token_kinds
from lipcert.graph.geometry import Window
from lipcert.graph.ir import Node, Operand
from tests import ops
from tests.core.rules import evaluate
from tests.networks import padded, reshaped, transposed
from tests.ops import Maker, Shape, moved

Box = tuple[float, float]
Function = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Case:
    """A node, the shapes of its inputs per example, and the range of their entries."""

    name: str
    op: Maker
    inputs: tuple[Shape, ...]
    box: Box = (-2.0, 2.0)
    function: Function | None = None
    """in torch, where the tests of the core have no words for it"""

    @property
    def node(self) -> Node:
        return self.op(*self.inputs)

    def of_one(self, xs: list[Tensor]) -> Tensor:
        """The step for one example, in plain torch."""
        node = self.node
        if self.function is not None:
            return self.function(xs[0])
        more = (1,) * isinstance(node.op, kinds.LocalResponse)  # torch asks for places
        wide = [x.reshape(*shape, *more) for x, shape in zip(xs, node.given, strict=True)]
        tensors = {item: torch.tensor(item.lo) for item in evaluate.operands_of(node.op)}
        found = evaluate.apply(node.op, wide, node.step.shape, tensors).reshape(1, *node.shape)
        is_affine = isinstance(node.op, token_kinds.Scale) and "bias" in node.operands
        return found + torch.tensor(node.operands["bias"].array) if is_affine else found


RNG = np.random.default_rng(11)


def numbers(*shape: int) -> Operand:
    return Operand(RNG.normal(size=shape), "numbers")


def conv(channels: tuple[int, int], geometry: tuple[Window, ...], groups: int = 1) -> Maker:
    inputs, outputs = channels
    kernel = numbers(outputs, inputs // groups, *(window.taps for window in geometry))
    return ops.Conv(kernel, numbers(outputs) if groups == 1 else None, geometry, groups)


def conv_transpose(
    channels: tuple[int, int], geometry: tuple[Window, ...], groups: int = 1
) -> Maker:
    inputs, outputs = channels
    kernel = numbers(inputs, outputs // groups, *(window.taps for window in geometry))
    return ops.ConvTranspose(kernel, numbers(outputs) if groups == 1 else None, geometry, groups)


def batch_norm(channels: int) -> Maker:
    mean, inverse = RNG.normal(size=channels), 1.0 / np.sqrt(RNG.random(channels) + 0.1)
    return ops.BatchNorm(mean, inverse, numbers(channels), numbers(channels))


SAME = (Window(5, 3, pad_begin=1, pad_end=1),) * 2
PATCHES = (Window(6, 2, 2),) * 2
LOPSIDED = (Window(6, 3, 2, 1, 0, 2), Window(5, 2, 1, 3, 2, 0))
OVERLAPPING = (Window(4, 3, 1, 1, 1, 1),) * 2
LINE = (Window(7, 3, 2, 1, 1, 0),)
VOLUME = (Window(3, 2), Window(4, 2, 2), Window(3, 3))
CAUSAL = np.where(np.tri(3) > 0, 0.0, -np.inf)
HEADS = ((2, 3, 4), (2, 4, 3), (2, 3, 4))

ANYWHERE: list[tuple[Maker, *tuple[Shape, ...]]] = [
    (ops.Dense(numbers(5, 7), numbers(5)), (7,)),
    (ops.Dense(numbers(1, 6)), (6,)),
    (ops.Dense(Operand(np.zeros((3, 1))), numbers(3)), (2, 3, 1)),
    (ops.Embedding(Operand(np.arange(12.0).reshape(4, 3))), (5,)),
    (conv((2, 3), SAME), (2, 5, 5)),
    (conv((2, 2), LOPSIDED), (2, 6, 5)),
    (conv((2, 4), SAME, groups=2), (2, 5, 5)),
    (conv((2, 3), (Window(9, 4, 2, 1, 1, 2),)), (2, 9)),
    (conv((1, 2), VOLUME), (1, 3, 4, 3)),
    (conv_transpose((2, 3), (Window(8, 4, 2, 1, 1, 1),) * 2), (2, 4, 4)),
    (conv_transpose((2, 2), LOPSIDED), (2, 3, 4)),
    (conv_transpose((4, 6), PATCHES, groups=2), (4, 3, 3)),
    (conv_transpose((2, 1), (Window(11, 2, 4),)), (2, 3)),
    (conv_transpose((1, 2), VOLUME), (1, 2, 2, 1)),
    (ops.Scale(numbers(3, 1, 1)), (3, 2, 4)),
    (ops.Scale(numbers(), numbers(3)), (2, 3)),
    (ops.Scale(Operand(np.zeros((3, 1))), numbers(2)), (3, 2)),
    (ops.Divide(Operand(np.array([[-0.5], [2.0], [0.75]]))), (3, 4)),
    (ops.Shift(numbers(3, 1, 1)), (3, 4, 2)),
    (batch_norm(3), (3,)),
    (batch_norm(2), (2, 3, 2)),
    (ops.PRelu(Operand(np.array([0.25]))), (3, 2, 2)),
    (ops.PRelu(Operand(np.array([[[0.25]], [[-1.75]], [[0.0]]]))), (3, 2, 2)),
    *((ops.Normalize(axes, 0.05, centred=True), (2, 3, 4)) for axes in [(2,), (1, 2), (0, 2)]),
    *((ops.Normalize((axis,), 0.05, centred=False), (5, 2)) for axis in (0, 1)),
    *((ops.Centre(axes), (2, 3, 2)) for axes in [(1,), (0, 2)]),
    *((ops.Softmax(axis), (3, 2)) for axis in (0, -1)),
    *((ops.LogSoftmax(axis), (3, 2)) for axis in (0, -1)),
    *((ops.Sort(axis), (2, 4, 3)) for axis in (0, 1)),
    *((kind((1, 2)), (3, 2, 4)) for kind in (ops.ReduceSum, ops.ReduceMean, ops.ReduceLogSumExp)),
    (ops.ReduceMax((1,), minimum=False), (3, 4)),
    (ops.ReduceMax((0, 2), minimum=True), (3, 2, 4)),
    *((ops.ReduceNorm(order, axes), (3, 2)) for order in (1, 2) for axes in [(0,), (0, 1)]),
    (ops.ReduceNorm(2, (1,), floor=0.5), (3, 2)),
    (ops.DivideByNorm((0, 2), 0.7, 1.0), (2, 3, 2)),
    (ops.DivideByNorm((1,), 3.0, 0.5, 1.0), (3, 4)),
    (ops.DivideByNorm((1,), 3.0, 0.5, 2.0), (3, 4)),
    *((ops.Lrn(size, 0.7, 0.75, 1.5), (5, 2, 3)) for size in (1, 3, 9)),
    (ops.Lrn(3, 0.7, 0.75, 1.5), (4,)),
    *((ops.AveragePool(OVERLAPPING, counts), (1, 4, 4)) for counts in (False, True)),
    *((kind(OVERLAPPING), (1, 4, 4)) for kind in (ops.MaxPool, ops.LpPool)),
    *((kind(LINE), (3, 7)) for kind in (ops.AveragePool, ops.MaxPool, ops.LpPool)),
    *((kind(VOLUME), (1, 3, 4, 3)) for kind in (ops.AveragePool, ops.MaxPool, ops.LpPool)),
    (ops.LpPool(OVERLAPPING, 1), (2, 4, 4)),
    *((ops.InputClip(radius), (2, 3)) for radius in (0.5, 50.0)),
    *((ops.CotangentClip(0.7, by_channel), (2, 3)) for by_channel in (False, True)),
    *((ops.Compare(np.array([[0.0, 1.0, -1.0]]), above), (2, 3)) for above in (False, True)),
    (ops.MaskedMean((0,), 0.5), (4, 3), (4, 1)),
    (ops.Add((-1,)), (3,)),
    (ops.Add((-1, 1, 1)), (2, 3), (3,), (1, 3)),
    (ops.Concat(1), (2, 1, 2), (2, 3, 2), (2, 2, 2)),
    (ops.Multiply(), (3, 2, 2), (3, 1, 1)),
    (ops.Multiply(), (3, 1), (4,)),
    (ops.MatMul(), (2, 3), (3, 4)),
    (ops.MatMul(), (3, 2), (2, 2, 4)),
    (ops.MatMul(), (2, 1, 2, 2), (1, 3, 2, 2)),
    (ops.Attention(-2.0), (3, 2), (2, 3), (3, 2)),
    (ops.Attention(0.5, CAUSAL), *HEADS),
    (ops.Attention(0.4, np.zeros((3, 4))), (2, 3, 5), (2, 5, 4), (2, 4, 6)),
    (ops.Attention(0.3, np.array([0.5, -0.25, -np.inf])), (4, 2), (2, 3), (3, 2)),
    (reshaped(3, 4), (2, 6)),
    (reshaped(), (1, 1)),
    (transposed(2, 0, 1), (2, 3, 4)),
    (moved(lambda own: own.transpose(1, 0, 2).reshape(3, 8)), (2, 3, 4)),
    (moved(lambda own: own[1:3, ::2]), (4, 5)),
    (moved(lambda own: own[2, 3]), (4, 5)),
    (moved(lambda own: own[:, ::-1]), (4, 5)),
    (moved(lambda own: own[[2, 0, 3]][:, [4, 0, 1]]), (4, 5)),
    (moved(lambda own: own.ravel()[[3, 3, 17, 0, 9, 11, 2]]), (4, 5)),
    (moved(lambda own: np.tile(own, (2, 3))), (3, 2)),
    (moved(np.diagonal), (3, 3)),
    *((padded((0, 2, 1), (0, 1, 0), mode), (2, 3, 4)) for mode in ("constant", "reflect", "wrap")),
    (moved(lambda own: np.stack([own, np.full(3, -1)], 1)), (3,)),
    (moved(lambda own: np.full(2, -1)), (2,)),
    (ops.Move((4, 2), np.zeros((0, 2), dtype=int)), (4, 2)),
]
POSITIVE: list[tuple[Maker, *tuple[Shape, ...]]] = [
    (ops.Quotient(), (2, 3), (2, 3)),
    (ops.Quotient(), (3,), (2, 1)),
    *((ops.Activation(*key), (2, 3)) for key in evaluate.ACTIVATIONS),
]

FUNCTIONS: dict[tuple[str, tuple[float, ...]], Function] = {
    ("leaky_relu", (-2.0,)): lambda x: torch.where(x > 0, x, -2.0 * x),
    ("clip", (0.5, math.inf)): lambda x: torch.clamp(x, min=0.5),
    ("clip", (-math.inf, 0.5)): lambda x: torch.clamp(x, max=0.5),
    ("hard_sigmoid", (-3.0, 0.2)): lambda x: torch.clamp(0.2 - 3 * x, 0, 1),
    ("elu", (-1.5,)): lambda x: torch.where(x > 0, x, -1.5 * torch.expm1(x)),
    ("selu", (-2.0, -0.7)): lambda x: -0.7 * torch.where(x > 0, x, -2.0 * torch.expm1(x)),
    ("gelu_tanh", (0.9, 0.1)): lambda x: 0.5 * x * (1.0 + torch.tanh(0.9 * (x + 0.1 * x**3))),
    ("quick_gelu", (-0.8,)): lambda x: x / (1.0 + torch.exp(0.8 * x)),
    ("celu", (0.7,)): lambda x: torch.where(x > 0, x, 0.7 * torch.expm1(x / 0.7)),
    ("exp", ()): torch.exp,
    ("power", (0.0,)): torch.ones_like,
}
ON_ONE_SIDE: dict[tuple[str, tuple[float, ...]], tuple[Function, Box]] = {
    ("power", (-0.5,)): (lambda x: 1.0 / torch.sqrt(x), (0.25, 1.5)),
    ("reciprocal", ()): (lambda x: 1.0 / x, (-2.0, -0.125)),
    ("power", (-2.0,)): (lambda x: 1.0 / (x * x), (-2.0, -0.125)),
}
EVERYWHERE = [
    key
    for key in evaluate.ACTIVATIONS
    if key not in FUNCTIONS and key[0] not in evaluate.ON_POSITIVE and key != ("power", (1.5,))
]

CASES = [
    *(Case(f"step {i}", op, shapes) for i, (op, *shapes) in enumerate(ANYWHERE)),
    *(Case(f"positive {i}", op, shapes, (0.25, 1.5)) for i, (op, *shapes) in enumerate(POSITIVE)),
    *(Case(f"{key}", ops.Activation(*key), ((2, 3),), (-4.0, 4.0)) for key in EVERYWHERE),
    *(
        Case(f"{key}", ops.Activation(*key), ((2, 3),), (-4.0, 4.0), own)
        for key, own in FUNCTIONS.items()
    ),
    *(
        Case(f"{key}", ops.Activation(*key), ((2, 3),), box, own)
        for key, (own, box) in ON_ONE_SIDE.items()
    ),
]
