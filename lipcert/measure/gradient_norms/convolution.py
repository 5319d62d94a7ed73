"""Gradient of a convolution's kernel: G[o, i, tap] = Σ_t b[o, t] · a[i, place that tap reads at t].

a is [examples, channels read, *grid] and b [examples, channels written, *outputs], in any number of
dimensions, for the geometry of the convolution from a's grid to b's. ‖G‖² is computed exactly in
one of several ways. A transposed convolution is the adjoint: value and cotangent exchange their
roles, and the formula is the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod, sqrt
from typing import Final

import torch
from torch import Tensor
from torch.nn.functional import pad

from lipcert.graph.geometry import Geometry, copies
from lipcert.measure.gradient_norms.methods import Gradients, Method, OperandGradient, Pair
from lipcert.measure.gradient_norms.squares import (
    Squares,
    dense,
    from_gram,
    instantiated_distance,
    is_channels_last,
    product,
    product_of_grams,
    with_distance,
)


def pads(geometry: Geometry) -> bool:
    """Whether the geometry has any padding."""
    return any(window.pad_begin or window.pad_end for window in geometry)


def padded(value: Tensor, geometry: Geometry) -> Tensor:
    """Return the value with its zero padding written out, in the same memory order."""
    if not pads(geometry):
        return dense(value)
    widths = [width for w in reversed(geometry) for width in (w.pad_begin, w.pad_end)]
    return pad(value, widths)


def pads_evenly(geometry: Geometry) -> bool:
    """Whether both ends of every dimension have equal padding, which the library can add by
    itself."""
    return all(window.pad_begin == window.pad_end for window in geometry)


def readable(value: Tensor, geometry: Geometry) -> Tensor:
    """Return the input of `library_gradient`: padded explicitly only if the library cannot do
    it."""
    return dense(value) if pads_evenly(geometry) else padded(value, geometry)


def unfolded_view(value: Tensor, geometry: Geometry) -> Tensor:
    """View a padded value as its windows: [examples, channels, *taps, *outputs]."""
    grid = value.stride()[2:]
    steps = zip(geometry, grid, strict=True)
    strides = [(w.dilation * step, w.stride * step) for w, step in steps]
    shape = (*value.shape[:2], *(w.taps for w in geometry), *(w.outputs for w in geometry))
    by_tap, by_output = zip(*strides, strict=True)
    return value.as_strided(shape, (*value.stride()[:2], *by_tap, *by_output))


def library_gradient(
    value: Tensor, cotangent: Tensor, kernel: Sequence[int], geometry: Geometry, groups: int
) -> Tensor:
    """Return the library's gradient of a kernel of this shape.

    value: as `readable` returns it.
    """
    ranks = len(geometry)
    widths = [w.pad_begin for w in geometry] if pads_evenly(geometry) else [0] * ranks
    found: tuple[Tensor, ...] = torch.ops.aten.convolution_backward(
        cotangent,
        value,
        value.new_zeros(1).expand(*kernel),
        None,
        [window.stride for window in geometry],
        widths,
        [window.dilation for window in geometry],
        False,
        [0] * ranks,
        groups,
        [False, True, False],
    )
    return found[1]


_MANY_CHANNELS: Final = 8


@dataclass(frozen=True, slots=True)
class KernelGradient(OperandGradient):
    """The gradient of the kernel [written, read/groups, *taps] of a convolution, plain or
    transposed."""

    geometry: Geometry
    groups: int
    transposed: bool

    def methods(self, pair: Pair) -> Sequence[Method]:
        """Return all methods that can run on this device.

        The library's kernels are included only where they sum directly. They are faster on many
        channels, unless one tap leaves nothing to unfold.
        """
        pair = self._oriented(pair)
        width = pair.b.element_size()
        read, written = pair.a.shape[1], pair.b.shape[1]
        positions, taps = self._positions, self._taps
        pixels = prod(w.size + w.pad_begin + w.pad_end for w in self.geometry)
        copy = read * pixels if pads(self.geometry) else 0
        gradient = written * read // self.groups * taps
        columns = read * taps * positions
        grams = 2 * self.groups * positions**2
        direct = gradient * positions
        scratch = (copy + columns + gradient) * width
        found = [Method("unfolded", scratch, self.instantiated, work=direct)]
        rows = written // self.groups + read * taps // self.groups
        if positions * rows < 4 * written * read * taps // self.groups**2:
            scratch = (copy + columns + grams) * width
            work = positions**2 * rows * self.groups
            found.append(Method("gram", scratch, self._gram, cancels=True, work=work))
        is_known = len(self.geometry) <= 3 and pair.b.device.type == "cpu"
        if is_known and not self._by_pixels(pair):
            scratch = (copy + gradient) * width
            grouped = Method("grouped", scratch, self._grouped, work=direct)
            found.insert(0 if read >= _MANY_CHANNELS and taps > 1 else 1, grouped)
        return found

    def gradients(self, pair: Pair) -> Gradients:
        """Return the gradients, by unfolding.  # [examples, written, read/groups, *taps]"""
        pair = self._oriented(pair)
        return Gradients(self._instantiated(pair), self._distance(pair))

    def gradient_scratch(self, pair: Pair) -> int:
        """Return the bytes of padded and unfolded values, and of the gradient."""
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
        """Return the pair with a as the tensor that is read; both tensors with channels last, or
        neither."""
        pair = pair.swapped() if self.transposed else pair
        return pair if self._by_pixels(pair) else pair.contiguous()

    def _by_pixels(self, pair: Pair) -> bool:
        """Whether the channels of a pixel are adjacent in memory, and form one group."""
        return self.groups == 1 and is_channels_last(pair.a) and is_channels_last(pair.b)

    def _distance(self, pair: Pair) -> Tensor:
        """Bound the rounding error of the gradient.

        The unfolded value is at most √copies·‖a‖ long, copies being the windows per entry.
        """
        entries = pair.b.shape[1] * pair.a.shape[1] // self.groups * self._taps
        reach = pair.reach * sqrt(copies(self.geometry))
        return instantiated_distance(reach, self._positions, entries, pair.b.dtype)

    def _unfolds_pixels(self, pair: Pair) -> bool:
        """Whether whole pixels are copied, which pays off if they have many channels."""
        return self._by_pixels(pair) and pair.a.shape[1] >= _MANY_CHANNELS

    def _columns(self, pair: Pair) -> Tensor:
        """Return the cotangent as [examples·groups, written/groups, positions]."""
        if self._by_pixels(pair):
            return pair.b.flatten(2)
        return pair.b.reshape(
            len(pair) * self.groups, pair.b.shape[1] // self.groups, self._positions
        )

    def _rows(self, pair: Pair) -> Tensor:
        """Return the unfolded value as [examples·groups, read/groups·taps, positions]."""
        unfolded = unfolded_view(padded(pair.a, self.geometry), self.geometry)
        rows = pair.a.shape[1] // self.groups * self._taps
        if self._unfolds_pixels(pair):  # [examples, *outputs, *taps, channels] in memory
            by_pixels = unfolded.permute(0, 4, 5, 2, 3, 1)
            return by_pixels.reshape(len(pair), self._positions, rows).mT
        return unfolded.reshape(len(pair) * self.groups, rows, self._positions)

    def _instantiated(self, pair: Pair) -> Tensor:
        """Compute the gradients of all taps in one product.  # [examples, written, read/groups,
        *taps]"""
        found = product(self._columns(pair), self._rows(pair))
        taps = tuple(window.taps for window in self.geometry)
        written, read = pair.b.shape[1], pair.a.shape[1] // self.groups
        if self._unfolds_pixels(pair):
            return found.reshape(len(pair), written, *taps, read).movedim(-1, 2)
        return found.reshape(len(pair), written, read, *taps)

    def _gram(self, pair: Pair) -> Squares:
        """Compute the squares from Gram matrices of the unfolded value and of the cotangent."""
        pair = self._oriented(pair)
        s, q = product_of_grams(self._rows(pair), self._columns(pair))
        reaches = (pair.a_squares.upper * copies(self.geometry), pair.b_squares.upper)
        terms = (pair.a.shape[1] // self.groups * self._taps, pair.b.shape[1] // self.groups)
        shape = (len(pair), self.groups, *s.shape[1:])
        return from_gram(s.reshape(shape), q.reshape(shape), reaches, terms)

    def _grouped(self, pair: Pair) -> Squares:
        """Compute the squares by one call of the library, in which every example is a group of its
        own."""
        pair = self._oriented(pair)
        value = readable(pair.a, self.geometry)
        examples, taps = len(pair), [window.taps for window in self.geometry]
        gradient = library_gradient(
            value.reshape(1, -1, *value.shape[2:]),
            pair.b.reshape(1, -1, *pair.b.shape[2:]),
            (examples * pair.b.shape[1], pair.a.shape[1] // self.groups, *taps),
            self.geometry,
            examples * self.groups,
        )
        gradient = gradient.reshape(examples, -1, *gradient.shape[1:])
        return with_distance(gradient, self._distance(pair), pair.b)
