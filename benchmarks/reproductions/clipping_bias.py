"""Barczewski and Ramon (2024), Appendix E: clipping moves where a regression comes to rest.

What enters: the example of the paper, y = ax + b + e with x uniform on [0, 1], e = 9 with
probability 0.1 and −1 otherwise, squared loss, gradients clipped to C = 1. What leaves: the mean
clipped gradient at (a, b), and where it is zero. Everything is computed at θ − (a, b), on which
alone it depends.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
from scipy.optimize import root

from benchmarks.reproductions.rows import Row, Verdict

__all__ = ["rows"]

Array = npt.NDArray[np.float64]
ERRORS: Final = ((9.0, 0.1), (-1.0, 0.9))
CELLS: Final = 20_000
PUBLISHED: Final = np.array([0.01765, 0.94221])
NORM: Final = 0.7791


def rows() -> Iterator[Row]:
    """The bias at the optimum, and the point of rest."""
    optimum = np.zeros(2)
    plain = mean_gradient(optimum, math.inf)
    yield Row(
        "mean gradient at (a, b), no clipping",
        "0",
        f"{np.linalg.norm(plain):.4f}",
        Verdict.of(bool(np.linalg.norm(plain) < 1e-9)),
    )
    norm = float(np.linalg.norm(mean_gradient(optimum)))
    exact = 0.8 * math.hypot(math.sqrt(2.0) - 1.0, math.asinh(1.0))
    yield Row(
        "norm of the mean clipped gradient at (a, b)",
        f"{NORM}",
        f"{norm:.5f}; by hand 0.8·√((√2 − 1)² + arsinh²(1)) = {exact:.5f}",
        Verdict.of(abs(norm - NORM) < 5e-5 and abs(norm - exact) < 1e-8),
    )
    yield rest_row()


def rest_row() -> Row:
    """Descent from (a, b) leads to the zero, a root finder to its digits."""
    theta = np.zeros(2)
    for _ in range(2000):
        theta = theta - 0.05 * mean_gradient(theta, cells=200)
    end = root(mean_gradient, theta, tol=1e-12).x
    there = float(np.linalg.norm(mean_gradient(PUBLISHED)))
    found = (
        f"({end[0]:+.5f}, {end[1]:+.5f}) from (a, b); "
        f"at the published point the norm is still {there:.4f}"
    )
    as_printed = bool(np.all(np.abs(end - PUBLISHED) < 1e-5))
    mirrored = bool(np.all(np.abs(end + PUBLISHED) < 1e-5))
    verdict = Verdict.SIGNS if mirrored else Verdict.of(as_printed)
    claim = f"({PUBLISHED[0]:+}, {PUBLISHED[1]:+}) from (a, b)"
    return Row("where the mean clipped gradient is zero", claim, found, verdict)


def mean_gradient(theta: Array, clip: float = 1.0, cells: int = CELLS) -> Array:
    """E[g·min(1, C/‖g‖)] for g = 2r(x, 1), r = θ₁x + θ₂ − e; midpoints of equal cells in x."""
    x = (np.arange(cells) + 0.5) / cells
    total = np.zeros(2)
    for error, probability in ERRORS:
        each = 2.0 * (theta[0] * x + theta[1] - error) * np.stack([x, np.ones(cells)])  # [2, cells]
        norms = np.linalg.norm(each, axis=0)
        total += probability * (each * np.minimum(1.0, clip / norms)).mean(axis=1)
    return total
