"""Sample: repeated measurements as a mean with its interval.

What enters: one number per seed. What leaves: mean, standard error, 95 % interval of Student's t.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self, final

from scipy.stats import t

__all__ = ["CONFIDENCE", "Sample"]

CONFIDENCE: Final = 0.95


@final
@dataclass(frozen=True, slots=True)
class Sample:
    """Mean of `count` independent numbers, its standard error, half the width of its interval."""

    mean: float
    error: float
    half_width: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        """Of at least two numbers."""
        count = len(values)
        error = statistics.stdev(values) / math.sqrt(count)
        quantile = float(t.ppf(0.5 + CONFIDENCE / 2.0, count - 1))
        return cls(statistics.fmean(values), error, quantile * error, count)

    @property
    def low(self) -> float:
        """Lower end of the interval."""
        return self.mean - self.half_width

    @property
    def high(self) -> float:
        """Upper end of the interval."""
        return self.mean + self.half_width

    def __str__(self) -> str:
        """Mean ± half width, to the digits that the interval leaves."""
        digits = (
            4 if self.half_width == 0.0 else max(0, 1 - math.floor(math.log10(self.half_width)))
        )
        return f"{self.mean:.{digits}f} ± {self.half_width:.{digits}f}"
