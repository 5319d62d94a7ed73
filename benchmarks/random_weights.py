"""Random weights with the two kinds of spectrum that a bound of a norm can meet."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

__all__ = ["he_weight", "peaked_weight"]

Array = npt.NDArray[np.float64]


def he_weight(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Gaussian with variance 2/fan-in: a flat spectrum, the worst case of a search."""
    return rng.standard_normal(shape) * math.sqrt(2.0 / math.prod(shape[1:]))


def peaked_weight(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Half of the former plus eight smooth components of falling strength, as after training."""
    weight = 0.5 * he_weight(shape, rng)
    bump = np.ones(())
    for taps in shape[2:]:
        bump = np.multiply.outer(bump, np.exp(-(np.linspace(-1, 1, taps) ** 2) / 1.5))
    for rank in range(8):
        left, right = rng.standard_normal(shape[0]), rng.standard_normal(shape[1])
        channels = np.outer(left / np.linalg.norm(left), right / np.linalg.norm(right))
        component = np.multiply.outer(channels, bump / np.linalg.norm(bump))
        weight += 2.5 / (rank + 1) ** 0.7 * component
    return weight
