"""What the windows of a convolution read: padded grids, unfolded views, shifted Gram matrices.

What enters: tensors [examples, channels, *grid] and a geometry. What leaves: views where possible.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor
from torch.nn.functional import pad

from lipcert.audit.gradient_norms.layout import dense
from lipcert.graph.geometry import Geometry, Window


def pads(geometry: Geometry) -> bool:
    """Whether there is any padding."""
    return any(window.pad_begin or window.pad_end for window in geometry)


def padded(value: Tensor, geometry: Geometry) -> Tensor:
    """With its zeros written out; its order in memory is kept."""
    if not pads(geometry):
        return dense(value)
    widths = [width for w in reversed(geometry) for width in (w.pad_begin, w.pad_end)]
    return pad(value, widths)


def pads_evenly(geometry: Geometry) -> bool:
    """Whether both ends of every dimension are padded alike, as the library can do by itself."""
    return all(window.pad_begin == window.pad_end for window in geometry)


def readable(value: Tensor, geometry: Geometry) -> Tensor:
    """What `library_gradient` reads: with zeros written out only where the library needs them."""
    return dense(value) if pads_evenly(geometry) else padded(value, geometry)


def unfolded(value: Tensor, geometry: Geometry) -> Tensor:
    """A view of a padded value: [examples, channels, *taps, *outputs]."""
    grid = value.stride()[2:]
    steps = zip(geometry, grid, strict=True)
    strides = [(w.dilation * step, w.stride * step) for w, step in steps]
    shape = (*value.shape[:2], *(w.taps for w in geometry), *(w.outputs for w in geometry))
    by_tap, by_output = zip(*strides, strict=True)
    return value.as_strided(shape, (*value.stride()[:2], *by_tap, *by_output))


def unfolded_within_lines(value: Tensor, others: Geometry) -> Tensor:
    """A view that keeps the first dimension: [examples, channels, *taps, lines, *outputs]."""
    lines, *grid = value.stride()[2:]
    by_tap = [w.dilation * step for w, step in zip(others, grid, strict=True)]
    by_output = [w.stride * step for w, step in zip(others, grid, strict=True)]
    taps, outputs = [w.taps for w in others], [w.outputs for w in others]
    shape = (*value.shape[:2], *taps, value.shape[2], *outputs)
    return value.as_strided(shape, (*value.stride()[:2], *by_tap, lines, *by_output))


def flat_run(geometry: Geometry) -> int:
    """How many places lie from the first to the last window in a padded, flattened grid."""
    return 1 + sum(
        (window.outputs - 1) * step for window, step in zip(geometry, _steps(geometry), strict=True)
    )


def on_padded_lines(cotangent: Tensor, geometry: Geometry) -> Tensor:
    """The outputs of windows of stride 1, each where its window begins: [..., channels, run].

    Zeros fill the places where no window begins.
    """
    widths = [width for w in reversed(geometry[1:]) for width in (0, _padded_size(w) - w.outputs)]
    return pad(cotangent, widths).flatten(2)[:, :, : flat_run(geometry)]


def sum_over_taps(gram: Tensor, geometry: Geometry) -> Tensor:
    """Σ over taps of the Gram matrix between the places that one tap reads, for stride 1.

    gram: [blocks, places, places] of a padded, flattened grid; result: [blocks, run, run]. A tap
    reads the run of places that begins at its own offset.
    """
    run, steps = flat_run(geometry), _steps(geometry)
    total: Tensor | None = None
    for taps in itertools.product(*(range(window.taps) for window in geometry)):
        places = zip(taps, geometry, steps, strict=True)
        start = sum(tap * window.dilation * step for tap, window, step in places)
        part = gram[:, start : start + run, start : start + run]
        total = part.clone() if total is None else total.add_(part)
    return gram if total is None else total


def _padded_size(window: Window) -> int:
    return window.size + window.pad_begin + window.pad_end


def _steps(geometry: Geometry) -> list[int]:
    """How far apart neighbours are in a padded, flattened grid, for every dimension."""
    sizes = [_padded_size(window) for window in geometry]
    return [prod(sizes[axis + 1 :]) for axis in range(len(sizes))]


def library_gradient(
    value: Tensor, cotangent: Tensor, kernel: Sequence[int], geometry: Geometry, groups: int
) -> Tensor:
    """The library's gradient of a kernel of this shape; value: as `readable` returns it."""
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
