"""The small data sets of scikit-learn, made ready for private training without looking at them.

What enters: raw measurements. What leaves: examples of norm at most 1, and labels. Invariant: the
map from a raw example to its vector depends on no example: the unit of every feature is a power of
ten, written down here from what the feature is, and a feature enters as the logarithm of its value
in that unit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, final

import numpy as np
import numpy.typing as npt
import torch
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.model_selection import train_test_split
from torch import Tensor

__all__ = ["BREAST_CANCER_UNITS", "PROBLEMS", "Problem", "Split", "in_units"]

Array = npt.NDArray[np.float64]
TEST_SHARE: Final = 0.2
FLOOR: Final = 0.1
"""of a unit: what is smaller counts as this much, so that a zero has a logarithm"""

NUCLEUS: Final = (10.0, 10.0, 100.0, 1000.0, *[0.1] * 6)
"""radius, texture, perimeter and area in pixels; six dimensionless quantities of shape"""
BREAST_CANCER_UNITS: Final = (*NUCLEUS, *(unit / 10.0 for unit in NUCLEUS), *NUCLEUS)
"""means, standard errors, worst values"""
WINE_UNITS: Final = (10.0, 1.0, 1.0, 10.0, 100.0, 1.0, 1.0, 0.1, 1.0, 1.0, 1.0, 1.0, 1000.0)
"""alcohol in percent, acids and phenols in g/l, magnesium and proline in mg/l, ratios"""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Split:
    """Examples [n, features] of norm at most 1 and labels [n], for training and for testing."""

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor


@final
@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """A classification problem; x [n, features] of norm at most 1."""

    name: str
    x: Tensor
    y: Tensor

    @property
    def classes(self) -> int:
        """How many labels there are."""
        return int(self.y.max()) + 1

    @property
    def training_examples(self) -> int:
        """N of a private run."""
        return len(self.y) - int(np.ceil(TEST_SHARE * len(self.y)))

    def split(self, seed: int) -> Split:
        """At random, with the same share of every class on both sides."""
        train, test = train_test_split(
            np.arange(len(self.y)),
            test_size=TEST_SHARE,
            random_state=seed,
            stratify=self.y.numpy(),
        )
        return Split(self.x[train], self.y[train], self.x[test], self.y[test])


def _scaled(features: Array, radius: float) -> Tensor:
    """Clipped to norm `radius`, then divided by it."""
    norms = np.linalg.norm(features, axis=1, keepdims=True)
    short = features / np.maximum(norms, radius)
    return torch.from_numpy((short * (1.0 - 2.0**-20)).astype(np.float32))


def in_units(features: Array, units: tuple[float, ...], radius: float) -> Tensor:
    """Logarithms of the features in their units, clipped to norm `radius` and divided by it.

    Every example is mapped by itself.
    """
    return _scaled(np.log(np.maximum(features / np.asarray(units), FLOOR)), radius)


def _breast_cancer() -> Problem:
    x, y = load_breast_cancer(return_X_y=True)
    return Problem("breast cancer", in_units(x, BREAST_CANCER_UNITS, 5.0), _labels(y))


def _wine() -> Problem:
    x, y = load_wine(return_X_y=True)
    return Problem("wine", in_units(x, WINE_UNITS, 3.0), _labels(y))


def _digits() -> Problem:
    """Pixels of 0 to 16, moved to −1 to 1; the norm is at most √64."""
    x, y = load_digits(return_X_y=True)
    return Problem("digits", _scaled(x / 8.0 - 1.0, 8.0), _labels(y))


def _labels(y: npt.NDArray[np.int64]) -> Tensor:
    return torch.from_numpy(y.astype(np.int64))


PROBLEMS: Final[Mapping[str, Callable[[], Problem]]] = MappingProxyType(
    {"breast cancer": _breast_cancer, "wine": _wine, "digits": _digits}
)
