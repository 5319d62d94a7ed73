"""Tori are compared with the circular convolution around, written out by its definition."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given

from lipcert.core.norms.convolution import Convolution
from lipcert.core.norms.lines import axes_of
from lipcert.search import torus
from lipcert.search.torus import torus_norm
from tests.core.norms.convolutions import convolutions, window_of
from tests.core.norms.test_torus import circular, trimmed, wrapped


@given(convolutions(ranks=(1, 2)))
def test_the_norm_is_that_of_the_circular_convolution(conv):
    found = torus_norm(conv)
    inside = np.linalg.norm(conv.matrix(), 2)
    assert found.norm >= inside * (1.0 - 1e-12)
    if inside > 0.0:
        around = circular(trimmed(conv), found.counts, found.twists)
        assert found.norm == pytest.approx(around, rel=1e-9)


@given(convolutions(ranks=(1, 2)))
def test_no_torus_of_that_size_is_lower(conv):
    found = torus_norm(conv)
    extended = [axis for axis in axes_of(conv) if axis.length > 1]
    for twists in itertools.product((0, 1), repeat=len(extended)):
        rows = zip(extended, found.counts, twists, strict=True)
        if all(axis.fits(count, twist) for axis, count, twist in rows):
            around = circular(trimmed(conv), found.counts, twists)
            assert found.norm <= around * (1.0 + 1e-9)


@pytest.mark.sample(2)
@pytest.mark.parametrize("channels", [4, 40])
@pytest.mark.parametrize("few", [0, 10_000])
def test_few_looks_find_the_peak_of_many_frequencies(monkeypatch, channels, few):
    """A peaked kernel on a map with over a thousand frequencies; the Fourier transform knows."""
    rng = np.random.default_rng(channels)
    kernel = rng.standard_normal((channels, channels, 3, 3))
    conv = Convolution(kernel, (50, 50), window_of((3, 3), (50, 50), before=(1, 1), after=(1, 1)))
    monkeypatch.setattr(torus, "_FEW", few)
    found = torus_norm(conv)
    (count, _), (twist, _) = found.counts, found.twists
    phases = np.exp(1j * np.pi * twist * np.arange(3) / count)
    turned = kernel * phases[:, None] * phases
    symbols = np.moveaxis(np.fft.fft2(turned, s=found.counts), (0, 1), (-2, -1))
    peak = np.linalg.norm(symbols, 2, axis=(-2, -1)).max()
    assert found.norm == pytest.approx(peak, rel=1e-9)


@pytest.mark.parametrize(("stride", "dilation"), list(itertools.product((1, 2), (1, 2, 3))))
def test_circular_lines_are_exact(stride, dilation):
    conv = wrapped(np.random.default_rng(0).standard_normal((3, 2, 3)), 12, dilation, stride)
    assert torus_norm(conv).norm == pytest.approx(np.linalg.norm(conv.matrix(), 2), rel=1e-9)


@pytest.mark.parametrize("scale", [2.0**-1030, 1.0, 2.0**1015])
def test_every_magnitude(scale):
    window = window_of((3, 3), (8, 8), before=(1, 1), after=(1, 1))
    found = torus_norm(Convolution(np.full((2, 2, 3, 3), scale), (8, 8), window))
    assert math.isfinite(found.norm)
    assert 16.0 * scale < found.norm <= 18.0 * scale * (1.0 + 1e-12)


def test_what_reads_nothing_is_zero():
    conv = Convolution(np.ones((1, 1, 1)), (2,), window_of((1,), (2,), before=(-9,), after=(10,)))
    assert not (conv.reads(0) >= 0).any()
    assert torus_norm(conv).norm == 0.0
