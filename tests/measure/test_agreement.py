"""A live module computes what the graph that was exported from it does, lowered again to torch."""

import pytest
import torch

from lipcert.measure.lowering import LoweredNetwork
from tests.models.shipped import NAMES, graph_of, module


@pytest.mark.parametrize("name", NAMES)
def test_shipped(name):
    network = LoweredNetwork.of(graph_of(name), torch.float64, torch.device("cpu"))
    x = torch.rand(4, *network.graph.input_shape, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        found = network.forward(x.double())
        expected = module(name, torch.float32).double().eval()(x.double())
    assert (found - expected).norm(dim=1).max() < 1e-7 * expected.norm(dim=1).max()
