"""Guo (2024): decoupled weight decay under clipping, and decay inside the clip.

What enters: the scalar example and the synthetic regressions of the paper. What leaves: where both
rules come to rest, and what they reach with noise, next to the regularised optimum.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from benchmarks.reproductions.regressions import (
    BATCH,
    NOISE,
    REGRESSIONS,
    SEEDS,
    STEPS,
    Regression,
    loss,
    noisy_losses,
    problem,
    regression_rest,
    rest,
    ridge_of,
)
from benchmarks.reproductions.rows import Row, Verdict
from benchmarks.reproductions.sample import Sample

__all__ = ["rows"]

RADIUS, DECAY, TARGET = 1.0, 0.5, 3.8
STUCK: Final = 3.0
"""(1 + 1/λ)R: the paper's threshold for θ*"""


def rows() -> Iterator[Row]:
    """The scalar example, the regressions, and the claim that fails."""
    yield from scalar_rows()
    for regression in REGRESSIONS:
        yield from regression_rows(regression)
    yield noisy_row(REGRESSIONS[2])
    yield from stationary_rows()


def scalar_rest(target: float, *, inside: bool, rate: float = 0.1) -> float:
    """ℓ(θ) = (θ − θ*)²/2 from θ = 0."""
    theta = 0.0
    for _ in range(20_000):
        gradient = theta - target + (DECAY * theta if inside else 0.0)
        step = gradient * min(1.0, RADIUS / max(abs(gradient), RADIUS))
        theta = theta - rate * (step if inside else step + DECAY * theta)
    return theta


def scalar_rows() -> Iterator[Row]:
    """R = 1, λ = ½, θ* = 3.8, learning rates 0.01, 0.1 and 0.5."""
    setting = f"R = {RADIUS:g}, λ = {DECAY:g}, θ* = {TARGET:g}"
    ends = [scalar_rest(TARGET, inside=False, rate=rate) for rate in (0.01, 0.1, 0.5)]
    found = ", ".join(f"{end:.6f}" for end in ends)
    near = all(abs(end - RADIUS / DECAY) < 1e-6 for end in ends)
    yield Row(f"{setting}: decoupled decay", "rests at R/λ = 2", found, Verdict.of(near))

    ridge = TARGET / (1.0 + DECAY)
    end = scalar_rest(TARGET, inside=True)
    claim = f"rests at θ*/(1 + λ) = {ridge:.6f}"
    near = abs(end - ridge) < 1e-6
    yield Row(f"{setting}: decay inside", claim, f"{end:.6f}", Verdict.of(near))

    targets = (2.9, 3.1, 5.0, 100.0)
    ends = [scalar_rest(target, inside=False) for target in targets]
    found = ", ".join(
        f"{end:.4f} for θ* = {target:g}" for end, target in zip(ends, targets, strict=True)
    )
    holds = all(
        (abs(end - RADIUS / DECAY) < 1e-6) == (target > STUCK)
        for end, target in zip(ends, targets, strict=True)
    )
    yield Row(
        "R = 1, λ = 0.5: decoupled decay",
        f"rests at R/λ for every θ* > (1 + 1/λ)R = {STUCK:g}",
        found,
        Verdict.of(holds),
    )


def regression_rows(regression: Regression) -> Iterator[Row]:
    """Test losses at the points of rest, over data sets."""
    losses: dict[str, list[float]] = {"decoupled": [], "inside": [], "ridge": []}
    for seed in SEEDS:
        x, y = problem(regression, seed)
        test = problem(regression, 1000 + seed)
        for name in ("decoupled", "inside"):
            theta = regression_rest(regression, x, y, inside=name == "inside")
            losses[name].append(loss(theta, *test))
        losses["ridge"].append(loss(ridge_of(x, y, regression.decay), *test))
    outer, inner, best = (Sample.of(losses[name]) for name in ("decoupled", "inside", "ridge"))
    yield Row(
        f"{regression.name}: test loss at rest",
        "decoupled poor, inside almost unaffected",
        f"decoupled {outer}, inside {inner}, ridge optimum {best}",
        poor_and_unaffected(regression, outer, inner),
    )


def noisy_row(regression: Regression) -> Row:
    """The same with the noise and the learning rate of the paper: both rules, all seeds at once."""
    decoupled, inside = (
        Sample.of(noisy_losses(regression, inside=inside)) for inside in (False, True)
    )
    steps = f"σ = {NOISE:g}, η = {regression.rate:g}, {STEPS:,} steps of {BATCH}"
    return Row(
        f"{regression.name}: test loss, {steps}",
        "decoupled poor, inside almost unaffected",
        f"decoupled {decoupled}, inside {inside}",
        poor_and_unaffected(regression, decoupled, inside),
    )


def poor_and_unaffected(regression: Regression, decoupled: Sample, inside: Sample) -> Verdict:
    """Above a fifth, below a tenth of the loss of θ = 0, intervals included."""
    start = sum(w * w for w in regression.weights) / 2.0
    return Verdict.of(decoupled.low > 0.2 * start and inside.high < 0.1 * start)


def stationary_rows() -> Iterator[Row]:
    """Whether decay inside stops at minima of the regularised loss alone."""
    claim = "stops at a local minimum of the regularised loss alone"
    places, decay = np.array([0.0] * 9 + [10.0]), 0.1
    end = rest(
        lambda theta: (theta - places)[:, None], decay, RADIUS, np.array([5.0]), inside=True
    )[0]
    best = places.mean() / (1.0 + decay)
    slope = end - places.mean() + decay * end
    yield Row(
        "ℓ = (θ − y)²/2 with y = 0 nine times and 10 once, R = 1, λ = 0.1: decay inside",
        claim,
        f"rests at {end:.4f}, where the slope is {slope:.4f}; the only minimum is at {best:.4f}",
        Verdict.of(abs(slope) < 1e-6),
    )
    regression = REGRESSIONS[2]
    ends, optima = [], []
    for seed in SEEDS:
        x, y = problem(regression, seed)
        ends.append(float(regression_rest(regression, x, y, inside=True)[0]))
        optima.append(float(ridge_of(x, y, regression.decay)[0]))
    reached, wanted = Sample.of(ends), Sample.of(optima)
    yield Row(
        f"{regression.name}: slope at rest, decay inside",
        claim,
        f"w = {reached}; the only minimum has w = {wanted}",
        Verdict.of(reached.low <= wanted.high and wanted.low <= reached.high),
    )
