"""Truth for the norm engine: one example after another, plain autograd in float64, through θ."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from lipcert.graph.ir import Graph
from lipcert.graph.operand import Operand
from lipcert.measure.lowering import LoweredNetwork, lowered
from lipcert.measure.measured import BatchNorms, Measured

CPU = torch.device("cpu")


def network_of(graph: Graph, dtype: torch.dtype = torch.float64) -> LoweredNetwork:
    return LoweredNetwork.of(graph, dtype, CPU)


def viewed(operand: Operand, theta: Tensor) -> Tensor:
    """array = scale · θ[places], 0 where places is −1."""
    if operand.places is None:
        return theta.reshape(operand.shape) * operand.scale
    places = torch.from_numpy(operand.places.astype(np.int64))
    entries = theta.reshape(-1)[places.clamp_min(0)]
    return torch.where(places >= 0, entries, 0.0) * operand.scale


def truth(
    network: LoweredNetwork, x: Tensor, loss_of: Callable[[Tensor, int], Tensor]
) -> tuple[Mapping[str, np.ndarray], Mapping[str, np.ndarray], Mapping[str, np.ndarray]]:
    """Norms of gradients, values and cotangents; loss_of(output [1, ...], i): loss of example i.

    The parameters are the network's numbers, taken to float64.
    """
    graph = network.graph
    gradients: dict[str, list[float]] = {name: [] for name in graph.parameters}
    value_norms: dict[str, list[float]] = {}
    cotangents: dict[str, list[float]] = {}
    for i in range(len(x)):
        thetas = {
            name: tensor.detach().double().clone().requires_grad_()
            for name, tensor in network.parameters.items()
        }
        values = {graph.input_name: x[i : i + 1].detach().double().clone().requires_grad_()}
        for node in graph.nodes:
            operands = {
                slot: viewed(operand, thetas[operand.parameter])
                if operand.parameter is not None
                else torch.from_numpy(operand.array.copy())
                for slot, operand in node.operands.items()
            }
            output = lowered(node, [values[name] for name in node.inputs], operands)
            output = output * 1.0  # every value is a tensor of its own
            if not output.requires_grad:
                output.requires_grad_()
            output.retain_grad()
            values[node.output] = output
        loss_of(values[graph.output_name], i).sum().backward()
        for name, theta in thetas.items():
            gradients[name].append(0.0 if theta.grad is None else theta.grad.norm().item())
        for name, value in values.items():
            value_norms.setdefault(name, []).append(value.detach().norm().item())
            grad = 0.0 if value.grad is None else value.grad.norm().item()
            cotangents.setdefault(name, []).append(grad)
    return _arrays(gradients), _arrays(value_norms), _arrays(cotangents)


def _arrays(lists: Mapping[str, list[float]]) -> Mapping[str, np.ndarray]:
    return {name: np.asarray(entries) for name, entries in lists.items()}


def assert_within(
    found: Measured,
    true: np.ndarray,
    relative: float,
    what: str = "",
    reach: np.ndarray | float = 0.0,
) -> None:
    """Inside its own interval, which is narrow, or the norm as good as zero.

    reach: a bound of the norm from magnitudes alone. A sum that rounds is off by a share of this,
    which is much of the norm where its terms cancel.
    """
    slack = 1e-14 * np.abs(true)  # of the oracle itself
    assert np.all(np.abs(found.norm - true) <= found.error + slack), (what, found, true)
    narrow = relative * (found.norm + 0.02 * reach) + 1e-9
    assert np.all(found.error <= narrow), (what, found, true)


def assert_close(found: BatchNorms, true: tuple, relative: float) -> None:
    """A whole network, whose forward pass rounds as well."""
    for measured, expected in zip(
        (found.parameters, found.values, found.cotangents), true, strict=True
    ):
        for name, norms in measured.items():
            scale = relative * (np.abs(expected[name]) + 1e-2)
            off = np.abs(norms.norm - expected[name])
            assert np.all(off <= norms.error + scale), (name, norms, expected[name])
