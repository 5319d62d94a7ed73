"""Draws: what builders of random networks choose by, so that a seed determines all of it."""

from dataclasses import dataclass
from typing import TypeVar

import numpy as np

T = TypeVar("T")


@dataclass
class Draws:
    """Choices of a generator, each of which draws one number."""

    rng: np.random.Generator

    def chance(self, probability: float) -> bool:
        """True as often as that."""
        return bool(self.rng.random() < probability)

    def pick(self, options) -> T:
        """One of them, all equally likely."""
        return options[int(self.rng.integers(len(options)))]

    def whole(self, low: int, high: int) -> int:
        """From low to high, both included."""
        return int(self.rng.integers(low, high + 1))
