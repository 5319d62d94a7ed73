"""Whole networks in torch: values, parameters, taps, memory, refusals."""

import gc
import weakref
from dataclasses import replace

import numpy as np
import onnxruntime
import pytest
import torch

from lipcert.core import program
from lipcert.errors import LipCertError, NoVerdictError, UnsupportedModelError
from lipcert.graph.ir import Operand, parameters_of
from lipcert.importer.load import load_model
from lipcert.measure.lowering import LoweredNetwork
from tests.models.shipped import NAMES, graph_of, path_of
from tests.networks import chain, dag, trained
from tests.ops import Activation, Dense, Sort, evaluate
from tests.zoo import ZOO, needs_zoo, rows

CPU = torch.device("cpu")
RNG = np.random.default_rng(5)


def batch(graph, examples=3):
    return RNG.uniform(0.0, 1.0, (examples, *graph.input_shape))


def lowered64(graph, weights=None):
    return LoweredNetwork.of(graph, torch.float64, CPU, weights)


def relative_error(found, expected):
    return np.max(np.abs(found - expected)) / np.max(np.abs(expected))


@pytest.mark.parametrize("name", NAMES)
def test_shipped_as_onnxruntime_runs_them(name):
    graph = graph_of(name)
    x = batch(graph).astype(np.float32)
    session = onnxruntime.InferenceSession(path_of(name), providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, {session.get_inputs()[0].name: x})
    network = LoweredNetwork.of(graph, torch.float32, CPU)
    assert relative_error(network.forward(torch.tensor(x)).numpy(), expected) < 2e-5


@needs_zoo
def test_files_of_others():
    """Every third of them, so that this stays quick."""
    tried = 0
    for row in rows("net", 2_000_000)[::3]:
        try:
            graph = load_model(ZOO / row["path"], trusted=True).graph
        except LipCertError:  # what the importer refuses is its own business
            continue
        x = batch(graph, examples=2)
        found = lowered64(graph).forward(torch.tensor(x)).numpy()
        assert relative_error(found, evaluate(graph, x)[graph.output_name]) < 1e-10, row["path"]
        tried += 1
    assert tried > 10


def test_parameters_exist_once():
    graph = graph_of("digits_cnn")
    network = lowered64(graph)
    for node in graph.nodes:
        operands = network.operands(node)
        assert list(operands) == list(node.operands)
        for slot, operand in node.operands.items():
            np.testing.assert_array_equal(operands[slot].numpy(), operand.array)
            if operand.parameter is not None:
                parameter = network.parameters[operand.parameter]
                own = operands[slot].untyped_storage().data_ptr()
                assert own == parameter.untyped_storage().data_ptr()
    assert not any(parameter.requires_grad for parameter in network.parameters.values())


PLACES = {
    "transposed": np.arange(12).reshape(3, 4).T,
    "sliced": np.arange(12).reshape(3, 4)[1:, ::2],
    "repeated": np.broadcast_to(np.arange(12).reshape(3, 4)[:, :1], (3, 5)),
    "flipped": np.arange(12).reshape(3, 4)[::-1],
    "no grid but for its first steps": np.array([[0, 1], [2, 5]]),
    "gathered": np.array([[3, 1], [0, 0], [11, 7]]),
    "padded": np.pad(np.arange(12).reshape(3, 4), 1, constant_values=-1),
    "only padding": np.full((2, 2), -1),
    "one": np.array([[5]]),
}


@pytest.mark.parametrize("scale", [1.0, -0.3])
@pytest.mark.parametrize("places", PLACES.values(), ids=PLACES)
def test_views(places, scale):
    def model(theta):
        view = np.where(places >= 0, theta.reshape(-1)[places], 0.0)
        places32 = places.astype(np.int32)
        weight = Operand(scale * view, "w", places=places32, scale=scale)
        whole = Operand(np.ones((2, places.shape[0])), None)
        graph = chain((places.shape[1],), Dense(weight), Dense(whole))
        parameters = {"w": replace(graph.parameters["w"], shape=theta.shape)}
        return replace(graph, parameters=parameters)

    theta, other = RNG.standard_normal((2, 3, 4))
    graph, x = model(theta), RNG.standard_normal((2, places.shape[1]))
    recovered = parameters_of(graph)["w"]
    read = np.unique(places[places >= 0])
    np.testing.assert_allclose(recovered.reshape(-1)[read], theta.reshape(-1)[read], rtol=1e-15)
    unread = np.setdiff1d(np.arange(12), read)
    assert not recovered.reshape(-1)[unread].any()
    found = lowered64(graph, {"w": other}).forward(torch.tensor(x)).numpy()
    expected = evaluate(model(other), x)[graph.output_name]
    np.testing.assert_allclose(found, expected, rtol=1e-13, atol=1e-15)


def test_operands_that_are_no_view():
    graph = chain((2,), Dense(trained("w", np.eye(2))), Dense(trained("w", 2.0 * np.eye(2))))
    with pytest.raises(NoVerdictError, match=r"not a view of the parameter 'w'"):
        lowered64(graph)


def weighted():
    return chain(
        (3,), Dense(trained("w", np.ones((2, 3))), trained("b", np.zeros(2))), Activation("relu")
    )


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"w": np.ones((2, 3)), "b": np.ones(2), "v": np.ones(1)}, "no parameter 'v'"),
        ({"w": np.ones((2, 3))}, "no numbers for the trained parameter 'b'"),
        ({"w": np.ones((3, 2)), "b": np.ones(2)}, r"'w' has shape \(3, 2\).* \(2, 3\)"),
        ({"w": np.ones((2, 3)), "b": np.array([0.0, np.nan])}, "'b' holds NaN"),
    ],
)
def test_weights_of_another_model(weights, message):
    with pytest.raises(NoVerdictError, match=message):
        lowered64(weighted(), weights)


def test_frozen_parameters_may_be_left_out():
    graph = weighted()
    frozen = replace(graph.parameters["b"], trainable=False)
    graph = replace(graph, parameters={**graph.parameters, "b": frozen})
    network = lowered64(graph, {"w": 2.0 * np.ones((2, 3))})
    assert network.forward(torch.ones(1, 3, dtype=torch.float64)).tolist() == [[6.0, 6.0]]


@pytest.mark.nightly
def test_values_are_let_go():
    """A value lives until its last reader ran; the output stays."""
    ops = [Activation("relu"), Activation("relu"), Activation("relu")]
    steps = [("a", ops[0], ("x",)), ("unused", ops[1], ("a",)), ("b", ops[2], ("a",))]
    graph = dag((4,), [*steps, ("c", Activation("relu"), ("b",)), ("d", Sort(0), ("c",))])
    alive = {}

    def tap(node, inputs, output):
        gc.collect()
        seen[node.output] = sorted(name for name, ref in alive.items() if ref() is not None)
        alive[node.output] = weakref.ref(output)
        return output

    seen = {}
    with torch.no_grad():
        lowered64(graph).forward(torch.ones(1, 4, dtype=torch.float64), tap)
    assert seen == {"a": [], "unused": ["a"], "b": ["a"], "c": ["b"], "d": ["c"]}


def test_what_a_tap_returns_is_used():
    network = lowered64(weighted())
    leaves = []

    def tap(node, inputs, output):
        leaves.append(output.detach().requires_grad_())
        return leaves[-1]

    output = network.forward(torch.ones(2, 3, dtype=torch.float64), tap)
    assert output is leaves[-1]
    output.sum().backward()
    assert leaves[0].grad is None
    doubled = network.forward(
        torch.ones(1, 3, dtype=torch.float64),
        lambda node, _, output: 2.0 * output if isinstance(node.op, program.Dense) else output,
    )
    assert doubled.tolist() == [[6.0, 6.0]]


def test_batch_of_another_shape():
    for shape in ((), (2,), (2, 4), (2, 3, 1)):
        with pytest.raises(NoVerdictError, match="does not fit the input 'x'"):
            lowered64(weighted()).forward(torch.zeros(shape, dtype=torch.float64))


def test_every_unknown_op_is_named():
    cube = Activation("cube")
    graph = dag((2,), [("a", cube, ("x",)), ("b", Activation("relu"), ("a",)), ("c", cube, ("b",))])
    with pytest.raises(UnsupportedModelError) as caught:
        lowered64(graph)
    assert [(r.node, r.op) for r in caught.value.refusals] == [
        ("a_node", "Cube"),
        ("c_node", "Cube"),
    ]
    assert "cube has no implementation in torch" in str(caught.value)
