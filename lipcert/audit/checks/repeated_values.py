"""Repeated values: whether one noise has the magnitudes of another, in whatever order.

Statement: entries of two noises are independent N(0, 1) in units of their deviations. Then |z| has
a density of at most 2φ(0) < 0.8. Compared: the magnitudes a_k of K ≤ 2^12 entries of the first
noise, with those of the first 2^16 entries of the second one. An entry of magnitude at most 8 hits
if it is within w of an a_k. So permuted, mirrored, transposed noises are found, noises that differ
in signs alone, and those from a table of few values.

Threshold: what was rounded is off by e ≤ 4u|c|/s + 16u for the second noise, which follows from its
clean gradient c, known before it was drawn; w is no smaller than this and the error of the first
together. An entry that hits is within 2w of an a_k before rounding, which has at most the
probability 0.8·4w·K. Generators of float32 may draw magnitudes of 22 bits, each with at most 2^-22:
w is at least 2^-20, so that 4w·K bounds the probability of these, too (`log_hits`).
Entries that lie on the grid of a type of few bits do not count, which is fewer hits: the noise of a
gradient on that grid may lie there as well, and `noise` reports others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self, final

import numpy as np
import numpy.typing as npt

from lipcert.audit.checks.chance import ChanceTest, log_hits, power_of_ten
from lipcert.audit.checks.noise import BITS, AddedNoise, off_grid
from lipcert.core.program import FloatArray

_ENTRIES: Final = 1 << 16
_PROBES: Final = 1 << 12
_LARGEST: Final = 8.0
_LEAST_WIDTH: Final = 2.0**-20


@final
@dataclass(frozen=True, slots=True, eq=False)
class Values:
    """Magnitudes of a noise. probes: some of them, in order, off by at most `error` each.

    reach: e of each magnitude, as its clean gradient has it. counts: which may hit.
    """

    magnitudes: FloatArray
    probes: FloatArray
    error: float
    reach: FloatArray
    counts: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, item: AddedNoise) -> Self | None:
        """None where its deviation is not stated."""
        if not item.std:
            return None
        noise, clean, moved = (part[:_ENTRIES] for part in (item.noise, item.clean, item.moved))
        z, error = noise / item.std, moved / item.std
        length = np.abs(clean) + np.abs(clean + noise)
        twice = float(np.max(moved / np.maximum(length, 1e-300)))
        reach = twice * (2.0 * np.abs(clean) / item.std + _LARGEST)
        fine = np.abs(z) <= _LARGEST
        for values, slack in ((noise, moved), (z, error)):
            for bits in BITS:
                fine &= off_grid(values, bits) > slack
        precise = np.flatnonzero(error <= 2.0 * np.median(error))[:_PROBES]
        largest = float(np.max(error[precise]))
        return cls(np.abs(z), np.sort(np.abs(z[precise])), largest, reach, fine)

    def in_other(self, other: Values, what: str, where: str, most: int) -> ChanceTest:
        """Whether the other noise, drawn later or apart, has these magnitudes. what: both."""
        probes, b = self.probes, other.magnitudes[:most]
        width = np.maximum(self.error + other.reach[:most], _LEAST_WIDTH)
        expected = float(np.sum(np.minimum(1.0, 4.0 * len(probes) * width)))
        near = np.searchsorted(probes, b - width) < np.searchsorted(probes, b + width)
        hits = int(np.count_nonzero(near & other.counts[:most]))
        tail = log_hits(hits, len(b), expected)
        return ChanceTest(
            tail,
            f"{what} have {hits} of {len(b)} magnitudes in common, in whatever order, where at "
            f"most {expected:.3g} are expected (a chance of at most {power_of_ten(tail)})",
            where,
            (float(hits), expected),
            kind="values",
        )
