"""Cotangents and parameter gradients of random networks are those of torch's autograd."""

import numpy as np
import pytest
import torch

from lipcert.analysis.witness.backprop import Backprop
from lipcert.analysis.witness.operand_squares import operand_squares
from lipcert.analysis.witness.uses import plain_slots
from lipcert.ir import evaluate
from lipcert.norms.geometry import Window
from lipcert.operand import Operand
from lipcert.ops import functions
from lipcert.ops.activation import Activation, PRelu
from lipcert.ops.affine import Scale, Shift
from lipcert.ops.combine import Add, Concat
from lipcert.ops.conv import Conv, ConvTranspose
from lipcert.ops.normalization import BatchNorm
from lipcert.ops.pooling import AveragePool, MaxPool
from lipcert.ops.reduction import ReduceMean
from lipcert.ops.shape import Expand, Pad, PadMode, Reshape, Select, Tile, Transpose
from lipcert.ops.softmax import LogSoftmax, Softmax
from lipcert.ops.sorting import Sort
from tests.mirror import parameters, run
from tests.networks import chain, dag, trained
from tests.random_networks import random_case

RNG = np.random.default_rng(5)
IMAGE = (4, 6, 5)


def normal(*shape):
    return RNG.standard_normal(shape)


def conv(kind, weight, groups=1):
    geometry = (Window(6, 3, stride=2, pad_begin=1), Window(5, 2, dilation=2, pad_end=1))
    shape = (4, 3, 4) if kind is ConvTranspose else IMAGE
    channels = weight.shape[1] * groups if kind is ConvTranspose else len(weight)
    op = kind(trained("k", weight), trained("b", normal(channels)), geometry, groups)
    return chain(shape, op, Activation(functions.Tanh()))


GRAPHS = [
    conv(Conv, normal(6, 4, 3, 2)),
    conv(Conv, normal(6, 2, 3, 2), groups=2),
    conv(ConvTranspose, normal(4, 3, 3, 2)),
    conv(ConvTranspose, normal(4, 3, 3, 2), groups=2),
    chain(IMAGE, MaxPool((Window(6, 3, stride=2, pad_begin=1), Window(5, 2)))),
    chain(IMAGE, AveragePool((Window(6, 2, stride=2), Window(5, 2)), ((2, 2, 2), (2, 2, 2, 2)))),
    chain(IMAGE, ReduceMean((1, 2))),
    chain(IMAGE, Transpose((2, 0, 1)), Sort(1), Reshape((120,)), Select(0, (3, 3, 7, 119))),
    chain(IMAGE, Pad((0, 1, 2), (0, 2, 0), PadMode.REFLECT), Sort(2, descending=True)),
    chain(
        IMAGE,
        Pad((0, 1, 2), (0, 2, 0), PadMode.CONSTANT, 3.0),
        Scale(trained("s", normal(4, 1, 1))),
    ),
    chain((4, 1, 5), Expand(IMAGE), Tile((1, 2, 1)), Shift(trained("t", normal(4, 12, 1)))),
    chain(IMAGE, LogSoftmax(1)),
    chain((4,), Scale(trained("s", normal(4))), LogSoftmax(-1)),
    chain(IMAGE, PRelu(Operand(normal(4, 1, 1)))),
    chain(
        IMAGE,
        BatchNorm(
            Operand(normal(4)),
            Operand(normal(4) ** 2),
            1e-3,
            trained("gamma", normal(4)),
            trained("beta", normal(4)),
        ),
        Activation(functions.Gelu()),
    ),
    dag(
        IMAGE,
        [
            ("a", Activation(functions.Sigmoid()), ("x",)),
            ("m", ReduceMean((1,), keepdims=True), ("x",)),
            ("s", Add((1.0, -2.0)), ("a", "m")),
            ("c", Concat(1), ("s", "x")),
        ],
    ),
]


def check(graph, views, seed):
    backprop = Backprop.of(graph)
    if backprop is None:
        return False
    rng = np.random.default_rng(seed)
    batch = rng.standard_normal((3, *graph.input_shape))
    seeds = rng.standard_normal((3, *graph.output_shape))
    values = evaluate(graph, batch)
    found = backprop.cotangents(backprop.at(values), {graph.output_name: seeds})
    theta = parameters(graph, views)
    for i in range(3):
        x = torch.tensor(batch[i], requires_grad=True)
        leaves = {name: value.clone().requires_grad_() for name, value in theta.items()}
        out = run(graph, x, leaves, views)[graph.output_name]
        (out * torch.tensor(seeds[i])).sum().backward()
        expected = np.zeros(x.shape) if x.grad is None else x.grad.numpy()
        assert found[graph.input_name][i] == pytest.approx(expected, rel=1e-9, abs=1e-9)
        for node in graph.nodes:
            if node.output not in found:
                continue
            squares = operand_squares(node.op, values[node.inputs[0]], found[node.output])
            for slot in plain_slots(graph)[node.name] & squares.keys():
                gradient = leaves[node.op.operands()[slot].parameter].grad
                assert squares[slot][i] == pytest.approx(float(gradient.square().sum()), rel=1e-9)
    return True


@pytest.mark.parametrize("graph", GRAPHS, ids=lambda graph: graph.nodes[0].op.kind)
def test_common_ops(graph):
    assert check(graph, {}, 0)


def test_random_networks():
    cases = [random_case(seed, 4) for seed in range(60)]
    assert sum(check(case.graph, case.views, seed) for seed, case in enumerate(cases)) >= 15


@pytest.mark.parametrize("op", [Softmax(0), Activation(functions.Relu())])
def test_ops_with_other_jacobians_are_not_guessed(op):
    assert (Backprop.of(chain((6,), op)) is None) == isinstance(op, Softmax)


def test_the_slope_at_a_kink_is_the_least():
    graph = chain((3,), Activation(functions.Relu()))
    backprop = Backprop.of(graph)
    values = evaluate(graph, np.array([[-1.0, 0.0, 1.0]]))
    found = backprop.cotangents(backprop.at(values), {graph.output_name: np.ones((1, 3))})
    assert found["x"].tolist() == [[0.0, 0.0, 1.0]]
