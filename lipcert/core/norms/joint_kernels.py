"""Joint kernels: convolutions and ReLUs in a row as one quadratic form, seen as one convolution.

Let v_0 ≥ 0 and v_k = relu(u_k), u_k = W_k v_{k−1} + c_k, for k = 1, …, L. Entry by entry
v_k·(u_k − v_k) = 0, and v_k, v_k − u_k ≥ 0. So for any matrix Θ_k of channels with no positive
entry off the diagonal, and any kernel M_k ≥ 0 like W_k (not trusted),
    v_k'(Θ_k(u_k − v_k) + M_k v_{k−1}) ≥ 0.
Twice the sum of these, added to ‖v_L‖², is v'Hv + 2Σ v_k'Θ_k c_k, v all values together. In H stand
−Θ_k − Θ_k' and, for k = L, the identity; below them, and mirrored above, Θ_k W_k + M_k.
By τ_k > 0 (not trusted), 2γv ≤ γ(v²/τ_k + τ_k) for every γ ≥ 0.

A stride s makes one place of v_k of s places of v_{k−1}, along every axis: entry e of v_k lies at
place e div π of phase e mod π, π the product of the strides above. What is read beside a value is
0, and so is every place without an entry: then H maps values to values, as a convolution of one
stride with zeros around it, whose channels are those of all values in all their phases.
Proof: output α + π·p of a layer reads through tap t, for dilation d and padding b, the entry
s·(α + πp) + d·t − b = (sα + dt − b) + sπ·p: of which the phase and the shift of the place do not
depend on p. v is 0 at places without an entry, so that v'Hv has nothing of them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from lipcert.core.interval import Array, Interval, exact
from lipcert.core.line import NotProved
from lipcert.core.norms.convolution import Convolution, Kernel
from lipcert.core.program import IndexArray, Shape
from lipcert.core.window_kinds import Window

MAX_ENTRIES: Final = 1 << 24


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """Where the numbers of layers stand in a joint kernel, as a flat array.

    ends: of the channels of each value; places: of values, along each axis. own: for each value, of
    a matrix of channels, [phases, channels, channels]; below: for each layer, of its kernel,
    [phases, outputs, inputs, taps].
    """

    shape: tuple[int, ...]
    ends: tuple[int, ...]
    places: tuple[int, ...]
    own: tuple[IndexArray, ...]
    below: tuple[IndexArray, ...]

    @classmethod
    def of(cls, frames: Sequence[Convolution]) -> "Layout":
        """Of convolutions each of which reads what the one before computes; NotProved for groups
        or moved entries, and beyond a limit."""
        if any(frame.groups > 1 or frame.moved for frame in frames):
            raise NotProved("there is no joint kernel of groups, or of moved entries")
        periods = [(1,) * len(frames[0].size)]
        for frame in reversed(frames):
            periods.insert(0, tuple(np.multiply(frame.window.strides, periods[0]).tolist()))
        sizes = [frames[0].size, *(frame.window.outputs for frame in frames)]
        channels = [frames[0].kernel.shape[1], *(len(frame.kernel) for frame in frames)]
        phases = [math.prod(period) for period in periods]
        ends = [0, *np.cumsum(np.multiply(channels, phases)).tolist()]
        reads = [_reads(f.window, *p) for f, *p in zip(frames, periods[1:], periods, strict=False)]
        radii = np.max([np.abs(shifts).max(axis=(1, 2)) for _, shifts in reads], axis=0)
        shape = (ends[-1], ends[-1], *(2 * radii + 1).tolist())
        if math.prod(shape) > MAX_ENTRIES:
            raise NotProved("a joint kernel is too large")
        numbers = [
            end + np.arange(n) * count + np.arange(count)[:, None]
            for end, n, count in zip(ends[:-1], channels, phases, strict=True)
        ]  # of each value, [phases, channels]

        def flat(*places: IndexArray) -> IndexArray:
            return np.ravel_multi_index(tuple(np.broadcast_arrays(*places)), shape)

        own = [flat(rows[:, :, None], rows[:, None], *radii) for rows in numbers]
        below = [
            flat(
                rows[:, :, None, None],
                np.swapaxes(columns[read], 1, 2)[:, None],
                *(radii[:, None, None] + shifts)[:, :, None, None],
            )
            for rows, columns, (read, shifts) in zip(numbers[1:], numbers, reads, strict=False)
        ]
        places = np.max([-(-np.array(n) // p) for n, p in zip(sizes, periods, strict=True)], axis=0)
        return cls(shape, tuple(ends), tuple(places.tolist()), tuple(own), tuple(below))

    def kernel(  # noqa: PLR0917  all that it is made of
        self,
        entries: Sequence[Interval],
        ties: Sequence[Array],
        added: Sequence[Array],
        diagonal: Sequence[Array],
        scales: Sequence[float],
        shift: float,
    ) -> Kernel:
        """shift·I + SHS, of kernels within `entries`.

        added: M. For each value, ties: Θ for each phase, 0 below all layers; diagonal: what H has
        there besides, for each phase and channel; scales: S.
        Proof: no two numbers of layers, nor of their mirror images, stand at one place.
        """
        taps, s = self.shape[2:], [exact(scale) for scale in scales]
        ends = [np.zeros(math.prod(self.shape)) for _ in range(2)]

        def put(at: IndexArray, numbers: Interval) -> None:
            for end, part in zip(ends, (numbers.lo, numbers.hi), strict=True):
                end[at] = part.reshape(at.shape)

        layers = zip(self.below, entries, ties[1:], added, s[:-1], s[1:], strict=True)
        for at, kernel, tie, more, before, scale in layers:
            rows = exact(tie) @ kernel.moved(lambda end: end.reshape(len(end), -1))
            put(at, (rows + exact(more.reshape(rows.shape))) * (before * scale))
        for end in ends:
            mirrored = np.flip(
                np.swapaxes(end.reshape(self.shape), 0, 1), tuple(range(2, 2 + len(taps)))
            )
            np.add(end, mirrored.ravel(), out=end)
        for at, tie, more, scale in zip(self.own, ties, diagonal, s, strict=True):
            one = np.eye(tie.shape[1])
            twice = exact(tie) + exact(tie).transposed()
            put(at, (exact(more[:, :, None] * one) - twice) * (scale * scale) + exact(shift * one))
        joint, ones = Interval(*(end.reshape(self.shape) for end in ends)), (1,) * len(taps)
        window = Window(taps, ones, ones, tuple(n // 2 for n in taps), self.places)
        return Kernel(joint, Convolution(joint.lo, self.places, window), adjoint=False)


def _reads(window: Window, above: Shape, below: Shape) -> tuple[IndexArray, IndexArray]:
    """For each phase of an output and each tap: the phase that is read, and the shifts of places
    along each axis."""
    axes = len(window.taps)
    numbers = np.indices((*above, *window.taps)).reshape(2 * axes, math.prod(above), -1)
    phases, shifts = [], []
    for axis, (output, tap) in enumerate(zip(numbers[:axes], numbers[axes:], strict=True)):
        stride, dilation = window.strides[axis], window.dilations[axis]
        shift, phase = np.divmod(
            output * stride + tap * dilation - window.before[axis], below[axis]
        )
        phases.append(phase)
        shifts.append(shift)
    return np.ravel_multi_index(tuple(phases), below), np.stack(shifts)
