"""A network that holds numbers everywhere, and what attacks on it have in common."""

import dataclasses
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from lipcert.training import Private
from tests.training.runs import Small, first

FACTOR = 128.0
"""a power of 2, so that what is multiplied and divided again is the same to the bit"""


@dataclasses.dataclass
class Options:
    scale: float = 1.0


@dataclasses.dataclass(slots=True)
class Slotted:
    scale: float = 1.0


class Settings:
    def __init__(self) -> None:
        self.scale = 1.0


class Loudness:
    scale = 1.0


class Configured(Small):
    """Holds numbers in every way in which a module may hold them outside parameters and buffers."""

    shared: ClassVar[dict[str, float]] = {"scale": 1.0}
    on_class: ClassVar[Tensor] = torch.ones(())
    loudness = Loudness

    def __init__(self) -> None:
        super().__init__()
        self.cfg = {"scale": 1.0, "nested": {"scales": [1.0]}}
        self.scales = [1.0]
        self.options = Options()
        self.settings = Settings()
        self.slotted = Slotted()
        self.namespace = SimpleNamespace(model=SimpleNamespace(scale=1.0))
        self.array = np.ones(1)
        self.plain = torch.ones(())
        self.in_dict = {"scale": torch.ones(())}
        self.in_list = [torch.ones(())]
        self.in_tuple = (torch.ones(()),)
        self.in_object = SimpleNamespace(scale=torch.ones(()))
        self.for_training = 1.0
        self.unregistered = [nn.Hardtanh(-64.0, 64.0)]
        self.register_buffer("kept", torch.ones(()))
        self.register_buffer("fleeting", torch.ones(()), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        numbers = (
            self.cfg["scale"] * self.cfg["nested"]["scales"][0],  # type: ignore[index, operator]
            self.scales[0] * self.options.scale * self.settings.scale,
            self.slotted.scale * self.namespace.model.scale * self.loudness.scale,
            float(self.array[0]) * self.shared["scale"],
            self.for_training if self.training else 1.0,
        )
        hidden = self.unregistered[0](self.hidden(x)).relu()
        for number in numbers:
            hidden = hidden * number
        hidden = hidden * self.plain * self.in_dict["scale"] * self.in_list[0] * self.in_tuple[0]
        hidden = hidden * self.in_object.scale * self.on_class * self.kept * self.fleeting
        return self.scaled(self.head(hidden))

    def scaled(self, logits: Tensor) -> Tensor:
        return logits


def forward(private: Private) -> Tensor:
    """The criterion of a batch that was drawn."""
    x, y = first(private)
    private.optimizer.zero_grad()
    return private.criterion(private.model(x), y)


def step(private: Private) -> None:
    forward(private).backward()
    private.optimizer.step()


def scaled(item: Any) -> Any:
    return tuple(None if part is None else FACTOR * part for part in item)
