"""Circulant embeddings: sizes of tori, boxes of frequencies, and bounds of finite maps."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

from lipcert.training.projection.torus import circulant_norm
from lipcert.training.projection.eigenvalues import estimate_largest
from lipcert.geometry import Window
from lipcert.norms.laurent import laurent_norm
from lipcert.norms.symbol import Symbol
from lipcert.training.projection.torus import Boxes, Torus, torus_size
from lipcert.upper import INFINITE
from tests.norms.operators import conv_matrix, random_kernel, random_window, true_norm

Array = np.ndarray
ROUNDING = 1 - 1e-12


def _fits(window: Window, positions: int) -> bool:
    """Whether circular convolutions of this size, one per residue class, do as the window does.

    From the definition: within a class, tap phases·j + r of output o' reads, modulo the size,
    entry o' + j of phase r, where the input stands that the window reads, or nothing.
    """
    divisor = math.gcd(window.stride, window.dilation)
    phases, apart = window.stride // divisor, window.dilation // divisor
    inputs: dict[tuple[int, int, int], int] = {}
    outputs: dict[tuple[int, int], int] = {}
    reads: list[tuple[tuple[int, int, int], int | None]] = []
    for output in range(window.outputs):
        sources = {tap: window.read(output, tap) for tap in range(window.taps)}
        if all(source is None for source in sources.values()):
            continue
        part, number = output % apart, output // apart
        if outputs.setdefault((part, number % positions), output) != output:
            return False
        for tap, source in sources.items():
            entry = (part, tap % phases, (number + tap // phases) % positions)
            reads.append((entry, source))
            if source is not None and inputs.setdefault(entry, source) != source:
                return False
    alive = {tap for tap in range(window.taps) if window.readers(tap)}
    live = [read for index, read in enumerate(reads) if index % window.taps in alive]
    return all(inputs.get(entry) == source for entry, source in live)


def test_a_torus_of_that_size_holds_the_map() -> None:
    rng = np.random.default_rng(0)
    smallest = 0
    for _ in range(1500):
        window = random_window(rng, 12)
        size = torus_size(window)
        assert _fits(window, size), window
        assert _fits(window, size + 1), window
        smallest += not _fits(window, size - 1) if size > 1 else 1
    assert smallest > 1000


def test_sizes_of_common_layers() -> None:
    assert torus_size(Window(14, 3, 1, 1, 1, 1)) == 15
    assert torus_size(Window(14, 3)) == 14
    assert torus_size(Window(28, 3, 2, 1, 1, 1)) == 15
    assert torus_size(Window(28, 3, 1, 2, 2, 2)) == 15
    assert torus_size(Window(7, 3, 1, 1, 2, 2)) == 9


TORI = [((2,), (7,)), ((2, 2), (5, 6)), ((1, 3), (4, 9)), ((1, 2, 1), (3, 4, 5)), ((2, 2), (1, 2))]


@pytest.mark.parametrize(("spans", "counts"), TORI)
def test_boxes_hold_every_frequency_or_its_negative(
    spans: tuple[int, ...], counts: tuple[int, ...]
) -> None:
    for twists in itertools.product((0, 1), repeat=len(spans)):
        torus = Torus(spans, counts, twists)
        boxes = torus.everything(2)
        while not np.all(boxes.are_points):
            larger, boxes = boxes, boxes.children()
            assert np.sum(np.prod(boxes.widths, axis=1)) == np.sum(np.prod(larger.widths, axis=1))
        assert len(boxes) == 2 * torus.points
        numerators, denominators = torus.centres(boxes)
        found = set()
        for numerator, denominator in zip(numerators, denominators, strict=True):
            turns = [Fraction(int(each), int(denominator)) for each in numerator]
            found |= {tuple(turn % 1 for turn in turns), tuple(-turn % 1 for turn in turns)}
        everything = set()
        for index in np.ndindex(*counts):
            parts = zip(index, twists, counts, strict=True)
            everything.add(tuple(Fraction(2 * j + twist, 2 * count) for j, twist, count in parts))
        assert found == everything


def test_every_frequency_of_a_cell_is_within_its_angle() -> None:
    rng = np.random.default_rng(1)
    torus = Torus((2, 3), (9, 6), (1, 0))
    boxes = torus.everything(1).children().children()
    numerators, denominators = torus.centres(boxes)
    centres = 2 * np.pi * numerators / denominators[:, None]
    for row in range(len(boxes)):
        low, high = boxes.first[row] - 0.5, boxes.last[row] - 0.5
        samples = rng.uniform(low, high, size=(50, 2)) + np.array(torus.twists) / 2
        apart = np.abs(2 * np.pi * samples / np.array(torus.counts) - centres[row])
        theta = float(torus.angle(tuple(int(w) for w in boxes.widths[row]))) * np.pi
        assert np.max(apart @ np.array(torus.spans) / 2) <= theta * (1 + 1e-12)


def test_shrinkage_is_a_ratio_of_cosines() -> None:
    torus = Torus((2, 2), (40, 44), (1, 1))
    boxes = torus.everything(1).children().children().children()
    smallest = float(torus.angle((1, 1))) * np.pi
    for widths, value in zip(boxes.widths, torus.shrinkage(boxes), strict=True):
        theta = float(torus.angle(tuple(int(w) for w in widths))) * np.pi
        exact = (np.cos(theta) / np.cos(smallest)) ** 2 if theta < np.pi / 2 else 0.0
        assert exact * (1 - 1e-6) - 1e-4 <= value <= exact * (1 + 1e-14)
    points = Boxes(boxes.group, boxes.first, boxes.first + 1)
    assert np.all(torus.shrinkage(points) == 1.0)
    coarse = Torus((2, 2), (3, 3), (0, 0))
    assert np.all(coarse.shrinkage(coarse.everything(1)) == 0.0)


def test_the_inequality_behind_boxes() -> None:
    """‖P(c)‖ ≥ M cos(α + d) at distance d from a frequency where ‖P‖ = M cos α."""
    rng = np.random.default_rng(2)
    for _ in range(20):
        kernels = rng.uniform(-0.5, 0.5, size=(1, 2, 3, 4))
        symbol = Symbol.of(kernels)
        points = 4096
        numerators = np.arange(points)[:, None]
        values = symbol.at(np.zeros(points, np.int64), numerators, np.full(points, points))
        norms = np.sqrt(np.linalg.eigvalsh(values)[:, -1])
        angles = np.arccos(np.minimum(norms / np.max(norms), 1.0))
        for step in (1, 40, 300, 700):
            distance = 3 * step * 2 * np.pi / points / 2
            later = np.minimum(angles + distance, np.pi / 2)
            assert np.all(np.roll(angles, step) <= later + 2e-3)


@pytest.mark.parametrize("size", [2, 5, 7, 14, 20])
def test_the_box_kernel_attains_the_bound(size: int) -> None:
    geometry = (Window(size, 3, pad_begin=1, pad_end=1),) * 2
    exact = (1 + 2 * math.cos(math.pi / (size + 1))) ** 2
    bound = circulant_norm(np.ones((1, 1, 1, 3, 3)), geometry, 1e12).bound.value
    assert exact * ROUNDING <= bound <= exact * (1 + 3e-4)


def test_a_twist_by_half_a_step_matters_and_is_sound() -> None:
    """[-1, 2, -1] has its peak at π, where an even torus without a twist would meet it."""
    stripe = np.array([-1.0, 2.0, -1.0])
    kernel = np.multiply.outer(stripe, stripe)[None, None]
    for size in (3, 5, 7, 8):
        geometry = (Window(size, 3, pad_begin=1, pad_end=1),) * 2
        truth = true_norm(conv_matrix(kernel, geometry))
        bound = circulant_norm(kernel[None], geometry, 1e12).bound.value
        assert truth * ROUNDING <= bound <= truth * 1.0005


@pytest.mark.parametrize("kind", ["smooth", "random"])
@pytest.mark.parametrize(
    ("shape", "window"),
    [((4, 4, 3, 3), Window(7, 3, 1, 1, 1, 1)), ((4, 3, 4, 4), Window(10, 4, 2, 1, 1, 1)),
     ((3, 4, 3, 3), Window(14, 3, 1, 2, 2, 2)), ((4, 4, 5), Window(60, 5, 1, 1, 2, 2)),
     ((5, 2, 7), Window(99, 7, 3, 2, 0, 5)), ((2, 2, 2, 3, 3), Window(4, 3, 1, 1, 1, 1))],
)  # fmt: skip
def test_is_closer_to_the_finite_norm_than_the_supremum(
    shape: tuple[int, ...], window: Window, kind: str
) -> None:
    kernels = np.random.default_rng(0).standard_normal(shape) + (1.0 if kind == "smooth" else 0.0)
    geometry = tuple(
        Window(window.size, taps, window.stride, window.dilation, window.pad_begin, window.pad_end)
        for taps in shape[2:]
    )
    truth = true_norm(conv_matrix(kernels, geometry))
    value = circulant_norm(kernels[None], geometry, 1e12).bound.value
    assert truth * ROUNDING <= value
    assert value <= laurent_norm(kernels[None], geometry, INFINITE, 1e12).bound.value
    if kind == "smooth":
        assert value <= truth * (1.002 if window.size >= 60 else 1.04)


def test_boxes_prove_no_more_than_single_frequencies() -> None:
    """A torus so large that most frequencies are proved by boxes of many."""
    rng = np.random.default_rng(5)
    for _ in range(8):
        kernels = random_kernel(rng, (2, 3, 3))
        if not np.any(kernels):
            continue
        geometry = (Window(150, 3, 1, 1, 1, 1),)
        truth = true_norm(conv_matrix(kernels, geometry))
        value = circulant_norm(kernels[None], geometry, 1e12).bound.value
        assert truth * ROUNDING <= value <= truth * 1.001


def test_nothing_is_spent_where_there_is_too_much() -> None:
    kernels = np.random.default_rng(0).standard_normal((1, 3, 3, 3, 3))
    small, large = (Window(7, 3, 1, 1, 1, 1),) * 2, (Window(224, 3, 1, 1, 1, 1),) * 2
    assert not circulant_norm(kernels, small, 1e3).bound.is_finite
    assert not circulant_norm(kernels, large, 1e12).bound.is_finite
    assert not circulant_norm(kernels[..., :1, :1], (Window(7, 1),) * 2, 1e12).bound.is_finite
    assert circulant_norm(0 * kernels, small, 1e12).bound.value == 0.0


@pytest.mark.parametrize("factor", [0.0, 0.3, 0.9, 0.999, 3.0])
def test_estimates_do_not_decide_soundness(factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(matrices: Array, accuracy: float) -> Array:
        return estimate_largest(matrices, accuracy) * factor

    monkeypatch.setattr("lipcert.training.projection.torus.estimate_largest", wrong)
    rng = np.random.default_rng(4)
    kernels = rng.standard_normal((2, 3, 2, 3, 3))
    geometry = (Window(8, 3, 1, 1, 1, 1), Window(6, 3, 2, 1, 1, 0))
    truth = max(true_norm(conv_matrix(kernel, geometry)) for kernel in kernels)
    bound = circulant_norm(kernels, geometry, 1e12).bound.value
    assert bound >= truth * ROUNDING
    if factor == 0.999:
        assert bound <= truth * 1.1


def test_a_tap_that_reads_padding_only_reads_nothing_on_a_torus_either() -> None:
    """Stride 4 skips the input at every tap but one, which alone counts."""
    window = Window(4, 3, 4, 4, 3, 7)
    assert [len(window.readers(tap)) for tap in range(3)].count(0) > 0
    rng = np.random.default_rng(0)
    for _ in range(200):
        windows = tuple(random_window(rng, 4) for _ in range(int(rng.integers(1, 3))))
        for geometry in ((window,), windows):
            kernel = rng.standard_normal((1, 1, *(each.taps for each in geometry)))
            truth = true_norm(conv_matrix(kernel, geometry))
            assert circulant_norm(kernel[None], geometry, 1e12).bound.value >= truth * ROUNDING
