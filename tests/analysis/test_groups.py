"""Grouping of trained parameters."""

import math
from dataclasses import replace

import numpy as np
import pytest

from lipcert.analysis.release import first_uses, group_parameters
from lipcert.graph.ir import Graph, Parameter
from tests.networks import chain, trained
from tests.ops import Dense


def network(frozen: frozenset[str] = frozenset()) -> Graph:
    """conv1.{weight, bias}, then a weight without prefix, then conv1.weight again."""
    shared = trained("conv1.weight", np.eye(2))
    graph = chain(
        (2,),
        Dense(shared, trained("conv1.bias", np.zeros(2))),
        Dense(trained("plain", np.eye(2)), trained("naked", np.zeros(2))),
        Dense(shared, None),
    )
    parameters = {
        name: Parameter(name, parameter.shape, trainable=name not in frozen)
        for name, parameter in graph.parameters.items()
    }
    parameters["conv2.unused"] = Parameter("conv2.unused", (3,))
    return Graph("x", (2,), graph.output_name, graph.nodes, parameters)


BOUNDS = {"conv1.weight": 3.0, "conv1.bias": 4.0, "plain": 1.0, "naked": 2.0, "conv2.unused": 0.0}


def test_layers_collect_what_shares_a_prefix_or_a_node() -> None:
    groups = group_parameters(network(), BOUNDS, per_layer=True)
    members = {group.name: [*group.parameters] for group in groups}
    assert members == {
        "conv1": ["conv1.weight", "conv1.bias"],
        "v1_node": ["plain", "naked"],
        "conv2": ["conv2.unused"],
    }
    assert [group.grad_norm for group in groups] == pytest.approx([5.0, math.sqrt(5.0), 0.0])
    assert [group.dimension for group in groups] == [6, 6, 3]


@pytest.mark.parametrize("per_layer", [True, False])
@pytest.mark.parametrize("frozen", [frozenset(), frozenset({"conv1.bias", "plain"})])
def test_every_trained_parameter_is_in_exactly_one_group(
    per_layer: bool, frozen: frozenset[str]
) -> None:
    groups = group_parameters(network(frozen), BOUNDS, per_layer)
    grouped = [name for group in groups for name in group.parameters]
    assert sorted(grouped) == sorted(set(BOUNDS) - frozen)
    assert len({group.name for group in groups}) == len(groups)
    if not per_layer:
        assert grouped == [group.name for group in groups]


def test_the_joint_norm_is_that_of_all_gradients_side_by_side() -> None:
    gradients = np.random.default_rng(0).standard_normal((4, 5))
    norms = dict(zip(BOUNDS, (float(np.linalg.norm(row)) for row in gradients), strict=False))
    groups = group_parameters(network(), {**BOUNDS, **norms}, per_layer=True)
    assert groups[0].grad_norm == pytest.approx(np.linalg.norm(gradients[:2]))
    assert groups[1].grad_norm == pytest.approx(np.linalg.norm(gradients[2:]))


def test_one_absent_bound_makes_the_group_unbounded() -> None:
    absent = {**BOUNDS, "conv1.bias": math.inf}
    groups = group_parameters(network(), absent, per_layer=True)
    assert [math.isfinite(group.grad_norm) for group in groups] == [False, True, True]


def test_parameters_stand_at_their_first_use() -> None:
    uses = first_uses(network())
    assert uses["conv1.weight"] == "v0_node"
    assert uses["conv2.unused"] == ""


def test_a_made_up_name_belongs_to_the_layer_of_its_node() -> None:
    """Beside a bias with a name; else where the node has the path of a module for a name."""
    graph = chain(
        (2,),
        Dense(trained("onnx::MatMul_7", np.eye(2)), trained("blocks.0.fc.bias", np.zeros(2))),
        Dense(trained("onnx::MatMul_8", np.eye(2)), None),
        Dense(trained("onnx::MatMul_9", np.eye(2)), None),
        Dense(trained("onnx::Mul_10", np.eye(2)), trained("onnx::Add_11", np.zeros(2))),
    )
    names = ["MatMul_1", "/blocks/blocks.0/fc/MatMul", "/MatMul", "/norm/Add"]
    nodes = [replace(node, name=name) for node, name in zip(graph.nodes, names, strict=True)]
    graph = replace(graph, nodes=tuple(nodes))
    bounds = dict.fromkeys(graph.parameters, 1.0)
    groups = group_parameters(graph, bounds, per_layer=True)
    assert {group.name: [*group.parameters] for group in groups} == {
        "blocks.0.fc": ["onnx::MatMul_7", "blocks.0.fc.bias", "onnx::MatMul_8"],
        "/MatMul": ["onnx::MatMul_9"],
        "norm": ["onnx::Mul_10", "onnx::Add_11"],
    }
