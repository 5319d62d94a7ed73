"""Barczewski and Ramon (2024), Tables 1 and 5: breast cancer at ε = 1.672, soundly accounted.

What enters: 569 examples of 30 features, a perceptron of one hidden layer, with and without group
normalisation. What leaves: test accuracies of DP-SGD, Lip-DP-SGD and Fix-Lip-DP-SGD, and whether
the printed order is found. The three allocations cost the same ε; a method is tuned under the
optimal one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, final

from scipy.stats import wilcoxon

from benchmarks.reproductions.methods import NORMALISED, PLAIN, dp_sgd, held_weights
from benchmarks.reproductions.rows import Row, Verdict
from benchmarks.reproductions.sample import Sample
from benchmarks.reproductions.study import (
    Method,
    PlannedStudy,
    accuracies,
    chosen,
    summary,
)
from lipcert.settings.values import AllocationName
from lipcert.training import FixedWeightNorm, WeightClipping

__all__ = ["rows"]

STUDY: Final = PlannedStudy(
    "breast cancer", 1.672, 1.0 / 569.0, batch_size=256, epochs=20, seeds=10
)


@final
@dataclass(frozen=True, slots=True)
class Entry:
    """A method and the accuracy that the paper prints; allocations: how its noise is split."""

    method: Method
    printed: float
    allocations: tuple[AllocationName, ...] = ()


SPLITS: Final[tuple[AllocationName, ...]] = ("optimal", "per-layer", "global")
ENTRIES: Final = (
    Entry(dp_sgd("DP-SGD", PLAIN), 0.773),
    Entry(held_weights("Lip-DP-SGD", PLAIN, WeightClipping), 0.798, SPLITS),
    Entry(held_weights("Fix-Lip-DP-SGD", PLAIN, FixedWeightNorm), 0.7, SPLITS),
    Entry(dp_sgd("DP-SGD, GN", NORMALISED), 0.813),
    Entry(held_weights("Lip-DP-SGD, GN", NORMALISED, WeightClipping), 0.924, ("optimal",)),
    Entry(
        held_weights("Fix-Lip-DP-SGD, GN", NORMALISED, FixedWeightNorm),
        0.519,
        ("optimal",),
    ),
)
"""Table 1, then the columns of Table 5 with group normalisation."""
ORDER: Final = (
    ("Lip-DP-SGD, optimal", "DP-SGD"),
    ("Lip-DP-SGD, per-layer", "DP-SGD"),
    ("Lip-DP-SGD, optimal", "Fix-Lip-DP-SGD, optimal"),
    ("DP-SGD", "Fix-Lip-DP-SGD, optimal"),
    ("Lip-DP-SGD, GN, optimal", "DP-SGD, GN"),
    ("Lip-DP-SGD, GN, optimal", "Lip-DP-SGD, optimal"),
    ("DP-SGD, GN", "DP-SGD"),
)
"""The first above the second, in the paper."""


def rows() -> Iterator[Row]:
    """Accuracies, then the order."""
    found: dict[str, list[float]] = {}
    for entry in ENTRIES:
        for name, values, tuned in measured(entry):
            found[name] = values
            sample = Sample.of(values)
            near = sample.low <= entry.printed <= sample.high
            verdict = Verdict.REPRODUCED if near else Verdict.DIFFERENT
            yield Row(f"{name} ({tuned})", f"{entry.printed:.3f}", summary(values), verdict)
    for first, second in ORDER:
        yield order_row(first, second, found)


def measured(entry: Entry) -> Iterator[tuple[str, list[float], str]]:
    """Name, accuracies and setting, for every allocation."""
    best = chosen(STUDY, entry.method)
    if not entry.allocations:
        yield entry.method.name, accuracies(STUDY, best), best.label
    for split in entry.allocations:
        again = replace(best, mechanism=replace(best.mechanism, allocation=split))
        yield f"{entry.method.name}, {split}", accuracies(STUDY, again), best.label


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
