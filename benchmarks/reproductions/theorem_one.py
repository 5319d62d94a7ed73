"""Béthune et al. (2024), Theorem 1: closed forms of the gradient bound of a dense network.

What enters: D layers with ‖W‖ ≤ U, ‖b‖ ≤ B, an S-Lipschitz activation that keeps 0, α = US, inputs
of norm X₀, a loss of gradient norm L. What leaves: closed forms next to the recursion they sum up
(Lemmas 1 to 4), next to what `lipcert.analyze` proves of such networks over their constraint set.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Final, final

from torch import nn

from benchmarks.reproductions.networks import WIDTH, DenseNetwork, imported
from benchmarks.reproductions.rows import Row, Verdict
from lipcert import ConstraintSpec, ImportedModel, Settings, analyze

__all__ = ["rows"]

DEPTHS: Final = (1, 3, 8)
LOSS: Final = math.sqrt(WIDTH / (WIDTH - 1.0))
"""of the Kantorovich–Rubinstein loss over 8 classes, whose gradient has the same norm everywhere"""


@final
@dataclass(frozen=True, slots=True)
class Dense:
    """What the theorem speaks of. biases: None for a network without them, as opposed to B = 0."""

    depth: int
    weight: float
    slope: float
    biases: float | None
    radius: float = 2.0
    loss: float = LOSS

    @property
    def factor(self) -> float:
        """α."""
        return self.weight * self.slope


WEIGHTS: Final = (0.7, 1.0, 1.3)
SLOPED: Final = ((2.0, 0.35), (2.0, 0.5), (2.0, 0.65))
"""(U, S) of the same three α; LipCert is asked for S = 1 alone"""


def rows() -> Iterator[Row]:
    """α below, at and above 1, without and with biases, and the limits of deep networks."""
    for (weight, slope), plain in zip(SLOPED, WEIGHTS, strict=True):
        for biases in (None, 0.5):
            yield closed_form_row(weight, slope, plain, biases)
    yield cross_entropy_row()
    yield from limit_rows()


def recursion(net: Dense) -> float:
    """‖∇‖ by Lemmas 1 to 4: activations forward, cotangents backward, one layer at a time."""
    values = [net.radius]
    for _ in range(net.depth):
        values.append(net.slope * (net.weight * values[-1] + (net.biases or 0.0)))
    cotangent, squares = net.loss, 0.0
    for value in reversed(values[:-1]):
        cotangent *= net.slope
        squares += cotangent**2 * (value**2 + (0.0 if net.biases is None else 1.0))
        cotangent *= net.weight
    return math.sqrt(squares)


def closed_form(net: Dense) -> float:
    """The sums of the theorem carried out: with h_t = Aα^t + K (or X₀ + tSB),
    L·S·√Σ_t α^{2(D−t)}·(h_{t−1}² + 1), where the 1 is the bias."""
    a, depth = net.factor, net.depth
    shift = net.slope * (net.biases or 0.0)
    one = 0.0 if net.biases is None else 1.0
    if net.weight * net.slope == 1.0:
        powers = net.radius * shift * depth * (depth - 1)
        squares = shift**2 * (depth - 1) * depth * (2 * depth - 1) / 6.0
        total = depth * (net.radius**2 + one) + powers + squares
    else:
        rest = shift / (1.0 - a)
        start = net.radius - rest
        total = (
            (rest**2 + one) * (1.0 - a ** (2 * depth)) / (1.0 - a * a)
            + 2.0 * start * rest * a ** (depth - 1) * (1.0 - a**depth) / (1.0 - a)
            + depth * start**2 * a ** (2 * depth - 2)
        )
    return net.loss * net.slope * math.sqrt(total)


def proved(net: Dense, loss: str = "kr") -> float:
    """What LipCert proves, over all weights within the constraints."""
    settings = Settings(
        loss=loss,
        input_norm=net.radius,
        constraint=ConstraintSpec("spectral", net.weight),
        bias_norm=net.biases,
    )
    return analyze(network(net.depth, net.biases is not None), settings).network.grad_norm or 0.0


@cache
def network(depth: int, bias: bool) -> ImportedModel:
    """ReLU keeps 0 and is 1-Lipschitz."""
    return imported(DenseNetwork(depth, nn.ReLU(), bias=bias))


def closed_form_row(weight: float, slope: float, plain: float, biases: float | None) -> Row:
    """One case, at all depths."""
    sloped = [Dense(depth, weight, slope, biases) for depth in DEPTHS]
    flat = [Dense(depth, plain, 1.0, biases) for depth in DEPTHS]
    off = max(abs(closed_form(net) / recursion(net) - 1.0) for net in (*sloped, *flat))
    ratios = [proved(net) / closed_form(net) for net in flat]
    depths = ", ".join(map(str, DEPTHS))
    bounds = ", ".join(f"{closed_form(net):.4f}" for net in flat)
    case = "=" if plain == 1.0 else "<" if plain < 1.0 else ">"
    found = (
        f"{bounds} for D = {depths}; LipCert: {', '.join(f'{r:.6f}' for r in ratios)} times that"
    )
    return Row(
        f"α {case} 1 ({plain:g}), {'no biases' if biases is None else f'‖b‖ ≤ {biases:g}'}",
        "closed form = recursion of bounds",
        found,
        Verdict.of(off < 1e-12 and all(abs(ratio - 1.0) < 1e-9 for ratio in ratios)),
    )


def cross_entropy_row() -> Row:
    """Where the logits are small, cross-entropy does not reach its √2; the theorem takes it so."""
    nets = [Dense(depth, 1.0, 1.0, None, loss=math.sqrt(2.0)) for depth in DEPTHS]
    ratios = [proved(net, "cross-entropy") / closed_form(net) for net in nets]
    return Row(
        "α = 1, no biases, cross-entropy",
        f"√2·X₀·√D = {', '.join(f'{closed_form(net):.4f}' for net in nets)}",
        f"LipCert: {', '.join(f'{ratio:.4f}' for ratio in ratios)} times that, by the logits' norm",
        Verdict.of(all(ratio <= 1.0 + 1e-9 for ratio in ratios)),
    )


def limit_rows() -> Iterator[Row]:
    """What the paper says of deep networks, by the recursion."""
    shallow = Dense(50, 0.7, 1.0, 0.5)
    wide = replace(shallow, radius=200.0)
    deep = replace(shallow, depth=100)
    base, far, long = recursion(shallow), recursion(wide), recursion(deep)
    yield Row(
        "α < 1 (0.7), ‖b‖ ≤ 0.5, D = 50",
        "independent of D and X₀ in the limit",
        f"{base:.4f}; {long:.4f} for twice D, {far:.4f} for 100 times X₀",
        Verdict.of(max(abs(far / base - 1.0), abs(long / base - 1.0)) < 1e-3),
    )
    grown = Dense(50, 1.3, 1.0, 0.5)
    growth = recursion(replace(grown, depth=51)) / recursion(grown)
    yield Row(
        "α > 1 (1.3), ‖b‖ ≤ 0.5, D = 50",
        "explodes like α^D",
        f"one layer more: {growth:.4f} times as much",
        Verdict.of(1.3 <= growth < 1.35),
    )
    linear = Dense(10_000, 1.0, 1.0, None)
    ratio = recursion(replace(linear, depth=20_000)) / recursion(linear)
    biased = replace(linear, biases=0.5)
    steep = recursion(replace(biased, depth=20_000)) / recursion(biased)
    yield Row(
        "α = 1, D = 10,000 to 20,000",
        "grows like √D without biases",
        f"like D^{math.log2(ratio):.3f} without biases, D^{math.log2(steep):.3f} with ‖b‖ ≤ 0.5",
        Verdict.of(abs(math.log2(ratio) - 0.5) < 1e-3),
    )
