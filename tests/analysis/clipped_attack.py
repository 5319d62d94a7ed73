"""An attack on certificates of clipped runs: gradients by autograd of the engine's own network."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lipcert.analysis.bounded import bounded
from lipcert.analysis.certificate import Issued
from lipcert.graph.ir import Graph
from lipcert.graph.viewed import parameters_of
from lipcert.importer.model import ImportedModel
from lipcert.measure.lowering import LoweredNetwork
from lipcert.settings.settings import Settings

SLACK = 1e-7


@dataclass(frozen=True)
class Excess:
    """A gradient that is longer than the certificate claims."""

    parameter: str
    reached: float
    claimed: float


def excesses(
    model: ImportedModel, settings: Settings, issued: Issued, seed: int, starts: int = 4
) -> list[Excess]:
    """What random examples, labels and (if free) weights reach, and a few steps of ascent."""
    graph = bounded(model, settings).graph
    claimed = {claim.name: claim.grad_norm for claim in issued.certificate.parameters}
    if not claimed:
        return []
    best = dict.fromkeys(claimed, 0.0)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(starts):
        x, weights, label = _start(graph, settings, generator)
        aim = list(claimed)[int(torch.randint(len(claimed), (1,), generator=generator))]
        for step in range(5):
            found = _gradients(graph, weights, x, label)
            for name in claimed:
                best[name] = max(best[name], float(found[name].detach().norm()))
            x, weights = _climbed(x, weights, found[aim], settings, 0.5 * 0.7**step)
    return [
        Excess(name, best[name], bound)
        for name, bound in claimed.items()
        if best[name] > bound * (1 + SLACK) + 1e-12
    ]


def _start(
    graph: Graph, settings: Settings, generator: torch.Generator
) -> tuple[Tensor, dict[str, Tensor], Tensor]:
    """An example of any admissible length; the weights of the file, or any others."""

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    weights = {name: torch.from_numpy(np.array(w)) for name, w in parameters_of(graph).items()}
    if settings.scope == "constraint-set":
        size = 10.0 ** float(torch.empty(()).uniform_(-1.0, 1.0, generator=generator))
        weights = {
            name: size * drawn(*w.shape) if graph.parameters[name].trainable else w
            for name, w in weights.items()
        }
    classes = math.prod(graph.output_shape)
    return _admitted(drawn(1, *graph.input_shape), settings), weights, drawn(classes)


def _admitted(x: Tensor, settings: Settings) -> Tensor:
    return x * (settings.input_norm or 0.0) / x.norm().clamp_min(1e-300)


def _gradients(
    graph: Graph, weights: dict[str, Tensor], x: Tensor, label: Tensor
) -> dict[str, Tensor]:
    """∂loss/∂θ, to be differentiated again; x and the weights become leaves."""
    leaves = {name: w.requires_grad_() for name, w in weights.items()}
    network = LoweredNetwork.sharing(graph, leaves, torch.empty((), dtype=torch.float64))
    logits = network.forward(x.requires_grad_()).reshape(-1)
    loss = -logits.log_softmax(0)[label.argmax()]
    if len(logits) == 1:
        loss = torch.nn.functional.softplus(-logits * label.sign()).sum()
    found = torch.autograd.grad(loss, list(leaves.values()), create_graph=True, allow_unused=True)
    return {
        name: torch.zeros(()) if gradient is None else gradient
        for name, gradient in zip(leaves, found, strict=True)
    }


def _climbed(
    x: Tensor, weights: dict[str, Tensor], aim: Tensor, settings: Settings, length: float
) -> tuple[Tensor, dict[str, Tensor]]:
    """One step up the length of a gradient: of the example, and of free weights."""
    free = weights if settings.scope == "constraint-set" else {}
    leaves = [x, *free.values()]
    slopes: tuple[Tensor | None, ...] = (None,) * len(leaves)
    if aim.requires_grad:
        slopes = torch.autograd.grad((aim**2).sum(), leaves, allow_unused=True)
    moved = [
        old.detach() if slope is None else _moved(old.detach(), slope, length)
        for old, slope in zip(leaves, slopes, strict=True)
    ]
    others = {name: w.detach() for name, w in weights.items()}
    return _admitted(moved[0], settings), {**others, **dict(zip(free, moved[1:], strict=True))}


def _moved(old: Tensor, slope: Tensor, length: float) -> Tensor:
    size = float(slope.norm())
    if not 0.0 < size < math.inf:
        return old
    return old + slope * (length * (1.0 + float(old.norm())) / size)
