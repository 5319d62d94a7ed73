"""Truth for gradients of single examples: one after the other, plain autograd, through θ."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from lipcert.core.losses.base import Loss
from lipcert.graph.ir import Graph
from lipcert.graph.viewed import parameters_of
from lipcert.measure.losses import per_example_loss
from lipcert.measure.lowering import lowered
from tests.measure.gradient_norms.oracle import viewed

LossOf = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def loss_of(loss: Loss) -> LossOf:
    return lambda output, label: per_example_loss(loss, output, label)


def gradients(graph: Graph, x: np.ndarray, y: np.ndarray, of: LossOf) -> dict[str, np.ndarray]:
    """By parameter: [examples, *shape]."""
    found: dict[str, list[np.ndarray]] = {name: [] for name in graph.parameters}
    for i in range(len(x)):
        thetas = {
            name: torch.tensor(array, dtype=torch.float64, requires_grad=True)
            for name, array in parameters_of(graph).items()
        }
        values = {graph.input_name: torch.tensor(x[i : i + 1], dtype=torch.float64)}
        for node in graph.nodes:
            operands = {
                slot: torch.from_numpy(operand.array.copy())
                if operand.parameter is None
                else viewed(operand, thetas[operand.parameter])
                for slot, operand in node.operands.items()
            }
            values[node.output] = lowered(node, [values[n] for n in node.inputs], operands)
        loss = of(values[graph.output_name], torch.tensor(y[i : i + 1])).sum()
        if loss.requires_grad:
            loss.backward()
        for name, theta in thetas.items():
            found[name].append(np.zeros(theta.shape) if theta.grad is None else theta.grad.numpy())
    return {name: np.stack(each) for name, each in found.items()}
