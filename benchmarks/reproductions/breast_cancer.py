"""Barczewski and Ramon (2024), Table 1: breast cancer at ε = 1.672, soundly accounted.

What enters: 569 examples of 30 features, a perceptron of one hidden layer. What leaves: test
accuracies of DP-SGD, Lip-DP-SGD and Fix-Lip-DP-SGD, and whether the printed order is found.
The three allocations cost the same ε.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from scipy.stats import wilcoxon

from benchmarks.reproductions.methods import dp_sgd, held_weights
from benchmarks.reproductions.rows import Row, Verdict
from benchmarks.reproductions.sample import Sample
from benchmarks.reproductions.study import (
    Method,
    PlannedStudy,
    accuracies,
    chosen,
    perceptron,
    summary,
)
from lipcert.training import FixedWeightNorm, WeightClipping

__all__ = ["rows"]

STUDY: Final = PlannedStudy("breast cancer", 1.672, 1.0 / 569.0, batch_size=64, epochs=20)
METHODS: Final[tuple[tuple[Method, float], ...]] = (
    (dp_sgd("DP-SGD", perceptron), 0.773),
    (held_weights("Lip-DP-SGD, optimal allocation", perceptron, WeightClipping), 0.798),
    (
        held_weights("Lip-DP-SGD, per-layer allocation", perceptron, WeightClipping, "per-layer"),
        0.798,
    ),
    (held_weights("Lip-DP-SGD, global allocation", perceptron, WeightClipping, "global"), 0.798),
    (held_weights("Fix-Lip-DP-SGD", perceptron, FixedWeightNorm), 0.7),
)
"""With the accuracies of Table 1."""
ORDER: Final = (
    ("Lip-DP-SGD, optimal allocation", "DP-SGD"),
    ("Lip-DP-SGD, per-layer allocation", "DP-SGD"),
    ("Lip-DP-SGD, optimal allocation", "Fix-Lip-DP-SGD"),
    ("DP-SGD", "Fix-Lip-DP-SGD"),
)
"""The first above the second, in the paper."""


def rows() -> Iterator[Row]:
    """Accuracies, then the order."""
    found: dict[str, list[float]] = {}
    for method, printed in METHODS:
        best = chosen(STUDY, method)
        found[method.name] = accuracies(STUDY, best)
        sample = Sample.of(found[method.name])
        near = sample.low <= printed <= sample.high
        verdict = Verdict.REPRODUCED if near else Verdict.DIFFERENT
        yield Row(method.name, f"{printed:.3f}", summary(found[method.name]), verdict)
    for first, second in ORDER:
        yield order_row(first, second, found)


def order_row(first: str, second: str, found: dict[str, list[float]]) -> Row:
    """Paired by seed."""
    differences = [a - b for a, b in zip(found[first], found[second], strict=True)]
    gain = Sample.of(differences)
    p = float(wilcoxon(differences, zero_method="zsplit").pvalue)
    return Row(
        f"{first} minus {second}",
        "above 0",
        f"{gain} (95 %, paired), Wilcoxon p = {p:.2g}",
        Verdict.between(gain.low, gain.high),
    )
