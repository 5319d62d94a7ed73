"""Digits and wine at ε = 3: all mechanisms on the same networks, with equal effort of tuning.

What enters: two data sets of scikit-learn. What leaves: test accuracies. No paper has these rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from benchmarks.reproductions.methods import PLAIN, backprop_clipping, dp_sgd, held_weights
from benchmarks.reproductions.rows import Row
from benchmarks.reproductions.study import (
    PlannedStudy,
    accuracies,
    chosen,
    summary,
)
from lipcert.training import Clipless, FixedWeightNorm, WeightClipping

__all__ = ["rows"]

WEIGHT_DECAY: Final = 0.01
STUDIES: Final = (
    PlannedStudy("digits", 3.0, 1e-5, batch_size=512, epochs=20, seeds=5),
    PlannedStudy("wine", 3.0, 1e-5, batch_size=64, epochs=20, seeds=5),
)
METHODS: Final = (
    held_weights("clipless", PLAIN, Clipless),
    held_weights("weight-clipping", PLAIN, WeightClipping),
    held_weights("fixed-weight-norm", PLAIN, FixedWeightNorm),
    backprop_clipping("backprop-clipping", PLAIN),
    dp_sgd("gradient-clipping, flat", PLAIN),
    dp_sgd("gradient-clipping, per group", PLAIN, scope="group"),
    dp_sgd("gradient-clipping, decay inside", PLAIN, decay="inside", weight_decay=WEIGHT_DECAY),
)


def rows() -> Iterator[Row]:
    """Every method on every set."""
    for study in STUDIES:
        for method in METHODS:
            best = chosen(study, method)
            found = accuracies(study, best)
            yield Row(f"{study.problem}: {method.name} ({best.label})", "–", summary(found))
