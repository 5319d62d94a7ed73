"""Tensors that an exporter stored once, or several times: which of them are one parameter."""

import copy

import numpy as np
import pytest
from onnx import helper

from lipcert.analysis.bounded import bounded
from lipcert.importer.load import load_model
from lipcert.settings.settings import Settings
from tests.importer.models import model, saved, weights

node = helper.make_node


def exported(module, example, path):
    """Written by the TorchScript exporter of torch."""
    torch = pytest.importorskip("torch")
    torch.onnx.export(
        module.eval(),
        torch.zeros(example),
        path,
        dynamo=False,
        opset_version=17,
        input_names=["x"],
        output_names=["y"],
        dynamic_axes={"x": {0: "N"}},
    )
    return load_model(path)


def shapes(imported):
    return {name: item.shape for name, item in imported.graph.parameters.items()}


def state(module):
    return {name: tuple(item.shape) for name, item in module.named_parameters()}


pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")


def test_two_norms_with_default_weights(tmp_path):
    nn = pytest.importorskip("torch").nn
    net = nn.Sequential(
        nn.Linear(4, 4), nn.LayerNorm(4), nn.ReLU(), nn.LayerNorm(4), nn.Linear(4, 2)
    )
    imported = exported(net, (2, 4), tmp_path / "m.onnx")
    assert shapes(imported) == state(net)
    assert [item.code for item in imported.diagnostics] == ["LC024"]
    assert "'3.weight'" in imported.diagnostics[0].message


def test_copied_layers_stay_tied(tmp_path):
    """A scripted module writes one weight with two names like this: tying is the safe side."""
    nn = pytest.importorskip("torch").nn
    layer = nn.Linear(4, 4)
    net = nn.Sequential(layer, nn.ReLU(), copy.deepcopy(layer))
    imported = exported(net, (2, 4), tmp_path / "m.onnx")
    assert list(shapes(imported)) == ["0.weight", "0.bias"]


def test_one_parameter_with_two_names_stays_one(tmp_path):
    nn = pytest.importorskip("torch").nn
    layer, norm = nn.Linear(4, 4), nn.LayerNorm(4)
    net = nn.Sequential(layer, norm, layer, norm)
    imported = exported(net, (2, 4), tmp_path / "m.onnx")
    assert shapes(imported) == state(net)
    assert imported.diagnostics == ()


def test_group_norms_with_default_weights_stay_tied_under_made_up_names(tmp_path):
    """The exporter reshapes their weights: the copies may come from one layer used twice."""
    nn = pytest.importorskip("torch").nn
    norm = nn.GroupNorm(2, 4)
    for second in (norm, nn.GroupNorm(2, 4)):
        net = nn.Sequential(nn.Conv2d(1, 4, 3), norm, nn.ReLU(), second)
        imported = exported(net, (2, 1, 6, 6), tmp_path / "m.onnx")
        assert len(shapes(imported)) == 4
        assert [item.code for item in imported.diagnostics] == ["LC023"]


def two_uses(first, second, producer="pytorch", array=None):
    nodes = f'h = MatMul(x, "{first}")  y = MatMul(h, "{second}")'
    array = weights(4, 4) if array is None else array
    proto = model(nodes, ("N", 4), dict.fromkeys(dict.fromkeys([first, second]), array))
    proto.producer_name = producer
    return proto


@pytest.mark.parametrize("producer", ["pytorch", ""])
def test_made_up_copies_of_equal_numbers_are_tied(tmp_path, producer):
    proto = two_uses("onnx::MatMul_7", "onnx::MatMul_9", producer)
    assert list(load_model(saved(proto, tmp_path)).graph.parameters) == ["onnx::MatMul_7"]


@pytest.mark.parametrize("turned", [True, False])
@pytest.mark.parametrize("name", ["w", "onnx::MatMul_9"])
def test_a_made_up_copy_is_tied_to_the_matrix_that_it_transposes(tmp_path, name, turned):
    """As of an autoencoder with tied weights: the gradient has a share of both uses."""
    own = weights(4, 4)
    nodes = f'h = MatMul(x, "onnx::MatMul_7")  y = MatMul(h, "{name}")'
    proto = model(nodes, ("N", 4), {"onnx::MatMul_7": own.T if turned else own, name: own})
    proto.producer_name = "pytorch"
    imported = load_model(saved(proto, tmp_path), trusted=True)
    (parameter,) = imported.graph.parameters
    assert parameter == ("onnx::MatMul_7" if name != "w" else "w")
    assert imported.scattered == {parameter}
    found = bounded(imported, Settings(input_norm=1.0, loss="mse", label_norm=0.0))
    assert set(found.tensors[parameter]) == {"onnx::MatMul_7", name}
    total = sum(found.derived.gradients[tensor] for tensor in ("onnx::MatMul_7", name))
    assert found.grad_norms[parameter] >= total


def test_named_tensors_of_equal_numbers_are_not_tied(tmp_path):
    proto = two_uses("a.weight", "b.weight")
    imported = load_model(saved(proto, tmp_path))
    assert list(imported.graph.parameters) == ["a.weight", "b.weight"]
    assert imported.diagnostics == ()


@pytest.mark.parametrize(
    ("name", "producer", "array", "count"),
    [
        ("b.weight", "pytorch", np.ones((4, 4), np.float32), 2),
        ("b.weight", "pytorch", weights(4, 4), 1),
        ("b.weight", "other", np.ones((4, 4), np.float32), 1),
        ("val_3", "pytorch", np.ones((4, 4), np.float32), 1),
    ],
)
def test_identity_of_a_parameter(tmp_path, name, producer, array, count):
    proto = two_uses("a.weight", "a.weight", producer, array)
    proto.graph.node.insert(0, node("Identity", ["a.weight"], [name]))
    proto.graph.node[2].input[1] = name
    imported = load_model(saved(proto, tmp_path))
    assert len(imported.graph.parameters) == count
    assert ("LC024" in {item.code for item in imported.diagnostics}) == (count == 2)
    np.testing.assert_array_equal(
        *[operand.array for item in imported.graph.nodes for operand in item.operands.values()]
    )
