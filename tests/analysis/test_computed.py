"""Weights that the file computes: bounds of what they are computed from, attacked by autograd."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from onnx import helper

import lipcert
from lipcert.core.check import Choices, check
from lipcert.core.verdict import Verdict
from lipcert.errors import NoVerdictError
from tests.importer.models import model, saved, weights

node = helper.make_node
TENSORS = {
    "v": weights(6, 4), "g": weights(6, 1, seed=1), "b0": weights(6, seed=2),
    "w": weights(3, 6, seed=3), "down": weights(2, 6, seed=4), "up": weights(3, 2, seed=5),
}  # fmt: skip
NODES = [
    node("ReduceL2", ["v"], ["n"], axes=[1]),
    node("Div", ["v", "n"], ["unit"]),
    node("Mul", ["unit", "g"], ["first"]),
    node("Gemm", ["x", "first", "b0"], ["h"], transB=1),
    node("Relu", ["h"], ["r"]),
    node("MatMul", ["up", "down"], ["low"]),
    node("Add", ["w", "low"], ["second"]),
    node("Gemm", ["r", "second"], ["y"], transB=1),
]
STATED = lipcert.Settings(loss="cross-entropy", input_norm=1.0)


@pytest.fixture
def path(tmp_path):
    return saved(model(NODES, ("N", 4), TENSORS), tmp_path)


def network(x, v, g, b0, w, down, up):
    h = F.linear(x, g * v / v.norm(dim=1, keepdim=True), b0)
    return F.linear(F.relu(h), w + up @ down)


def test_no_gradient_is_larger_than_its_bound(path) -> None:
    found = lipcert.analyze(path, STATED)
    bounds = {item.name: item.grad_norm for item in found.parameters}
    assert bounds.keys() == TENSORS.keys()
    largest = dict.fromkeys(bounds, 0.0)
    for row in F.normalize(torch.randn(100, 4, generator=torch.manual_seed(0)), dim=1):
        given = [torch.from_numpy(item).requires_grad_() for item in TENSORS.values()]
        logits = network(row, *given)
        loss = F.cross_entropy(logits, logits.argmin())
        for name, item in zip(TENSORS, torch.autograd.grad(loss, given), strict=True):
            largest[name] = max(largest[name], float(item.norm()))
    for name, bound in bounds.items():
        assert largest[name] <= bound <= 30 * largest[name], name
    assert [item.code for item in found.diagnostics if item.code in {"LC009", "LC411"}] == ["LC411"]


def test_they_are_certified(path) -> None:
    certificate = path.with_suffix(".json")
    issued = lipcert.certify(path, STATED, out=certificate)
    report = check(certificate.read_bytes(), path, Choices())
    assert report.verdict is not Verdict.INVALID
    assert {item.tensor for item in issued.certificate.parameters} == TENSORS.keys()


def test_weights_that_are_free_within_constraints_have_none(path) -> None:
    held = lipcert.Settings(
        loss="cross-entropy", input_norm=1.0, constraint="spectral:1", scope="constraint-set"
    )
    found = lipcert.analyze(path, held)
    lost = {item.name for item in found.parameters if item.grad_norm is None}
    assert lost >= {"v", "g", "up", "down"}
    assert found.network.grad_norm is None


def test_a_constraint_on_w_is_none_on_1_plus_w(tmp_path) -> None:
    nodes = [node("Add", ["w", "one"], ["s"]), node("Mul", ["x", "s"], ["h"])]
    nodes.append(node("MatMul", ["h", "v"], ["y"]))
    nodes.insert(0, node("Constant", [], ["one"], value_float=1.0))
    tensors = {"w": weights(4), "v": weights(4, 3, seed=1)}
    held = lipcert.Settings(
        input_norm=1.0, constraint="spectral:1", bias_norm=1.0, scope="constraint-set"
    )
    found = lipcert.analyze(saved(model(nodes, ("N", 4), tensors), tmp_path), held)
    (told,) = [item.message for item in found.diagnostics if item.code == "LC101"]
    assert "'w' is trained but no constraint bounds what is computed from it" in told


@pytest.mark.parametrize(("copy", "lost"), [("b", "b"), ("onnx::MatMul_7", "a")])
def test_what_a_copy_holds_has_no_bound(tmp_path, copy, lost) -> None:
    """Of numbers that the exporter stored once, or twice, no operand shows whose they are."""
    tensors = {"a": np.full((4, 4), 0.5, "<f4")}
    nodes = [node("Exp", ["a"], ["e"]), node("MatMul", ["x", "e"], ["h"])]
    nodes += [node("Exp", [copy], ["f"]), node("MatMul", ["h", "f"], ["y"])]
    if copy == "b":
        nodes.insert(0, node("Identity", ["a"], ["b"]))
    else:
        tensors[copy] = tensors["a"]
    proto = model(nodes, ("N", 4), tensors)
    proto.producer_name = "pytorch"
    found = lipcert.analyze(saved(proto, tmp_path), STATED)
    assert [item.name for item in found.parameters if item.grad_norm is None] == [lost]


def test_their_gradients_are_not_measured(path) -> None:
    with pytest.raises(
        NoVerdictError, match=r"LC319.*'down', 'g', 'up', 'v'.*requires_grad_\(False\)"
    ):
        lipcert.audit(path, STATED, attack_steps=2)


def test_equal_numbers_of_a_scale_and_a_variance_are_one_tensor(tmp_path) -> None:
    """As exporters store those of a layer that was never trained."""
    names = ["bn.weight", "bn.bias", "bn.running_mean", "bn.running_var"]
    tensors = {names[0]: np.ones(4, np.float32), names[1]: np.zeros(4, np.float32)}
    nodes = [
        node("Identity", names[:1], names[3:]),
        node("Identity", names[1:2], names[2:3]),
        node("BatchNormalization", ["x", *names], ["h"]),
        node("MatMul", ["h", "w"], ["y"]),
    ]
    tensors |= {"w": weights(4, 3)}
    found = lipcert.analyze(saved(model(nodes, ("N", 4), tensors), tmp_path), STATED)
    assert all(item.grad_norm is not None for item in found.parameters)
