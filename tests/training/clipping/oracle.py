"""Truth for clipped sums: one example after another, plain autograd in float64, through θ."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from lipcert.core.losses.entries import SquaredError
from lipcert.graph.ir import Graph, parameters_of
from lipcert.privacy.noise import Group
from lipcert.training.clipping.gradients import ClipRule
from tests.measure.gradient_norms import oracle

LOSS = SquaredError(1e9, "sum", half=True)
"""takes outputs of any shape"""
Gradients = Mapping[str, Tensor]


def tensors_of(graph: Graph, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    return {
        name: torch.from_numpy(array.copy()).to(dtype)
        for name, array in parameters_of(graph).items()
    }


def trained_names(graph: Graph) -> list[str]:
    return [name for name, item in graph.parameters.items() if item.trainable]


def clipped(name: str, parameters: tuple[str, ...], radius: float) -> Group:
    return Group(name, 1, parameters=parameters, grad_norm=radius)


def flat(graph: Graph, radius: float, decay: float = 0.0, loss=LOSS) -> ClipRule:
    group = clipped("all", tuple(trained_names(graph)), radius)
    return ClipRule((group,), loss, weight_decay=decay)


def by_parameter(graph: Graph, radius: float, decay: float = 0.0, loss=LOSS) -> ClipRule:
    groups = tuple(clipped(name, (name,), radius) for name in trained_names(graph))
    return ClipRule(groups, loss, weight_decay=decay)


def batch(graph: Graph, examples: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Inputs, and targets for `LOSS`."""
    rng = np.random.default_rng(seed)
    shapes = graph.input_shape, graph.output_shape
    x, y = (torch.from_numpy(rng.standard_normal((examples, *shape))) for shape in shapes)
    return x, y


def of_one(graph: Graph, tensors: Mapping[str, Tensor], rule: ClipRule, x, label) -> Gradients:
    """∇ℓ + λθ of one example [1, ...]."""
    slopes, _, _ = oracle.of_one(graph, tensors, x, lambda z: rule.losses(z, label))
    return {
        name: slopes[name] + rule.weight_decay * tensors[name].detach().double()
        for name in trained_names(graph)
    }


def length(gradients: Gradients, names) -> float:
    return float(sum(gradients[name].double().square().sum() for name in names) ** 0.5)


def clipped_sum(
    graph: Graph, tensors: Mapping[str, Tensor], rule: ClipRule, x: Tensor, labels: Tensor
) -> tuple[dict[str, Tensor], np.ndarray]:
    """The sum, and the factors [examples, groups]."""
    total = {name: torch.zeros(tensors[name].shape).double() for name in trained_names(graph)}
    factors = np.ones((len(x), len(rule.groups)))
    for i in range(len(x)):
        own = of_one(graph, tensors, rule, x[i : i + 1], labels[i : i + 1])
        for k, (group, radius) in enumerate(zip(rule.groups, rule.radii, strict=True)):
            factors[i, k] = min(1.0, radius / max(length(own, group.parameters), 1e-300))
            for name in group.parameters:
                total[name] += factors[i, k] * own[name]
    return total, factors
