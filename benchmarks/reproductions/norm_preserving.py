"""Béthune et al. (2024), Section 3.1: gradient-norm-preserving networks attain their bound.

What enters: dense networks of orthogonal weights and MaxMin without biases, inputs of norm
X₀ = 2. What leaves: the norms of per-example gradients, measured by the engine of the audit, next
to √D·X₀·L and to what `lipcert.analyze` proves. For contrast: ReLU between weights of norm 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, final

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.reproductions.networks import WIDTH, DenseNetwork, imported, orthogonal_
from benchmarks.reproductions.rows import Row, Verdict
from lipcert import ImportedModel, Settings, analyze
from lipcert.core.losses.base import Loss
from lipcert.core.losses.softmax import CrossEntropy
from lipcert.losses import make_loss
from lipcert.measure.gradient_norms import NormEngine
from lipcert.measure.losses import per_example_loss
from lipcert.measure.lowering import LoweredNetwork
from models.architectures import MaxMin

__all__ = ["rows"]

DEPTHS: Final = (2, 4, 8)
RADIUS: Final = 2.0
EXAMPLES: Final = 1000
SEED: Final = 0
TEMPERATURE: Final = 0.01
"""so sharp a cross-entropy reaches its √2/τ on a wrong label; its norms are shown times τ"""


@final
@dataclass(frozen=True, slots=True)
class Measurement:
    """Norms of the whole gradient, example by example, and the bounds."""

    norms: np.ndarray[tuple[int], np.dtype[np.float64]]
    proved: float


def rows() -> Iterator[Row]:
    """Two losses on orthogonal networks, and ReLU networks."""
    for depth in DEPTHS:
        yield sharp_row(depth)
    for depth in DEPTHS:
        yield transport_row(depth)
    yield relu_row(DEPTHS[-1])


def sharp_row(depth: int) -> Row:
    """Cross-entropy on the worst label of every example."""
    torch.manual_seed(SEED)
    network = DenseNetwork(depth, MaxMin(), bias=False)
    orthogonal_(network)
    found = measured(network, make_loss("cross-entropy", temperature=TEMPERATURE), TEMPERATURE)
    bound = math.sqrt(depth) * RADIUS * math.sqrt(2.0)
    return attained_row(f"D = {depth}, orthogonal, MaxMin, cross-entropy", bound, found)


def transport_row(depth: int) -> Row:
    """Two classes under the Kantorovich–Rubinstein loss: every example attains the bound."""
    torch.manual_seed(SEED)
    network = DenseNetwork(depth, MaxMin(), bias=False, outputs=2)
    orthogonal_(network)
    found = measured(network, make_loss("kr"), 1.0)
    bound = math.sqrt(depth) * RADIUS * math.sqrt(2.0)
    row = attained_row(f"D = {depth}, orthogonal, MaxMin, KR of two classes", bound, found)
    everywhere = found.norms.min() >= bound * (1.0 - 1e-6)
    return row if everywhere else Row(row.setting, row.claim, row.measured, Verdict.REFUTED)


def attained_row(setting: str, bound: float, found: Measurement) -> Row:
    """The bound is proved, reached, and not exceeded."""
    largest = float(found.norms.max())
    holds = largest <= found.proved * (1.0 + 1e-9) and largest >= bound * (1.0 - 1e-6)
    return Row(setting, f"attains √D·X₀·√2 = {bound:.4f}", described(found), Verdict.of(holds))


def relu_row(depth: int) -> Row:
    """The same bound, far from attained: Lipschitz is not yet norm-preserving."""
    torch.manual_seed(SEED)
    network = DenseNetwork(depth, nn.ReLU(), bias=False)
    with torch.no_grad():
        for weight in network.parameters():
            weight.div_(torch.linalg.matrix_norm(weight, 2))
    found = measured(network, make_loss("cross-entropy", temperature=TEMPERATURE), TEMPERATURE)
    bound = math.sqrt(depth) * RADIUS * math.sqrt(2.0)
    return Row(
        f"D = {depth}, weights of norm 1, ReLU, cross-entropy",
        f"√D·X₀·√2 = {bound:.4f} need not be tight",
        described(found),
        Verdict.of(bool(found.norms.max() < 0.5 * bound)),
    )


def described(found: Measurement) -> str:
    """Bounds and norms."""
    low, middle, high = np.quantile(found.norms, (0.0, 0.5, 1.0))
    return f"proved {found.proved:.4f}; measured ≤ {high:.4f}, median {middle:.4f}, least {low:.4f}"


def measured(network: DenseNetwork, loss: Loss, scale: float) -> Measurement:
    """Random inputs of norm X₀, with the label of the lowest score; all norms times `scale`."""
    model = imported(network)
    x = torch.randn(EXAMPLES, WIDTH, dtype=torch.float64)
    x = x * (RADIUS / x.norm(dim=1, keepdim=True))
    lowered = LoweredNetwork.of(model.graph, torch.float64, torch.device("cpu"))
    labels = lowered.forward(x).argmin(dim=1)

    def losses(logits: Tensor) -> Tensor:
        return per_example_loss(loss, logits, labels)

    found = NormEngine(lowered, watch_values=False).measure(x, losses)
    squares = sum(norms.norm**2 for norms in found.parameters.values())
    return Measurement(scale * np.sqrt(squares), scale * proved(model, loss))


def proved(model: ImportedModel, loss: Loss) -> float:
    """The bound at the weights of the file, which are orthogonal up to float32."""
    temperature = loss.temperature if isinstance(loss, CrossEntropy) else None
    settings = Settings(loss=loss.kind, temperature=temperature, input_norm=RADIUS)
    return analyze(model, settings).network.grad_norm or 0.0
