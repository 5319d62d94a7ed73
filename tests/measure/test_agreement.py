"""A live module against the graph exported from it: equal, other weights, another function."""

from __future__ import annotations

import copy
from functools import cache

import numpy as np
import pytest
import torch
from torch import nn

from lipcert.core.losses.softmax import CrossEntropy
from lipcert.errors import NoVerdictError
from lipcert.measure.agreement import agreement
from lipcert.measure.lowering import LoweredNetwork
from tests.models.shipped import NAMES, graph_of, module

CPU = torch.device("cpu")
LOSS = CrossEntropy()
SMALL = "digits_cnn"


@cache
def network(name, dtype=torch.float32):
    return LoweredNetwork.of(graph_of(name), dtype, CPU)


def batch(name, examples=4):
    shape = network(name).graph.input_shape
    rng = np.random.default_rng(1)
    x = torch.tensor(rng.uniform(0.0, 1.0, (examples, *shape)), dtype=torch.float32)
    classes = network(name).graph.output_shape[-1]
    return x, torch.tensor(rng.integers(0, classes, examples))


def compared(live, name=SMALL, dtype=torch.float32):
    return agreement(network(name, dtype), live, *batch(name), LOSS)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", NAMES)
def test_shipped(name, dtype):
    found = compared(module(name, torch.float32), name, dtype)
    assert found.holds
    assert found.reason == ""
    assert found.dtype is torch.float64
    assert found.logits < 1e-7
    assert (found.differing, found.unmatched, found.unknown) == ((), (), ())


def test_other_weights_are_named():
    live = module(SMALL, torch.float32)
    name, parameter = next(iter(live.named_parameters()))
    with torch.no_grad():
        parameter.view(-1)[0] += 1e-6
    found = compared(live)
    assert not found.holds
    assert found.differing == (name,)
    assert repr(name) in found.reason


class Changed(nn.Module):
    def __init__(self, live, change):
        super().__init__()
        self.module = live
        self.change = change

    def forward(self, x):
        return self.change(self.module(x))


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
    found = compared(Changed(module(SMALL, torch.float32), change))
    assert not found.holds
    assert found.differing == found.unmatched == ()  # the wrapper's prefix does not count
    assert "is not this module" in found.reason


def test_a_wrapper_alone_changes_nothing():
    assert compared(Changed(module(SMALL, torch.float32), lambda z: z)).holds


class Stubborn(nn.Module):
    """Works in float32 only."""

    def __init__(self, live, factor=1.0):
        super().__init__()
        self.module = live
        self.factor = factor

    def forward(self, x):
        if x.dtype is not torch.float32:
            raise RuntimeError("expected scalar type Float")
        return self.module(x) * self.factor


def test_modules_of_one_dtype():
    found = compared(Stubborn(module(SMALL, torch.float32)))
    assert found.holds
    assert found.dtype is torch.float32
    assert found.allowed < 1e-4
    assert not compared(Stubborn(module(SMALL, torch.float32), 1.001)).holds


def test_names_on_one_side_only():
    live = Changed(module(SMALL, torch.float32), lambda z: z)
    live.other = live.module  # other names for the same tensors; only the first are looked at
    live.extra = nn.Linear(2, 2)
    found = compared(live)
    assert found.holds
    assert {"extra.weight", "extra.bias"} <= set(found.unknown)
    renamed = nn.Sequential(module(SMALL, torch.float32))
    found = compared(renamed)
    assert found.holds
    assert set(found.unmatched) == set(network(SMALL).parameters)


@pytest.mark.parametrize(
    ("part", "why"),
    [
        (nn.Dropout(0.1), "Dropout in training mode"),
        (nn.BatchNorm1d(10), "BatchNorm1d with batch statistics"),
        (nn.RReLU(), "RReLU in training mode"),
        (nn.MultiheadAttention(4, 2, dropout=0.1), "MultiheadAttention with dropout"),
    ],
)
def test_random_parts_are_named(part, why):
    live = nn.Sequential(module(SMALL, torch.float32), part).train()
    with pytest.raises(NoVerdictError, match=rf"1 \({why}"):
        compared(live)


def test_batch_statistics_in_evaluation_mode():
    live = nn.Sequential(
        module(SMALL, torch.float32), nn.BatchNorm1d(10, track_running_stats=False)
    )
    with pytest.raises(NoVerdictError, match="BatchNorm1d with batch statistics"):
        compared(live.eval())


def test_harmless_parts_of_training_mode():
    live = nn.Sequential(module(SMALL, torch.float32), nn.Dropout(0.0)).train()
    assert compared(live).holds
    assert live.training


class Untidy(nn.Module):
    """Writes to its buffers, draws random numbers and returns them multiplied by 0."""

    def __init__(self, live):
        super().__init__()
        self.module = live
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("seen", torch.zeros(2))

    def forward(self, x):
        self.calls += 1
        self.seen = x.flatten()[:2].clone()
        return self.module(x) + 0.0 * torch.rand(())


def test_the_module_is_left_alone():
    live = Untidy(module(SMALL, torch.float32))
    for parameter in live.parameters():
        parameter.grad = torch.ones_like(parameter)
    next(live.parameters()).requires_grad_(False)
    before = copy.deepcopy(live.state_dict())
    tensors = {name: id(tensor) for name, tensor in live.state_dict(keep_vars=True).items()}
    needs = [parameter.requires_grad for parameter in live.parameters()]
    state = torch.random.get_rng_state()
    assert compared(live).holds
    assert torch.equal(torch.random.get_rng_state(), state)
    after = live.state_dict(keep_vars=True)
    assert {name: id(tensor) for name, tensor in after.items()} == tensors
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert [parameter.requires_grad for parameter in live.parameters()] == needs
    assert all(torch.equal(p.grad, torch.ones_like(p)) for p in live.parameters())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda z: (z, z), "returns tuple, not one tensor"),
        (lambda z: z.argmax(1), "returns Tensor, not one tensor of logits|returns shape"),
        (lambda z: z[:, :3], r"returns shape \(4, 3\), the network that was bounded \(4, 10\)"),
        (lambda z: z.reshape(7, 7), "cannot be evaluated on a batch"),
    ],
)
def test_no_logits(change, message):
    with pytest.raises(NoVerdictError, match=message):
        compared(Changed(module(SMALL, torch.float32), change))


def test_no_examples():
    x, labels = batch(SMALL)
    with pytest.raises(NoVerdictError, match="no example"):
        agreement(network(SMALL), module(SMALL), x[:0], labels[:0], LOSS)
