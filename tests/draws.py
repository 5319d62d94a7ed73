"""Draws: what builders of random networks choose by, so that a seed determines all of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import pytest

__all__ = ["Draws", "seeds"]

T = TypeVar("T")


@dataclass
class Draws:
    """Choices of a generator, each of which draws one number."""

    rng: np.random.Generator

    def chance(self, probability: float) -> bool:
        """True as often as that."""
        return bool(self.rng.random() < probability)

    def pick(self, options: Sequence[T]) -> T:
        """One of them, all equally likely."""
        return options[int(self.rng.integers(len(options)))]

    def whole(self, low: int, high: int) -> int:
        """From low to high, both included."""
        return int(self.rng.integers(low, high + 1))


def seeds(stop: int, start: int = 0) -> list[Any]:
    """Seeds of a random search: a third of them in the usual run, the others at night."""
    usual = start + -(-(stop - start) // 3)
    marks = {False: (pytest.mark.nightly,), True: ()}
    return [pytest.param(seed, marks=marks[seed < usual]) for seed in range(start, stop)]
