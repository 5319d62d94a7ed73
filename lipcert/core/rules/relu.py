"""max(x, 0), the function that most networks apply."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from lipcert.core.interval import Interval, clip


@dataclass(frozen=True, slots=True)
class Relu:
    """max(x, 0)."""

    at_zero: float = 0.0

    def image(self, box: Interval) -> Interval:
        """max(x, 0) rises."""
        return clip(box, 0.0, math.inf)

    def derivative(self, box: Interval) -> Interval:
        """0 where x < 0, 1 where x > 0, anything between at 0."""
        return Interval(np.where(box.lo > 0.0, 1.0, 0.0), np.where(box.hi < 0.0, 0.0, 1.0))

    def chord(self, _: Interval) -> float:
        """0 ≤ max(x, 0)/x ≤ 1."""
        return 1.0
