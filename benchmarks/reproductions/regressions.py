"""The synthetic regressions of Guo (2024), and where clipped rules with weight decay come to rest.

What enters: weights, clip, decay and learning rate of a figure. What leaves: points of rest, test
losses by data set, the regularised optimum.

A step moves θ by −η times the mean clipped gradient. Decoupled decay also multiplies θ by 1 − ηλ;
decay inside clips ∇ℓ + λθ.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, final

import numpy as np
import numpy.typing as npt
from scipy.optimize import root

__all__ = [
    "BATCH",
    "NOISE",
    "REGRESSIONS",
    "SEEDS",
    "STEPS",
    "Array",
    "Regression",
    "loss",
    "noisy_losses",
    "problem",
    "regression_rest",
    "rest",
    "ridge_of",
]

Array = npt.NDArray[np.float64]
SEEDS: Final = range(5)
EXAMPLES: Final = 1000
BATCH, STEPS, NOISE = 100, 10_000, 0.1


@final
@dataclass(frozen=True, slots=True)
class Regression:
    """A figure of the paper: weights w, clip R, decay λ, learning rate η."""

    weights: tuple[float, ...]
    radius: float
    decay: float
    rate: float

    @property
    def name(self) -> str:
        """As the paper writes it."""
        weights = ", ".join(f"{w:g}" for w in self.weights)
        return f"regression, w = ({weights}), R = {self.radius:g}, λ = {self.decay:g}"


FIGURES: Final = ((0.1, 0.01, 0.03), (0.01, 0.01, 0.1), (0.1, 0.1, 0.03))
REGRESSIONS: Final = tuple(
    Regression(weights, *figure) for weights in ((10.0,), (10.0, 5.0)) for figure in FIGURES
)


def clipped(gradients: Array, radius: float) -> Array:
    """g·min(1, R/‖g‖) along the last axis."""
    norms = np.linalg.norm(gradients, axis=-1, keepdims=True)
    short: Array = gradients * (radius / np.maximum(norms, radius))
    return short


def rest(
    gradients: Callable[[Array], Array], decay: float, radius: float, start: Array, *, inside: bool
) -> Array:
    """Where the noiseless rule comes to rest for small η: [d]. It does not depend on η.

    gradients: θ ↦ those of all examples [n, d]. Shrinking steps lead there from `start`, a root
    finder to the digits; RuntimeError where it does not end at a point of rest.
    """

    def step(theta: Array) -> Array:
        shift = decay * theta
        if inside:
            moved: Array = clipped(gradients(theta) + shift, radius).mean(axis=0)
        else:
            moved = clipped(gradients(theta), radius).mean(axis=0) + shift
        return moved / radius

    theta = start.astype(np.float64)
    for rate in (0.5, 0.5, 0.1, 0.02):
        for _ in range(50):
            theta = theta - rate * step(theta)
    found = root(step, theta, tol=1e-12)
    if np.linalg.norm(found.fun) > 1e-9:
        raise RuntimeError(f"no point of rest was found: {found.message}")
    return np.asarray(found.x)


def problem(regression: Regression, seed: int) -> tuple[Array, Array]:
    """x ~ N(0, I) with a column of ones for the intercept [n, d + 1]; y = xw + N(0, 0.1²)."""
    generator = np.random.default_rng(seed)
    w = np.asarray(regression.weights)
    x = generator.standard_normal((EXAMPLES, len(w)))
    y = x @ w + 0.1 * generator.standard_normal(EXAMPLES)
    return np.c_[x, np.ones(EXAMPLES)], y


def loss(theta: Array, x: Array, y: Array) -> float:
    """Half the mean squared error."""
    return float(((x @ theta - y) ** 2).mean() / 2.0)


def ridge_of(x: Array, y: Array, decay: float) -> Array:
    """The minimiser of loss + λ‖θ‖²/2."""
    hessian = x.T @ x / len(x) + decay * np.eye(x.shape[1])
    return np.asarray(np.linalg.solve(hessian, x.T @ y / len(x)), dtype=np.float64)


def regression_rest(regression: Regression, x: Array, y: Array, *, inside: bool) -> Array:
    """The point of rest on one data set, from θ = 0."""
    return rest(
        lambda theta: (x @ theta - y)[:, None] * x,
        regression.decay,
        regression.radius,
        np.zeros(x.shape[1]),
        inside=inside,
    )


def noisy_losses(regression: Regression, *, inside: bool) -> list[float]:
    """Test loss by seed, after steps on batches drawn with replacement."""
    data = [problem(regression, seed) for seed in SEEDS]
    x, y = np.stack([x for x, _ in data]), np.stack([y for _, y in data])  # [seeds, n, d], …
    generator = np.random.default_rng(0)
    theta = np.zeros((len(x), x.shape[2]))
    rows_of = np.arange(len(x))[:, None]
    for _ in range(STEPS):
        drawn = generator.integers(0, EXAMPLES, (len(x), BATCH))
        batch, labels = x[rows_of, drawn], y[rows_of, drawn]
        shift = regression.decay * theta
        each = (np.einsum("sbd,sd->sb", batch, theta) - labels)[..., None] * batch
        if inside:
            each += shift[:, None]
        noise = NOISE * regression.radius * generator.standard_normal(theta.shape)
        step = (clipped(each, regression.radius).sum(axis=1) + noise) / BATCH
        theta = theta - regression.rate * (step if inside else step + shift)
    return [
        loss(point, *problem(regression, 1000 + seed))
        for seed, point in zip(SEEDS, theta, strict=True)
    ]
