"""Truth for gradients: one example after another, plain autograd in float64, through θ."""

import numpy as np
import torch

from lipcert.graph.ir import Graph, Operand, parameters_of
from lipcert.measure.lowering import LoweredNetwork, lowered

CPU = torch.device("cpu")


def network_of(graph: Graph, dtype: torch.dtype = torch.float64) -> LoweredNetwork:
    return LoweredNetwork.of(graph, dtype, CPU)


def viewed(operand: Operand, theta):
    """array = scale · θ[places] + plus, 0 where places is −1."""
    shown = _shown(operand, theta)
    return shown if operand.plus is None else shown + torch.from_numpy(operand.plus.copy())


def _shown(operand: Operand, theta):
    if operand.places is None:
        return theta.reshape(operand.shape) * operand.scale
    places = torch.from_numpy(operand.places.astype(np.int64))
    entries = theta.reshape(-1)[places.clamp_min(0)]
    return torch.where(places >= 0, entries, 0.0) * operand.scale


def of_one(graph: Graph, numbers, x, loss_of):
    """Gradients, values and cotangents of one example [1, ...]; loss_of(output)."""
    thetas = {name: item.detach().double().requires_grad_() for name, item in numbers.items()}
    values = {graph.input_name: x.detach().double().clone().requires_grad_()}
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
    loss_of(values[graph.output_name]).sum().backward()
    return _slopes(thetas), {k: v.detach() for k, v in values.items()}, _slopes(values)


def _slopes(items):
    return {k: torch.zeros_like(v) if v.grad is None else v.grad for k, v in items.items()}


def truth(network: LoweredNetwork, x, loss_of):
    """Norms of gradients, values and cotangents; loss_of(output [1, ...], i): loss of example i."""
    found = [
        of_one(network.graph, network.parameters, x[i : i + 1], lambda z, i=i: loss_of(z, i))
        for i in range(len(x))
    ]
    return tuple(
        {name: np.array([float(one[name].norm()) for one in part]) for name in part[0]}
        for part in zip(*found, strict=True)
    )


def gradients(graph: Graph, x: np.ndarray, y: np.ndarray, loss_of) -> dict[str, np.ndarray]:
    """By parameter: [examples, *shape]; loss_of(output, label)."""
    theta = {name: torch.tensor(array) for name, array in parameters_of(graph).items()}
    pairs = [(torch.tensor(x[i : i + 1]), torch.tensor(y[i : i + 1])) for i in range(len(x))]
    found = [of_one(graph, theta, one, lambda z, y=y: loss_of(z, y))[0] for one, y in pairs]
    return {name: np.stack([one[name].numpy() for one in found]) for name in theta}


def assert_within(
    found,
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


def assert_close(found, true: tuple, relative: float) -> None:
    """A whole network, whose forward pass rounds as well."""
    for measured, expected in zip(
        (found.parameters, found.values, found.cotangents), true, strict=True
    ):
        for name, norms in measured.items():
            scale = relative * (np.abs(expected[name]) + 1e-2)
            off = np.abs(norms.norm - expected[name])
            assert np.all(off <= norms.error + scale), (name, norms, expected[name])
