"""The live network: shared where it can be, up to date always."""

import numpy as np
import pytest
import torch

from lipcert.errors import NoVerdictError
from lipcert.training.clipping.gradients import LiveNetwork
from tests.networks import trained
from tests.training.clipping import oracle
from tests.training.clipping.test_gradients import TIED, mlp


def outputs(live: LiveNetwork, x: torch.Tensor) -> torch.Tensor:
    return live.present().forward(x)


def test_plain_tensors_are_shared() -> None:
    graph = mlp()
    tensors = oracle.tensors_of(graph)
    network = LiveNetwork.of(graph, tensors).present()
    for name, tensor in tensors.items():
        assert network.parameters[name].data_ptr() == tensor.data_ptr()
    (weight,) = [network.operands(node)["weight"] for node in graph.nodes[:1]]
    assert weight.data_ptr() == tensors["u"].data_ptr()


def test_updates_in_place_are_followed() -> None:
    """Also where the live tensor is a transposed, or an offset, view; and by scaled operands."""
    for graph in (mlp(), *TIED.values()):
        start = oracle.tensors_of(graph)
        x, _ = oracle.batch(graph, 3)
        layouts = {
            "plain": {name: item.clone() for name, item in start.items()},
            "transposed": {
                name: item.T.contiguous().T if item.dim() == 2 else item.clone()
                for name, item in start.items()
            },
            "offset": {
                name: torch.cat([torch.zeros(3).double(), item.reshape(-1)])[3:].view(item.shape)
                for name, item in start.items()
            },
        }
        for tensors in layouts.values():
            live = LiveNetwork.of(graph, tensors)
            before = outputs(live, x)
            with torch.no_grad():
                for item in tensors.values():
                    item.mul_(1.5).add_(0.1)
            fresh = LiveNetwork.of(graph, {name: item.clone() for name, item in tensors.items()})
            after = outputs(live, x)
            assert torch.equal(after, outputs(fresh, x))
            assert not torch.allclose(before, after)
            assert live.present().graph is graph


def test_parameters_that_are_not_given_are_those_of_the_file() -> None:
    graph = mlp()
    frozen = {**graph.parameters, "u": type(graph.parameters["u"])("u", (7, 5), trainable=False)}
    graph = type(graph)("x", (5,), graph.output_name, graph.nodes, frozen)
    tensors = oracle.tensors_of(graph)
    x, _ = oracle.batch(graph, 2)
    whole = outputs(LiveNetwork.of(graph, tensors), x)
    del tensors["u"]
    assert torch.equal(outputs(LiveNetwork.of(graph, tensors), x), whole)


def test_other_types_are_refused_by_name() -> None:
    graph = mlp()
    tensors = oracle.tensors_of(graph)
    mixed = {**tensors, "v": tensors["v"].float()}
    for given in (mixed, {name: item.bfloat16() for name, item in tensors.items()}):
        with pytest.raises(NoVerdictError, match=r"is torch\..*one of float32 and float64"):
            LiveNetwork.of(graph, given)


def test_gathered_operands_are_copies_that_follow() -> None:
    graph = TIED["zeros"]
    tensors = oracle.tensors_of(graph)
    live = LiveNetwork.of(graph, tensors)
    node = graph.nodes[2]
    held = live.present().operands(node)["weight"]
    with torch.no_grad():
        tensors["w"].fill_(2.0)
    live.present()
    assert np.unique(held.numpy()).tolist() == [0.0, 2.0]
    assert trained("w", np.zeros(1)).places is None
