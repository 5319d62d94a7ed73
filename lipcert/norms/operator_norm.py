"""The ladder of certified operator norms: several sound bounds of one map, the smallest wins.

What enters: a dense or convolutional map with exact weights and the work a bound may cost. What
leaves: a `Bound` naming the rung that gave it. Every rung is sound by itself, so which ones are
tried is only a question of effort.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Final, final

import numpy as np

from lipcert.facts import Bound, Witness, no_bound
from lipcert.norms.banded import banded_norm, is_affordable
from lipcert.norms.circulant import circulant_norm
from lipcert.norms.dense import dense_norm
from lipcert.norms.explicit import explicit_cost, explicit_norm
from lipcert.norms.geometry import Geometry
from lipcert.norms.laurent import laurent_norm
from lipcert.norms.linear_map import ConvMap, DenseMap, LinearMap, PaddedConvMap
from lipcert.norms.polyphase import live_kernels, polyphase
from lipcert.norms.pooling import average_pool_norm
from lipcert.norms.proved import Proved
from lipcert.norms.reads import Reads
from lipcert.norms.scaling import largest_frobenius_norm
from lipcert.norms.windows import largest_overlap, max_pool_norm, window_multiplicity
from lipcert.norms.wrapped import wrapped_norm
from lipcert.upper import ONE, ZERO, FloatArray, Upper, gamma, norm


class Tier(Enum):
    """How much work a bound may cost."""

    QUICK = "quick"
    FAST = "fast"
    TIGHT = "tight"


@final
@dataclass(frozen=True, slots=True)
class _Effort:
    """Limits in floating-point operations.

    dense: a matrix; explicit: a Gram matrix at once; banded: one by blocks; padded: one by blocks
    behind padding, where nothing else comes close; search: frequencies.
    border: up to this many positions along a dimension, the exact norm is pursued beyond what
    `explicit` affords; on larger maps bounds by frequencies are within half a percent.
    """

    dense: float
    explicit: float
    banded: float
    padded: float
    search: float
    border: int


_EFFORTS: Final[Mapping[Tier, _Effort]] = MappingProxyType(
    {
        Tier.QUICK: _Effort(dense=3e10, explicit=0.0, banded=0.0, padded=0.0, search=0.0, border=0),
        Tier.FAST: _Effort(
            dense=3e12, explicit=6e9, banded=1e10, padded=1e11, search=1.5e12, border=20
        ),
        Tier.TIGHT: _Effort(
            dense=1e13, explicit=2e10, banded=4e12, padded=4e12, search=1e13, border=1000
        ),
    }
)


_LARGEST_MAP: Final = 100_000  # positions of a map whose exact norm may be affordable


@final
@dataclass(frozen=True, slots=True)
class InnerBound(Witness):
    """Of `padded_bound`: the bound of the same map without padding."""

    bound: Bound


@final
@dataclass(frozen=True, slots=True)
class _Rung:
    """A bound, perhaps inf, and the rule that proves it."""

    value: Upper
    rule: str
    witness: Witness | None = None

    @classmethod
    def of(cls, proved: Proved, rule: str) -> _Rung:
        """What a search has proved."""
        return cls(proved.bound, rule, proved.witness)


def operator_norm(linear_map: LinearMap, tier: Tier) -> Bound:
    """Returns B with B ≥ ‖T‖₂ for the linear map T: the smallest of the rungs that `tier` affords.

    Closed form or Frobenius norm; a matrix norm times overlap; the exact norm of a small
    operator; the frequencies of a circular map around it; the supremum over all frequencies.
    A rung that cannot improve the bound is left out.
    Witness: that of the smallest rung. Bounds by a single matrix have none: a factorisation at a
    shift just below the square of the value proves them again.
    """
    effort = _EFFORTS[tier]
    match linear_map:
        case DenseMap(weight):
            rungs = _dense(weight.array, effort)
        case ConvMap(weight, geometry, groups):
            rungs = _conv(_by_group(weight.array, geometry, groups), geometry, effort)
        case PaddedConvMap():
            rungs = _padded(linear_map, effort)
    return _smallest(rungs)


def _smallest(rungs: Sequence[_Rung]) -> Bound:
    """The bound of the smallest rung."""
    best = min(rungs, key=lambda rung: (rung.value, rung.rule))
    if best.value.is_finite:
        return Bound(best.value, best.rule, witness=best.witness)
    return no_bound(
        best.rule, "the norm of the weight exceeds the range of float64", "rescale the weights"
    )


def closed_form(rows: FloatArray) -> Upper:
    """Returns B with B ≥ ‖W‖₂ for a matrix W of one row or one column, or zero: its norm.

    Hypotheses: one side of the matrix is 1, or no entry differs from 0.
    Proof: the spectral norm of a vector is its Euclidean norm.
    Attained: always, up to rounding.
    """
    return norm(rows)


def frobenius_bound(kernels: FloatArray, geometry: Geometry) -> Upper:
    """Returns B with B ≥ ‖T‖₂ of convolutions: the largest ‖K‖_F of a group times √overlap.

    kernels: [groups, out, in, *taps]; a dense matrix has an empty geometry.
    Hypotheses: zero padding.
    Proof: each output window is K applied to a patch of the input, each input entry lies in at
    most `overlap` patches, and ‖K‖₂ ≤ ‖K‖_F. Groups act on disjoint channels.
    Attained: kernels of rank one that do not overlap.
    """
    overlap = Upper(float(largest_overlap(geometry))).sqrt()
    return largest_frobenius_norm(kernels) * overlap


def reshape_bound(kernels: FloatArray, geometry: Geometry) -> Upper:
    """Returns B with B ≥ ‖T‖₂ of convolutions: ‖[out, in · taps]‖₂ times √overlap.

    Hypotheses: zero padding.
    Proof: as `frobenius_bound`, with the spectral norm of the matrix that acts on patches.
    Attained: patches that do not overlap (1×1, stride ≥ kernel) with one wholly inside the input.
    Reference: Tsuzuku, Sato and Sugiyama 2018 (with the square root of the number of taps).
    """
    overlap = Upper(float(largest_overlap(geometry))).sqrt()
    return dense_norm(kernels.reshape(*kernels.shape[:2], -1)) * overlap


def absolute_bound(kernels: FloatArray, geometry: Geometry) -> Upper:
    """Returns B with B ≥ ‖T‖₂ of convolutions: the norm of Σ_t |K_t| of the polyphase kernel.

    Hypotheses: zero padding.
    Proof: |P(w)| ≤ Σ_t |K_t| entry by entry at every frequency w, and norms grow with
    magnitudes. The sum is rounded by a relative γ_taps.
    Attained: non-negative kernels, at frequency 0 (up to the border of the finite map).
    """
    phases = polyphase(kernels, geometry)
    shape = phases.shape
    total = np.abs(phases).reshape(*shape[:3], -1).sum(axis=3)
    taps = math.prod(shape[3:])
    return dense_norm(total) * (ONE + Upper(2.0) * gamma(taps + 1))


def padded_bound(inner: Upper, repetitions: int) -> Upper:
    """Returns B with B ≥ ‖T P‖₂ of a convolution T of an input that P pads by its own entries.

    inner: a bound of ‖T‖₂. repetitions: how often one entry stands in P x at most.
    Hypotheses: every entry of P x is an entry of x or 0.
    Proof: ‖P x‖² counts every entry of x at most `repetitions` times.
    Attained: kernels that act most on the border.
    """
    return inner * Upper(float(repetitions)).sqrt()


RULES: Final[Mapping[str, Callable[..., object]]] = MappingProxyType(
    {
        "norms.closed_form": closed_form,
        "norms.frobenius": frobenius_bound,
        "norms.reshape": reshape_bound,
        "norms.absolute": absolute_bound,
        "norms.dense": dense_norm,
        "norms.explicit": explicit_norm,
        "norms.banded": banded_norm,
        "norms.padded": padded_bound,
        "norms.laurent": laurent_norm,
        "norms.circulant": circulant_norm,
        "norms.wrapped": wrapped_norm,
        "norms.window_multiplicity": window_multiplicity,
        "norms.average_pool": average_pool_norm,
        "norms.max_pool": max_pool_norm,
    }
)
"""Rule id → the function whose docstring states and proves the rule."""


def _dense(matrix: FloatArray, effort: _Effort) -> list[_Rung]:
    """The ladder of a matrix."""
    if min(matrix.shape) <= 1 or not np.any(matrix):
        return [_Rung(closed_form(matrix), "norms.closed_form")]
    kernels = matrix[None]
    rungs = [_Rung(frobenius_bound(kernels, ()), "norms.frobenius")]
    if _dense_cost(kernels.shape) <= effort.dense:
        rungs.append(_Rung(dense_norm(kernels), "norms.dense"))
    return rungs


def _conv(kernels: FloatArray, geometry: Geometry, effort: _Effort) -> list[_Rung]:
    """The ladder of a convolution. kernels: [groups, out, in, *taps]."""
    kernels = live_kernels(kernels, geometry)
    if not np.any(kernels):
        return [_Rung(ZERO, "norms.closed_form")]
    rungs = [_Rung(frobenius_bound(kernels, geometry), "norms.frobenius")]
    if _dense_cost(kernels.shape) <= effort.dense:
        rungs.append(_Rung(reshape_bound(kernels, geometry), "norms.reshape"))
        if largest_overlap(geometry) == 1 and _has_full_window(geometry):
            return rungs  # exact
        rungs.append(_Rung(absolute_bound(kernels, geometry), "norms.absolute"))
    exact = _exact(kernels, geometry, effort)
    rungs.extend(exact)
    if exact or effort.search == 0.0:
        return rungs
    circulant = circulant_norm(kernels, geometry, effort.search)
    if circulant.bound.is_finite:
        return [*rungs, _Rung.of(circulant, "norms.circulant")]
    known = _smallest(rungs).value
    laurent = laurent_norm(kernels, geometry, known, effort.search)
    return [*rungs, _Rung.of(laurent, "norms.laurent")]


def _padded(padded: PaddedConvMap, effort: _Effort) -> list[_Rung]:
    """The ladder of a convolution behind padding."""
    kernels = _by_group(padded.weight.array, padded.geometry, padded.groups)
    reads = padded.reads()
    rungs: list[_Rung] = []
    if effort.search > 0.0:
        wrapped = wrapped_norm(kernels, padded.geometry, reads, effort.search)
        rungs = [_Rung.of(wrapped, "norms.wrapped")]
        if wrapped.bound.is_finite and _has_every_row(padded.geometry, reads):
            return rungs  # exact, or nearly so
    inner = _smallest(_conv(kernels, padded.geometry, effort))
    outer = padded_bound(inner.value, padded.repetitions())
    rungs.append(_Rung(outer, "norms.padded", InnerBound(inner)))
    return rungs + _banded(kernels, reads, effort.padded)


def _has_every_row(geometry: Geometry, reads: Sequence[Reads]) -> bool:
    """Whether a circular convolution keeps all of its outputs."""
    pairs = zip(geometry, reads, strict=True)
    return all(table.outputs * window.stride == table.size for window, table in pairs)


def _banded(kernels: FloatArray, reads: Sequence[Reads], budget: float) -> list[_Rung]:
    """The norm of the finite operator, where blocks of its Gram matrix are affordable."""
    if math.prod(table.size for table in reads) > _LARGEST_MAP:
        return []
    if not is_affordable(kernels.shape, reads, budget):
        return []
    bound = banded_norm(kernels, reads)
    return [_Rung(bound, "norms.banded")] if bound.is_finite else []


def _exact(kernels: FloatArray, geometry: Geometry, effort: _Effort) -> list[_Rung]:
    """The norm of the finite operator, where its Gram matrix is affordable."""
    if explicit_cost(kernels.shape, geometry) <= effort.explicit:
        return [_Rung(explicit_norm(kernels, geometry), "norms.explicit")]
    if not _is_small(geometry, effort):
        return []
    return _banded(kernels, [Reads.of(window) for window in geometry], effort.banded)


def _is_small(geometry: Geometry, effort: _Effort) -> bool:
    """Whether the border of the map matters enough for this effort."""
    return min(window.outputs for window in geometry) <= effort.border


def _has_full_window(geometry: Geometry) -> bool:
    """Whether some window lies wholly on the input."""
    return all(max(window.reads()) == window.taps for window in geometry)


def _by_group(weight: FloatArray, geometry: Geometry, groups: int) -> FloatArray:
    """[groups, out/groups, in/groups, *taps]; ValueError where weight and geometry disagree."""
    taps = tuple(window.taps for window in geometry)
    if weight.shape[2:] != taps or weight.shape[0] % groups:
        raise ValueError(f"a weight of shape {weight.shape} does not fit taps {taps}")
    return weight.reshape(groups, weight.shape[0] // groups, *weight.shape[1:])


def _dense_cost(shape: tuple[int, ...]) -> float:
    """Floating-point operations, roughly, of a matrix norm of kernels of this shape."""
    groups, outer, inner, *taps = shape
    small, large = sorted((outer, inner * math.prod(taps)))
    return groups * (2.0 * small**2 * large + 3.0 * small**3)
