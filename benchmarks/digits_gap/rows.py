"""Row: one way to train, with every number that it depends on.

What enters: choices. What leaves: a network before training, and the words of the table. Invariant:
two runs of one row differ by their seed alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final, final

from torch import nn

from benchmarks.digits_gap.inputs import Inputs
from lipcert.training import Clipless, GradientClipping, Loss, TrainingMechanism
from lipcert.training.layers import MaxMin

__all__ = ["CLASSES", "HIDDEN", "Network", "Row"]

CLASSES: Final = 10
HIDDEN: Final = 64


class Network(Enum):
    """By the name that the table has; no biases. *From 0*: the last weight begins at 0."""

    LINEAR = "linear, from 0"
    PERCEPTRON = "MaxMin perceptron"
    """one hidden layer; all singular values begin at 1"""
    PERCEPTRON_FROM_ZERO = "MaxMin perceptron, from 0"

    def built(self, inputs: int) -> nn.Module:
        """With fresh weights, from torch's generator."""
        if self is Network.LINEAR:
            return _from_zero(nn.Linear(inputs, CLASSES, bias=False))
        hidden = nn.Linear(inputs, HIDDEN, bias=False)
        head = nn.Linear(HIDDEN, CLASSES, bias=False)
        for layer in (hidden, head):
            nn.init.orthogonal_(layer.weight)
        if self is Network.PERCEPTRON_FROM_ZERO:
            _from_zero(head)
        return nn.Sequential(hidden, MaxMin(), head)


def _from_zero(layer: nn.Linear) -> nn.Linear:
    nn.init.zeros_(layer.weight)
    return layer


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of a table.

    mechanism: or the loss alone, for training without privacy. batch_size: the expected one; as
    large as the data set, every batch is the whole of it. averaged: share of the last iterates
    whose mean is the result; 0 for the last one. before: the row that it is compared with.
    """

    name: str
    inputs: Inputs
    network: Network
    mechanism: TrainingMechanism | Loss
    rate: float
    momentum: float = 0.0
    batch_size: int
    epochs: int
    averaged: float = 0.5
    before: str | None = None

    @property
    def cells(self) -> tuple[str, ...]:
        """What stands in the table before anything is measured."""
        return (
            f"`{self.name}`",
            self.inputs.value,
            self.network.value,
            _described(self.mechanism),
            self._recipe,
        )

    @property
    def _recipe(self) -> str:
        parts = [f"η {self.rate:.3g}"]
        if self.momentum:
            parts.append(f"momentum {self.momentum:g}")
        parts.append(f"B {self.batch_size}")
        parts.append(f"{self.epochs} epochs")
        if self.averaged:
            parts.append(f"last {self.averaged:.0%} averaged")
        return ", ".join(parts)


def _described(mechanism: TrainingMechanism | Loss) -> str:
    if isinstance(mechanism, Loss):
        return f"none, τ {mechanism.temperature:g}"
    parts = [f"τ {mechanism.loss.temperature:g}"]
    match mechanism:
        case Clipless(radius=radius, loss_clip=clip, orthogonalize=iterations):
            parts.append(f"‖W‖₂ ≤ {radius:g}")
            parts += [] if iterations == 0 else [f"{iterations} Björck"]
            parts += [] if clip is None else [f"loss clip {clip:g}"]
            parts.append(f"{mechanism.allocation} noise")
        case GradientClipping(clip_norm=clip):
            parts.append(f"C {clip:g}")
    return ", ".join(parts)
