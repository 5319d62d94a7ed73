"""Gradient of a convolution's kernel: G[o, i, tap] = Σ_t b[o, t] · a[i, place that tap reads at t].

What enters: a [examples, channels read, *grid] and b [examples, channels written, *outputs], in
any number of dimensions, for the geometry of the convolution from a's grid to b's. What leaves:
several exact ways to ‖G‖². A transposed convolution is the adjoint: value and cotangent exchange
their roles, and the formula is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from math import prod, sqrt
from typing import Final, final

import torch
from torch import Tensor

from lipcert.audit.gradient_norms import windows
from lipcert.audit.gradient_norms.layout import is_channels_last
from lipcert.audit.gradient_norms.matrices import (
    from_gram,
    instantiated_distance,
    product,
    product_of_grams,
    with_distance,
)
from lipcert.audit.gradient_norms.method import Gradients, Method, OperandGradient
from lipcert.audit.gradient_norms.pair import Pair
from lipcert.audit.gradient_norms.squares import Squares, sum_of_squares, widened
from lipcert.graph.geometry import Geometry

_MOST_PIXELS: Final = 600
_SLOWNESS: Final = 8
_MANY_CHANNELS: Final = 8


@final
@dataclass(frozen=True, slots=True)
class KernelGradient(OperandGradient):
    """The kernel [written, read/groups, *taps] of a convolution, or of one that is transposed."""

    geometry: Geometry
    groups: int
    transposed: bool

    @property
    def key(self) -> Hashable:
        """Everything but the numbers."""
        return self

    def methods(self, pair: Pair) -> Sequence[Method]:
        """All that can run on this device; the library's kernels only where they sum directly."""
        pair = self._oriented(pair)
        width = pair.b.element_size()
        read, written = pair.a.shape[1], pair.b.shape[1]
        positions, taps = self._positions, self._taps
        pixels = prod(w.size + w.pad_begin + w.pad_end for w in self.geometry)
        padded = read * pixels if windows.pads(self.geometry) else 0
        gradient = written * read // self.groups * taps
        unfolded = read * taps * positions
        grams = 2 * self.groups * positions**2
        direct = gradient * positions
        add = self._method
        found = [add("unfolded", (padded + unfolded + gradient) * width, self._unfolded, direct)]
        if self.geometry[0].stride == 1 and self.geometry[0].taps > 1:
            first = self.geometry[0]
            lines = first.size + first.pad_begin + first.pad_end
            by_lines = unfolded // (first.taps * first.outputs) * lines
            scratch = (padded + by_lines + gradient) * width
            found.append(add("lines", scratch, self._by_lines, direct))
        rows = written // self.groups + read * taps // self.groups
        if positions * rows < 4 * written * read * taps // self.groups**2:
            scratch = (padded + unfolded + grams) * width
            work = positions**2 * rows * self.groups
            found.append(add("gram", scratch, self._gram, work, cancels=True))
        if taps > 1 and pixels <= _MOST_PIXELS and all(w.stride == 1 for w in self.geometry):
            run = windows.flat_run(self.geometry)
            scratch = (padded + self.groups * (pixels**2 + 2 * run**2)) * width
            # an addition that is not part of a matrix product takes as long as many that are
            shifting = _SLOWNESS * self.groups * taps * run**2
            work = pixels**2 * read + run**2 * written + shifting
            found.append(add("pixel-gram", scratch, self._pixel_gram, work, cancels=True))
        if len(self.geometry) <= 3 and pair.b.device.type == "cpu":
            scratch = (padded + gradient) * width
            if not self._by_pixels(pair):
                found.append(add("grouped", scratch, self._grouped, direct))
            found.append(add("library", scratch, self._library, direct))
        return found

    def gradients(self, pair: Pair) -> Gradients:
        """By unfolding.  # [examples, written, read/groups, *taps]"""
        pair = self._oriented(pair).contiguous()
        taps = tuple(window.taps for window in self.geometry)
        gradient = self._instantiated(pair).reshape(
            len(pair), pair.b.shape[1], pair.a.shape[1] // self.groups, *taps
        )
        return Gradients(gradient, self._distance(pair))

    def gradient_scratch(self, pair: Pair) -> int:
        """Padded and unfolded values, and the gradient."""
        pair = self._oriented(pair)
        read, written = pair.a.shape[1], pair.b.shape[1]
        pixels = prod(w.size + w.pad_begin + w.pad_end for w in self.geometry)
        gradient = written * read // self.groups * self._taps
        return 8 * (read * pixels + read * self._taps * self._positions + gradient)

    @property
    def _taps(self) -> int:
        return prod(window.taps for window in self.geometry)

    @property
    def _positions(self) -> int:
        return prod(window.outputs for window in self.geometry)

    def _oriented(self, pair: Pair) -> Pair:
        """With a as it is read; both tensors by pixels, or neither."""
        pair = pair.swapped() if self.transposed else pair
        return pair if self._by_pixels(pair) else pair.contiguous()

    def _by_pixels(self, pair: Pair) -> bool:
        """Whether the channels of a pixel are neighbours in memory, and belong together."""
        return self.groups == 1 and is_channels_last(pair.a) and is_channels_last(pair.b)

    def _method(
        self,
        name: str,
        scratch: int,
        squares: Callable[[Pair], Squares],
        work: int,
        cancels: bool = False,
    ) -> Method:
        return Method(name, scratch, lambda pair: squares(self._oriented(pair)), cancels, work)

    def _copies(self) -> int:
        """Upper bound of how many windows read one entry of the value."""
        return prod(max(window.multiplicity()) for window in self.geometry)

    def _distance(self, pair: Pair) -> Tensor:
        """The unfolded value is at most √copies·‖a‖ long, copies being the windows per entry."""
        entries = pair.b.shape[1] * pair.a.shape[1] // self.groups * self._taps
        reach = pair.reach * sqrt(self._copies())
        return instantiated_distance(reach, self._positions, entries, pair.b.dtype)

    def _unfolds_pixels(self, pair: Pair) -> bool:
        """Whether whole pixels are copied, which pays where they have many channels."""
        return self._by_pixels(pair) and pair.a.shape[1] >= _MANY_CHANNELS

    def _columns(self, pair: Pair) -> Tensor:
        """The cotangent as [examples·groups, written/groups, positions]."""
        if self._by_pixels(pair):
            return pair.b.flatten(2)
        return pair.b.reshape(
            len(pair) * self.groups, pair.b.shape[1] // self.groups, self._positions
        )

    def _rows(self, pair: Pair) -> Tensor:
        """The unfolded value as [examples·groups, read/groups·taps, positions]."""
        unfolded = windows.unfolded(windows.padded(pair.a, self.geometry), self.geometry)
        rows = pair.a.shape[1] // self.groups * self._taps
        if self._unfolds_pixels(pair):  # [examples, *outputs, *taps, channels] in memory
            by_pixels = unfolded.permute(0, 4, 5, 2, 3, 1)
            return by_pixels.reshape(len(pair), self._positions, rows).mT
        return unfolded.reshape(len(pair) * self.groups, rows, self._positions)

    def _instantiated(self, pair: Pair) -> Tensor:
        return product(self._columns(pair), self._rows(pair))

    def _unfolded(self, pair: Pair) -> Squares:
        """All taps in one product."""
        return with_distance(self._instantiated(pair), len(pair), self._distance(pair))

    def _by_lines(self, pair: Pair) -> Squares:
        """One product for each tap of the first dimension; unfolded along the others only.

        With stride 1 along the first dimension the positions that one such tap reads are a
        contiguous run of lines, so nothing is copied for it.
        """
        first, *others = self.geometry
        value = windows.padded(pair.a, self.geometry)
        rows = windows.unfolded_within_lines(value, tuple(others))
        per_line = prod(window.outputs for window in others)
        lines = rows.shape[2 + len(others)]
        if self._unfolds_pixels(pair):  # [examples, lines, outputs, taps, channels] in memory
            by_pixels = rows.permute(0, 3, 4, 2, 1)
            rows = by_pixels.reshape(len(pair), lines * per_line, -1).mT
        else:
            rows = rows.reshape(len(pair) * self.groups, -1, lines * per_line)
        columns = self._columns(pair)
        squares = Squares.zeros(len(pair), pair.b.device)
        for tap in range(first.taps):
            start = tap * first.dilation * per_line
            run = rows[:, :, start : start + self._positions]
            gradient = product(columns, run).reshape(len(pair), -1)
            squares = squares.plus(sum_of_squares(gradient))
        return widened(squares, self._distance(pair))

    def _gram(self, pair: Pair) -> Squares:
        """Gram matrices of the unfolded value and of the cotangent."""
        s, q = product_of_grams(self._rows(pair), self._columns(pair))
        terms = pair.a.shape[1] // self.groups * self._taps
        return self._from_gram(pair, s, q, terms, self._copies())

    def _pixel_gram(self, pair: Pair) -> Squares:
        """The Gram matrix of the padded pixels, shifted along both axes and summed over the taps.

        Its entries are sums over channels and taps. Windows may begin at any place of the run; the
        cotangent is zero where none does. Each tap reads each pixel once at most, so that all of
        them together are at most √taps·‖a‖ long.
        """
        value = windows.padded(pair.a, self.geometry).flatten(2)
        columns = windows.on_padded_lines(pair.b, self.geometry)
        if self.groups > 1:
            value, columns = (
                tensor.reshape(len(pair) * self.groups, -1, tensor.shape[2])
                for tensor in (value, columns)
            )
        gram = torch.bmm(value.mT, value)
        s = windows.sum_over_taps(gram, self.geometry)
        return self._from_gram(
            pair, s, torch.bmm(columns.mT, columns), value.shape[1] + self._taps, self._taps
        )

    def _from_gram(self, pair: Pair, s: Tensor, q: Tensor, terms: int, copies: int) -> Squares:
        reaches = (pair.a_squares.upper * copies, pair.b_squares.upper)
        shape = (len(pair), self.groups, *s.shape[1:])
        written = pair.b.shape[1] // self.groups
        return from_gram(s.reshape(shape), q.reshape(shape), reaches, (terms, written))

    def _grouped(self, pair: Pair) -> Squares:
        """One call of the library: every example is a group of its own."""
        value = windows.readable(pair.a, self.geometry)
        examples, taps = len(pair), [window.taps for window in self.geometry]
        gradient = windows.library_gradient(
            value.reshape(1, -1, *value.shape[2:]),
            pair.b.reshape(1, -1, *pair.b.shape[2:]),
            (examples * pair.b.shape[1], pair.a.shape[1] // self.groups, *taps),
            self.geometry,
            examples * self.groups,
        )
        return with_distance(gradient, examples, self._distance(pair))

    def _library(self, pair: Pair) -> Squares:
        """One call of the library for each example."""
        value = windows.readable(pair.a, self.geometry)
        found = [
            sum_of_squares(self._library_gradient(value[i : i + 1], pair.b[i : i + 1])[None])
            for i in range(len(pair))
        ]
        return widened(Squares.joined(found), self._distance(pair))

    def _library_gradient(self, value: Tensor, cotangent: Tensor) -> Tensor:
        taps = [window.taps for window in self.geometry]
        shape = (cotangent.shape[1], value.shape[1] // self.groups, *taps)
        return windows.library_gradient(value, cotangent, shape, self.geometry, self.groups)
