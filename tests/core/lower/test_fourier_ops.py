"""Fourier transforms beside onnxruntime, and their matrices beside exact cosines."""

import numpy as np
import pytest
from mpmath import cos, mp, pi, sin

from lipcert.core.lower.errors import Unsupported
from lipcert.core.program import Dense
from tests.core.lower.cases import agrees, model, program

WINDOW = np.hanning(8)
CASES = {
    # name: (node, shape, constants, operator set)
    "real": ("y = DFT(x)", ["N", 8, 1], {}, 17),
    "half of a real one": ("y = DFT<onesided=1>(x)", ["N", 7, 1], {}, 17),
    "complex": ("y = DFT(x, n)", ["N", 7, 2], {"n": 7}, 17),
    "inverse": ("y = DFT<inverse=1>(x)", ["N", 6, 2], {}, 17),
    "inverse of a real one": ("y = DFT<inverse=1>(x)", ["N", 3, 5, 1], {}, 20),
    "a later axis": ("y = DFT<axis=2>(x)", ["N", 3, 5, 2], {}, 17),
    "last axis of entries": ("y = DFT(x)", ["N", 3, 5, 2], {}, 20),
    "an axis given": ("y = DFT<onesided=1>(x, , a)", ["N", 3, 5, 1], {"a": -3}, 20),
    "frames": ("y = STFT(x, s, w)", ["N", 32, 1], {"s": 4, "w": WINDOW}, 17),
    "frames of a length": (
        "y = STFT<onesided=0>(x, s, w, l)", ["N", 30, 1], {"s": 3, "w": WINDOW, "l": 8}, 17),
    "frames without a window": ("y = STFT(x, s, , l)", ["N", 9, 1], {"s": 5, "l": 6}, 17),
    "frames of complex numbers": (
        "y = STFT<onesided=0>(x, s, , l)", ["N", 9, 2], {"s": 2, "l": 4}, 17),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_agrees_with_onnxruntime(name):
    given, shape, constants, opset = CASES[name]
    assert agrees(model(given, shape, constants, opset)).batch_proved


@pytest.mark.parametrize("inverse", [0, 1])
def test_every_entry_is_enclosed_closely(inverse):
    size = 12
    found = program(model(f"y = DFT<inverse={inverse}>(x)", ["N", size, 2], {}, 20))
    (weight,) = (step.op.weight for step in found.steps if isinstance(step.op, Dense))
    low, high = (end.T.reshape(size, 2, size, 2) for end in (weight.lo, weight.hi))
    assert (high - low).max() < 1e-14
    sign, scale = (1, size) if inverse else (-1, 1)
    for place in np.ndindex(size, 2, size, 2):
        j, read, k, made = place
        with mp.workdps(40):
            angle = sign * 2 * pi * j * k / size
            exact = [[cos(angle), sin(angle)], [-sin(angle), cos(angle)]][read][made] / scale
            assert low[place] - 1e-35 <= exact <= high[place] + 1e-35


REFUSED = {
    "over the batch": ("y = DFT<axis=0>(x)", [4, 3, 1], {}, 17),
    "longer than its input": ("y = DFT(x, n)", ["N", 7, 2], {"n": 9}, 17),
    "half of complex numbers": ("y = DFT<onesided=1>(x)", ["N", 7, 2], {}, 17),
    "half of an inverse": ("y = DFT<onesided=1, inverse=1>(x)", ["N", 7, 1], {}, 17),
    "other parts": ("y = DFT(x)", ["N", 7, 3], {}, 17),
    "along the parts": ("y = DFT<axis=2>(x)", ["N", 7, 2], {}, 17),
    "no length of frames": ("y = STFT(x, s)", ["N", 9, 1], {"s": 5}, 17),
    "frames that are too long": ("y = STFT(x, s, , l)", ["N", 9, 1], {"s": 5, "l": 10}, 17),
    "no step": ("y = STFT(x, s, , l)", ["N", 9, 1], {"s": 0, "l": 3}, 17),
    "half of frames of complex numbers": (
        "y = STFT(x, s, , l)", ["N", 9, 2], {"s": 2, "l": 4}, 17),
    "a window of another length": (
        "y = STFT(x, s, w, l)", ["N", 32, 1], {"s": 4, "w": WINDOW, "l": 7}, 17),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_it_does_not_read_is_refused(name):
    given, shape, constants, opset = REFUSED[name]
    with pytest.raises(Unsupported):
        program(model(given, shape, constants, opset))
