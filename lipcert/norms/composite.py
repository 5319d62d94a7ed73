"""Composite: linear maps around a convolution, folded into one convolution.

What enters: a convolution, and diagonals, averages or padding before or behind it, or an identity
beside it. What leaves: one kernel, and how far the true map can be from the convolution by it.

Invariant: ‖(true map) − (convolution by `kernel`)‖₂ ≤ error. A kernel that is off by ρ in the
Frobenius norm makes a convolution that is off by at most κρ, κ its `window_multiplicity`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, final

import numpy as np

from lipcert.facts import Bound, no_bound, sum_of
from lipcert.interval import Interval
from lipcert.norms.geometry import Geometry, Window
from lipcert.norms.linear_map import ConvMap, LinearMap, PaddedConvMap
from lipcert.norms.pooling import average_pool_norm
from lipcert.norms.reads import Border
from lipcert.norms.windows import window_multiplicity
from lipcert.operand import Operand
from lipcert.upper import UNIT_ROUNDOFF, ZERO, FloatArray, Upper, norm

_UNIT: Final = Upper(UNIT_ROUNDOFF)
_SMALLEST_NORMAL: Final = 2.0**-1022


@final
@dataclass(frozen=True, slots=True, eq=False)
class Composite:
    """The convolution by `kernel`, up to `error`; with a border, of a padded input.

    kernel: [out, in/groups, *taps]. pads: how many entries a border adds, per dimension.
    """

    kernel: FloatArray
    geometry: Geometry
    groups: int = 1
    error: Upper = ZERO
    border: Border | None = None
    pads: tuple[tuple[int, int], ...] = ()

    def norm(self, certify: Callable[[LinearMap], Bound]) -> Bound:
        """Returns B with B ≥ the norm of the true map: that of the kernel, plus the error.

        Hypotheses: certify bounds operator norms.
        Proof: triangle inequality.
        Attained: up to the rounding of the kernel, where certify is exact.
        """
        if not (self.error.is_finite and np.all(np.isfinite(self.kernel))):
            return no_bound("norms.composite", "the joint kernel exceeds the range of float64")
        rounding = Bound(self.error, "norms.composite")
        return sum_of("norms.composite", certify(self.linear_map()), rounding)

    def linear_map(self) -> LinearMap:
        """The convolution by the kernel."""
        self.kernel.setflags(write=False)
        weight = Operand(self.kernel)
        if self.border is None:
            return ConvMap(weight, self.geometry, self.groups)
        return PaddedConvMap(weight, self.geometry, self.pads, self.border, self.groups)

    def after_zeros(self, pads: Sequence[tuple[int, int]]) -> Composite | None:
        """Behind padding with constants, of which the derivative is 0."""
        if self.border is not None:
            return None
        windows = []
        for window, (begin, end) in zip(self.geometry, pads, strict=True):
            size = window.size - begin - end
            if size < 1:
                return None
            before, after = window.pad_begin + begin, window.pad_end + end
            windows.append(replace(window, size=size, pad_begin=before, pad_end=after))
        return replace(self, geometry=tuple(windows))

    def after_border(self, pads: Sequence[tuple[int, int]], border: Border) -> Composite | None:
        """Behind padding with entries of the input itself."""
        sizes = [w.size - sum(each) for w, each in zip(self.geometry, pads, strict=True)]
        if self.border is not None or min(sizes) < 1:
            return None
        padded = replace(self, border=border, pads=tuple(pads))
        return replace(padded, error=self.error * padded._repetition_root())

    def after_scaling(self, slopes: Interval) -> Composite:
        """Behind a diagonal whose entries for input channel i lie in slopes[i]: [in channels]."""
        return self._scaled(slopes, (self.groups, 1, -1, *[1] * len(self.geometry)))

    def scaled(self, slopes: Interval) -> Composite:
        """Before a diagonal whose entries for output channel o lie in slopes[o]: [channels]."""
        return self._scaled(slopes, (self.groups, -1, 1, *[1] * len(self.geometry)))

    def averaged(
        self, geometry: Geometry, divisors: tuple[tuple[int, ...], ...]
    ) -> Composite | None:
        """Before averages over windows; None where they read padding or have several divisors.

        Proof: average p reads outputs p·t + j·e, which read inputs p·t·s + j·e·s + τ·d: this is
        tap (j·e·s + τ·d)/g of a kernel with stride s·t and dilation g, the common divisor.
        """
        pooled = zip(geometry, divisors, strict=True)
        if any(pool.pad_begin or pool.pad_end or len(set(each)) > 1 for pool, each in pooled):
            return None
        pairs = tuple(zip(self.geometry, geometry, strict=True))
        windows = tuple(_joined(first, second) for first, second in pairs)
        if any(w.outputs != pool.outputs for w, pool in zip(windows, geometry, strict=True)):
            return None
        divisor = Interval.exact(np.array(float(math.prod(each[0] for each in divisors))))
        part = Interval.exact(self.kernel) * divisor.reciprocal()
        lo = np.zeros((*self.kernel.shape[:2], *(window.taps for window in windows)))
        hi = lo.copy()
        for shifts in itertools.product(*(range(pool.taps) for pool in geometry)):
            along = zip(pairs, windows, shifts, strict=True)
            slices = [_taps_of(first, second, w, shift) for (first, second), w, shift in along]
            where = (slice(None), slice(None), *slices)
            entries = Interval(lo[where], hi[where]) + part
            lo[where], hi[where] = entries.lo, entries.hi
        before = self.error * average_pool_norm(geometry, divisors)
        middle = 0.5 * lo + 0.5 * hi
        radius = (Interval(lo, hi) - Interval.exact(middle)).norm()
        averaged = replace(self, kernel=middle, geometry=windows)
        return replace(averaged, error=before + radius * averaged._stretch())

    def plus_identity(self, factor: float) -> Composite | None:
        """Plus factor times the input; None where no tap reads the very place of its output."""
        outputs, inputs = self.kernel.shape[:2]
        places = [_tap_in_place(window) for window in self.geometry]
        taps = tuple(tap for tap in places if tap is not None)
        if self.border is not None or outputs != inputs * self.groups or len(taps) < len(places):
            return None
        channels = np.arange(outputs)
        where = (channels, channels % inputs, *taps)
        added = Interval.exact(self.kernel[where]) + Interval.exact(np.array(factor))
        kernel = self.kernel.copy()
        kernel[where] = middle = 0.5 * added.lo + 0.5 * added.hi
        radius = (added - Interval.exact(middle)).norm()
        return replace(self, kernel=kernel, error=self.error + radius * self._stretch())

    def _scaled(self, slopes: Interval, shape: tuple[int, ...]) -> Composite:
        """Proof: with m in place of slopes m ± r, the map changes by at most max r · ‖T‖.

        A product of floats is off by a relative u, or by less than the smallest normal number.
        """
        middle = 0.5 * slopes.lo + 0.5 * slopes.hi
        largest = slopes.max_abs()
        spread = (slopes - Interval.exact(middle)).max_abs() + largest * _UNIT
        by_group = self.kernel.reshape(self.groups, -1, *self.kernel.shape[1:])
        with np.errstate(over="ignore"):
            kernel = (by_group * middle.reshape(shape)).reshape(self.kernel.shape)
        moved = spread * norm(self.kernel) + Upper(self.kernel.size * _SMALLEST_NORMAL)
        error = self.error * largest + moved * self._stretch()
        return replace(self, kernel=kernel, error=error)

    def _stretch(self) -> Upper:
        """‖convolution by w‖₂ ≤ stretch · ‖w‖_F."""
        return window_multiplicity(self.geometry) * self._repetition_root()

    def _repetition_root(self) -> Upper:
        """The norm of padding."""
        if self.border is None:
            return Upper(1.0)
        shape = (1, 1, *(window.taps for window in self.geometry))
        zero = Operand(np.zeros(shape))
        padded = PaddedConvMap(zero, self.geometry, self.pads, self.border)
        return Upper(float(padded.repetitions())).sqrt()


def _joined(first: Window, second: Window) -> Window:
    """The window of averages (second) of a convolution (first)."""
    unit = math.gcd(first.stride * second.dilation, first.dilation)
    reach = first.stride * second.dilation * (second.taps - 1) + first.dilation * (first.taps - 1)
    return replace(
        first, taps=reach // unit + 1, stride=first.stride * second.stride, dilation=unit
    )


def _taps_of(first: Window, second: Window, joined: Window, shift: int) -> slice:
    """The taps of the joined window through which output `shift` of a window reads."""
    start = shift * second.dilation * first.stride // joined.dilation
    step = first.dilation // joined.dilation
    return slice(start, start + step * (first.taps - 1) + 1, step)


def _tap_in_place(window: Window) -> int | None:
    """The tap through which every output reads the input of its own number."""
    tap, rest = divmod(window.pad_begin, window.dilation)
    is_same = window.stride == 1 and window.outputs == window.size
    return tap if is_same and not rest and tap < window.taps else None
