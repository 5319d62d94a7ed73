"""Random convolutions, and what they are by definition."""

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from lipcert.core.norms.convolution import Convolution
from lipcert.core.window_kinds import Window


def window_of(taps, size, strides=None, dilations=None, before=None, after=None):
    """The window of a convolution with padding at both ends, as many outputs as fit."""
    rank = len(taps)
    strides, dilations = strides or (1,) * rank, dilations or (1,) * rank
    before, after = before or (0,) * rank, after or (0,) * rank
    rows = zip(size, before, after, dilations, taps, strides, strict=True)
    outputs = tuple((n + b + a - d * (t - 1) - 1) // s + 1 for n, b, a, d, t, s in rows)
    return Window(tuple(taps), strides, dilations, before, outputs)


@st.composite
def convolutions(draw, ranks=(1, 3)):
    rank = draw(st.integers(*ranks))
    side = 7 if rank == 1 else 4 if rank == 2 else 3

    def numbers(low, high):
        return tuple(draw(st.integers(low, high)) for _ in range(rank))

    groups = draw(st.integers(1, 2))
    shape = (groups * draw(st.integers(1, 2)), draw(st.integers(1, 2)), *numbers(1, 3))
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    kernel = rng.standard_normal(shape) * (rng.random(shape) < draw(st.sampled_from([1.0, 0.5])))
    size = numbers(1, side)
    window = window_of(shape[2:], size, numbers(1, 3), numbers(1, 3), numbers(0, 3), numbers(0, 3))
    assume(min(window.outputs) >= 1)
    return Convolution(kernel, size, window, groups)


def applied(conv: Convolution, x):
    """The convolution by its definition, one number at a time."""
    outputs, inner = conv.kernel.shape[:2]
    window = conv.window
    y = np.zeros((outputs, *window.outputs))
    for place in np.ndindex(*y.shape):
        group = place[0] // (outputs // conv.groups)
        for channel, *taps in np.ndindex(*conv.kernel.shape[1:]):
            rows = zip(
                place[1:], window.strides, taps, window.dilations, window.before, strict=True
            )
            at = [p * s + t * d - b for p, s, t, d, b in rows]
            if all(0 <= a < n for a, n in zip(at, conv.size, strict=True)):
                entry = x[(group * inner + channel, *at)]
                y[place] += conv.kernel[(place[0], channel, *taps)] * entry
    return y
