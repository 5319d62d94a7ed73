"""The graph of a program: values, gradients and norms are those of the program and of the file."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from lipcert.core.lower.lower import lower
from lipcert.core.reader.model import read_model
from lipcert.core.reader.records import Tensor
from lipcert.graph.evaluate import evaluate_batch
from lipcert.graph.ir import Parameter, parameters_of
from lipcert.importer.graph_of import graph_of
from lipcert.measure.gradient_norms.engine import NormEngine
from lipcert.measure.lowering import LoweredNetwork
from tests.importer.models import model, saved, weights

MODELS = sorted((Path(__file__).parents[2] / "models").glob("*.onnx"))


def reading(path, trained=None):
    """The program of a file, and its graph with all float initializers for parameters."""
    model = read_model(path)
    program = lower(model, model.outputs[-1])
    named = {
        name: Parameter(name, tensor.dims)
        for name, tensor in model.initializers.items()
        if tensor.dtype.startswith("float") and (trained is None or name in trained)
    }
    return model, program, graph_of(program, model, named)


def check(path, examples=3, trained=None):
    """Values by their names, in torch; the graph."""
    _, program, graph = reading(path, trained)
    draw = np.random.default_rng(0)
    x = draw.uniform(0.0, 1.0, (examples, *program.shapes[program.input]))
    expected = evaluate_batch(program, x)
    small = x.reshape(examples, *graph.input_shape)
    network = LoweredNetwork.of(graph, torch.float64, torch.device("cpu"))

    def tap(item, _, output):
        value, found = expected[item.output], output.numpy()
        np.testing.assert_allclose(
            found.reshape(value.shape), value, rtol=1e-10, atol=1e-12, err_msg=item.output
        )
        return output

    network.forward(torch.tensor(small), tap)
    return graph


def direction(graph, seed=1):
    """Of length about 1, so that few kinks lie on the way."""
    draw = np.random.default_rng(seed)
    size = sum(item.size for item in graph.parameters.values())
    return {
        name: draw.standard_normal(item.shape) / np.sqrt(size)
        for name, item in graph.parameters.items()
    }


def loss(outputs):
    """One number per example, with a slope everywhere."""
    flat = outputs.flatten(1)
    return (torch.sin(flat) * torch.linspace(1.0, 2.0, flat.shape[1], dtype=flat.dtype)).sum(1)


def check_gradients(path, examples=2, trained=None):
    """Gradients through the graph are slopes of the file; norms are those of the gradients."""
    model, program, graph = reading(path, trained)
    x = np.random.default_rng(2).uniform(0.1, 1.0, (examples, *graph.input_shape))
    theta = {
        name: torch.tensor(array, requires_grad=True)
        for name, array in parameters_of(graph).items()
    }
    like = torch.empty((), dtype=torch.float64)
    shown = {name: item for name, item in graph.parameters.items() if not item.folded}
    moved = direction(graph)
    lengths = {name: [] for name in shown}
    slopes = []
    for example in x:
        network = LoweredNetwork.sharing(graph, theta, like)
        value = loss(network.forward(torch.tensor(example[None])))[0]
        found = torch.autograd.grad(value, [theta[name] for name in shown], allow_unused=True)
        slopes.append(0.0)
        for name, gradient in zip(shown, found, strict=True):
            taken = torch.zeros(shown[name].shape) if gradient is None else gradient
            lengths[name].append(float(taken.norm()))
            slopes[-1] += float((torch.tensor(moved[name]) * taken).sum())
    engine = NormEngine(LoweredNetwork.of(graph, torch.float64, torch.device("cpu")))
    norms = engine.measure(torch.tensor(x), loss).parameters
    for name in shown:
        scale = 1e-9 * max(1.0, *lengths[name])
        np.testing.assert_allclose(norms[name].norm, lengths[name], rtol=1e-7, atol=scale)
    step = 1e-6
    ends = []
    for sign in (step, -step):
        numbers = {name: model.initializers[name].values() + sign * moved[name] for name in shown}
        tensors = {n: Tensor("float64", a.shape, a.tobytes()) for n, a in numbers.items()}
        other = replace(model, initializers={**model.initializers, **tensors})
        there = lower(other, program.output)
        full = x.reshape(examples, *program.shapes[program.input])
        ends.append(loss(torch.tensor(evaluate_batch(there, full)[program.output])).numpy())
    np.testing.assert_allclose((ends[0] - ends[1]) / (2 * step), slopes, rtol=1e-5, atol=1e-7)
    return graph


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_the_shipped_models(path):
    check(path)
    graph = check_gradients(path)
    assert not any(parameter.folded for parameter in graph.parameters.values())


def test_operands_are_views_of_their_parameters(tmp_path):
    """Transposed, scaled, repeated, and read twice; of numbers that do not tell them apart too."""
    tensors = {"w": weights(6, 6), "c": weights(6), "z": np.zeros((6, 6), np.float32)}
    tensors["one"] = np.zeros(1, np.float32)
    tensors["six"] = np.array([6], np.int64)
    nodes = """a = Gemm<alpha=0.5, beta=-0.25>(x, w, c)  b = MatMul(a, w)
        d = Gemm<transB=1>(b, w, c)  e = MatMul(d, z)  ones = Expand(one, six)  f = Sum(e, d, ones)
        minus = Neg(c)  y = Mul(f, minus)"""
    path = saved(model(nodes, ("N", 6), tensors), tmp_path)
    check(path)
    graph = check_gradients(path, examples=3)
    assert graph.parameters.keys() == {"w", "c", "z", "one"}
    assert not any(parameter.folded for parameter in graph.parameters.values())


def test_a_trained_divisor_stays_one(tmp_path):
    tensors = {"d": 1.0 + np.abs(weights(3, 1, 1))}
    path = saved(model("y = Div(x, d)", ("N", 3, 2, 2), tensors), tmp_path)
    check(path)
    graph = check_gradients(path)
    assert [item.kind for item in graph.nodes] == ["Div"]
    assert graph.parameters == {"d": Parameter("d", (3, 1, 1))}


def test_a_reciprocal_that_is_no_factor_is_computed(tmp_path):
    tensors = {"w": 1.0 + np.abs(weights(4, 5))}
    nodes = "v = Reciprocal(w)  y = Gemm<transB=1>(x, v)"
    graph = check(saved(model(nodes, ("N", 5), tensors), tmp_path))
    assert graph.parameters == {"w": Parameter("w", (4, 5), computed=True)}
    assert not list(graph.uses())


def test_what_a_weight_is_computed_from_is_no_view(tmp_path):
    tensors = {"v": weights(4, 5), "g": weights(4, 1)}
    nodes = """length = ReduceL2<axes=[1]>(v)  unit = Div(v, length)  w = Mul(unit, g)
        y = Gemm<transB=1>(x, w)"""
    graph = check(saved(model(nodes, ("N", 5), tensors), tmp_path))
    shapes = {name: array.shape for name, array in tensors.items()}
    assert graph.parameters == {
        n: Parameter(n, shape, computed=True) for n, shape in shapes.items()
    }


def test_steps_that_read_the_first_axis(tmp_path):
    """A file of one example at a time, in which nothing keeps the first axis apart."""
    tensors = {"w": weights(1, 3), "b": weights(3)}
    nodes = """x1 = Slice(x, zero, one, one, one)  a = Transpose<perm=[1, 0]>(x)
        b1 = MatMul(a, w)  c = Softmax<axis=0>(b1)
        d = ReduceSum<keepdims=1>(c)  e = Concat<axis=0>(d, d, x1)  y = Add(e, b)"""
    tensors |= {"zero": np.array([0], np.int64), "one": np.array([1], np.int64)}
    check(saved(model(nodes, (1, 4), tensors), tmp_path))


def test_several_images_of_one_example(tmp_path):
    tensors = {"shape": np.array([-1, 2, 6, 6], np.int64), "rows": np.array([-1, 54], np.int64)}
    tensors |= {name: weights(2) for name in ("s", "b", "m")}
    tensors |= {"v": np.abs(weights(2)) + 0.5}
    nodes = """a = Reshape(x, shape)  c = BatchNormalization(a, s, b, m, v)
        d = MaxPool<kernel_shape=[2, 2]>(c)
        e = AveragePool<kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2]>(d)
        f = LpPool<kernel_shape=[1, 2]>(e)  g = LRN<size=3>(f)  h = Mul(g, t)
        y = Reshape(h, last)"""
    tensors["t"] = weights(1, 2, 1, 1)
    tensors["last"] = np.array([-1, 3 * 2 * 3 * 2], np.int64)
    path = saved(model(nodes, ("N", 3, 2, 6, 6), tensors), tmp_path)
    check(path)
    trained = {"s", "b", "t"}
    graph = check_gradients(path, trained=trained)
    assert graph.parameters.keys() == trained
    (norm,) = (item for item in graph.nodes if item.kind == "BatchNormalization")
    np.testing.assert_array_equal(norm.operands["variance"].array, tensors["v"])
