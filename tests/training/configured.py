"""A network that holds numbers everywhere, and what attacks on it have in common."""

from typing import Any, ClassVar

import torch
from torch import Tensor

from tests.training.runs import Small, first

FACTOR = 128.0
"""a power of 2, so that what is multiplied and divided again is the same to the bit"""


class Configured(Small):
    """Holds numbers outside parameters and buffers, too."""

    shared: ClassVar[dict[str, float]] = {"scale": 1.0}
    on_class: ClassVar[Tensor] = torch.ones(())

    def __init__(self) -> None:
        super().__init__()
        self.cfg = {"scale": 1.0}
        self.plain = torch.ones(())
        self.in_list = [torch.ones(())]
        self.for_training = 1.0
        self.register_buffer("kept", torch.ones(()))
        self.register_buffer("fleeting", torch.ones(()), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        number = self.cfg["scale"] * self.shared["scale"]
        hidden = self.hidden(x).relu() * number * (self.for_training if self.training else 1.0)
        hidden = hidden * self.plain * self.in_list[0] * self.on_class * self.kept * self.fleeting
        return self.scaled(self.head(hidden))

    def scaled(self, logits: Tensor) -> Tensor:
        return logits


def forward(private) -> Tensor:
    """The criterion of a batch that was drawn."""
    x, y = first(private)
    private.optimizer.zero_grad()
    return private.criterion(private.model(x), y)


def step(private) -> None:
    forward(private).backward()
    private.optimizer.step()


def scaled(item: Any) -> Any:
    return tuple(None if part is None else FACTOR * part for part in item)
