"""A live module against the graph exported from it: equal, other weights, another function."""

import copy
from functools import cache

import numpy as np
import pytest
import torch
from torch import nn

from lipcert.errors import NoVerdictError
from lipcert.measure.agreement import ROUNDED, output_distance
from lipcert.measure.lowering import LoweredNetwork
from tests.models.shipped import NAMES, graph_of, module

CPU = torch.device("cpu")
SMALL = "digits_cnn"


@cache
def network(name, dtype=torch.float32):
    return LoweredNetwork.of(graph_of(name), dtype, CPU)


def compared(live, name=SMALL, dtype=torch.float32):
    shape = network(name).graph.input_shape
    x = torch.tensor(np.random.default_rng(1).uniform(size=(4, *shape)), dtype=torch.float32)
    return output_distance(network(name, dtype), live, x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", NAMES)
def test_shipped(name, dtype):
    assert compared(module(name, torch.float32), name, dtype) < 1e-7


class Changed(nn.Module):
    """Another function; it writes to a buffer, too, and draws a random number."""

    def __init__(self, live, change):
        super().__init__()
        self.module = live
        self.change = change
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        self.calls += 1
        return self.change(self.module(x)) + 0.0 * torch.rand(())


@pytest.mark.parametrize(
    "change",
    [
        lambda z: z * 1.00001,
        lambda z: z + 1e-3,
        lambda z: z.roll(1, 1),
        lambda z: z.roll(1, 0),
        lambda z: z - z.mean(0),
        lambda z: z * float("nan"),
        nn.functional.dropout,
    ],
)
def test_another_function(change):
    assert not compared(Changed(module(SMALL, torch.float32), change)) <= ROUNDED


def test_the_module_is_left_alone():
    live = Changed(module(SMALL, torch.float32), lambda z: z).train()
    before, state = copy.deepcopy(live.state_dict()), torch.random.get_rng_state()
    assert compared(live) < 1e-7
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(item, before[name]) for name, item in live.state_dict().items())
    assert live.training
    assert next(live.parameters()).dtype is torch.float32


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda z: (z, z), "cannot be evaluated on a batch"),
        (lambda z: z[:, :3], r"does not return one tensor of shape \(4, 10\)"),
        (lambda z: z.reshape(7, 7), "cannot be evaluated on a batch"),
    ],
)
def test_no_logits(change, message):
    with pytest.raises(NoVerdictError, match=message):
        compared(Changed(module(SMALL, torch.float32), change))
