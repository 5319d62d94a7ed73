"""Repeated values: whether one noise has the magnitudes of another, in any order.

Statement: entries of two noises are independent N(0, 1) in units of their deviations. Then |z| has
a density of at most 2φ(0) < 0.8. Compared: the magnitudes a_k of K ≤ 2^12 entries of the first
noise, with those of the first 2^16 entries of the second one. An entry of magnitude at most 8 hits
if it is within w of an a_k. This finds permuted, mirrored and transposed noises, noises that differ
only in signs, and those from a table of few values.

Threshold: rounding moves an entry by e ≤ 4u|c|/s + 16u in the second noise, which follows from its
clean gradient c, known before it was drawn; w is at least the sum of this and the error of the
first. An entry that hits is within 2w of an a_k before rounding, which has at most the probability
0.8·4w·K. Generators of float32 may draw magnitudes of 22 bits, each with at most 2^-22: w is at
least 2^-20, so that 4w·K bounds the probability of these, too (`log_hits`).

A noise is also compared with itself: K entries of its first half with the entries after them. This
finds noise of few bits, which does not hide the last bits of a gradient that has more of them.
Noise of few bits beside a gradient of as few is not counted, which only means fewer hits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from lipcert.audit.checks.chance import ChanceTest, log_hits, power_of_ten
from lipcert.audit.checks.noise import AddedNoise
from lipcert.core.program import FloatArray

_ENTRIES: Final = 1 << 16
_PROBES: Final = 1 << 12
_LARGEST: Final = 8.0
_LEAST_WIDTH: Final = 2.0**-20


@dataclass(frozen=True, slots=True, eq=False)
class Values:
    """Magnitudes of a noise.

    probes: some of the first half, in order, each off by at most `error`; probed: they come before
    this place. reach: e of each magnitude, from its clean gradient. counts: which may hit.
    """

    magnitudes: FloatArray
    probes: FloatArray
    probed: int
    error: float
    reach: FloatArray
    counts: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, item: AddedNoise, most: int = _ENTRIES) -> Self | None:
        """Return the values of this many entries; None if its deviation is not stated."""
        if not item.std:
            return None
        noise, clean, moved = (
            part[: min(most, _ENTRIES)] for part in (item.noise, item.clean, item.moved)
        )
        z, error = noise / item.std, moved / item.std
        length = np.abs(clean) + np.abs(clean + noise)
        twice = float(np.max(moved / np.maximum(length, 1e-300)))
        reach = twice * (2.0 * np.abs(clean) / item.std + _LARGEST)
        fine = (np.abs(z) <= _LARGEST) & ~(item.is_coarse & item.is_plain)[: len(z)]
        precise = np.flatnonzero(error <= 2.0 * np.median(error))[: min(_PROBES, (len(z) + 1) // 2)]
        probes = np.sort(np.abs(z[precise]))
        largest = float(np.max(error[precise]))
        return cls(np.abs(z), probes, int(precise[-1]) + 1, largest, reach, fine)

    def in_other(self, other: Values, what: str, where: str, most: int) -> ChanceTest:
        """Test whether another noise has these magnitudes, or the same noise has them further on.

        what: a description of both.
        """
        some = slice(self.probed if other is self else 0, most)
        probes, b = self.probes, other.magnitudes[some]
        width = np.maximum(self.error + other.reach[some], _LEAST_WIDTH)
        expected = float(np.sum(np.minimum(1.0, 4.0 * len(probes) * width)))
        near = np.searchsorted(probes, b - width) < np.searchsorted(probes, b + width)
        hits = int(np.count_nonzero(near & other.counts[some]))
        tail = log_hits(hits, max(len(b), 1), expected)
        return ChanceTest(
            tail,
            f"{what} have {hits} of {len(b)} magnitudes in common, in whatever order, where at "
            f"most {expected:.3g} are expected (a chance of at most {power_of_ten(tail)})",
            where,
            (float(hits), expected),
            kind="values",
        )
