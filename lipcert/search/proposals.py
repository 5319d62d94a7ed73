"""Proposals: norms of one linear map that the core may be able to prove, by method.

Input: the core's kernel of a step or of a run. Output: claims, all of them estimates of true upper
bounds, without a margin: the caller adds the margin that a proof needs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import starmap
from types import MappingProxyType
from typing import Final, final

import numpy as np

from lipcert.core.norms.convolution import Convolution, Kernel
from lipcert.core.norms.explicit import PANEL, Strip, strips_of
from lipcert.core.norms.lines import axes_of, phases_of
from lipcert.search.eigenvalues import Array, spectral_norm, strips_norm
from lipcert.search.evidence import NormClaim
from lipcert.search.torus import torus_norm
from lipcert.settings.values import TierName


@final
@dataclass(frozen=True, slots=True)
class _Effort:
    """Floating-point operations that a proof may cost: of a matrix, and of a map written out.

    worth: by which share the latter has to be smaller than the norm of a torus, where it costs.
    """

    matrix: float
    explicit: float
    torus: bool
    worth: float = 0.0


_EFFORTS: Final[Mapping[TierName, _Effort]] = MappingProxyType(
    {
        "quick": _Effort(matrix=3e10, explicit=0.0, torus=False),
        "fast": _Effort(matrix=3e12, explicit=3e10, torus=True, worth=1e-3),
        "tight": _Effort(matrix=1e13, explicit=1e12, torus=True),
    }
)
_CHEAP: Final = 2e9
"""operations of the proof of a map written out that are always taken"""


def proposals(kernel: Kernel, tier: TierName) -> tuple[NormClaim, ...]:
    """Claims for every map by a kernel in its interval, the smallest first."""
    lo, hi = kernel.entries.lo, kernel.entries.hi
    middle = lo if lo is hi or np.array_equal(lo, hi) else 0.5 * lo + 0.5 * hi
    frame = replace(kernel.frame, kernel=middle)
    error = 0.0
    if middle is not lo:
        radius = np.maximum(hi - middle, middle - lo)
        error = math.sqrt(frame.overlap()) * float(np.linalg.norm(radius.ravel()))
    effort = _EFFORTS[tier]
    found = _of_matrix(frame, effort) if kernel.is_matrix else _of_windows(frame, effort)
    raised = (replace(claim, bound=claim.bound + error) for claim in found)
    finite = (claim for claim in raised if math.isfinite(claim.bound))
    return tuple(sorted(finite, key=lambda claim: claim.bound))


def _of_matrix(frame: Convolution, effort: _Effort) -> Iterator[NormClaim]:
    """One norm, exact where it is affordable."""
    yield NormClaim(_norm(frame.kernel[:, :, 0], effort), "dense")


def _of_windows(frame: Convolution, effort: _Effort) -> Iterator[NormClaim]:
    """By every method that can improve on those before it."""
    overlap = frame.overlap()
    rows = np.split(frame.kernel.reshape(len(frame.kernel), -1), frame.groups)
    yield NormClaim(math.sqrt(overlap) * max(_norm(each, effort) for each in rows), "windows")
    if overlap == 1 and _has_full_window(frame):
        return  # exact
    axes = axes_of(frame)
    if all(axis.taps and axis.is_plain for axis in axes):
        with np.errstate(over="ignore"):
            totals = np.abs(phases_of(frame, axes)).sum(axis=0)
        yield NormClaim(max(_norm(total, effort) for total in totals), "absolute")
    norm, cost = math.inf, math.inf
    if effort.explicit and frame.is_small:
        blocks = list(strips_of(frame))
        cost = sum(starmap(_strips_cost, blocks))
        norm = max(starmap(strips_norm, blocks)) if cost <= effort.explicit else math.inf
    found = torus_norm(frame) if effort.torus and cost > _CHEAP else None
    if found is not None and found.norm <= norm * (1.0 + effort.worth):
        yield NormClaim(found.norm, "torus", found.twists, found.counts)
    elif math.isfinite(norm):
        yield NormClaim(norm, "explicit")


def _norm(matrix: Array, effort: _Effort) -> float:
    """‖W‖₂, or ‖W‖_F where that would take too long."""
    small, large = sorted(matrix.shape)
    if _cost(small, large) <= effort.matrix:
        return spectral_norm(matrix)
    largest = float(np.abs(matrix).max()) or 1.0
    return float(np.linalg.norm((matrix / largest).ravel())) * largest


def _cost(small: int, large: int) -> float:
    """Operations of a Gram matrix, a factor, and the product of the factor by itself."""
    return 2.0 * small**2 * (large + small)


def _strips_cost(strips: Sequence[Strip], columns: int) -> float:
    """Operations of the factor of a Gram matrix that lies in a band."""
    band = max((strip.rows.shape[1] for strip in strips), default=0)
    return 2.0 * columns * min(columns, band + PANEL) ** 2


def _has_full_window(frame: Convolution) -> bool:
    """Whether some output reads an entry through every tap."""
    return all((frame.reads(axis) >= 0).all(axis=1).any() for axis in range(len(frame.size)))
