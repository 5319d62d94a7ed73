"""Published bounds that fall below the truth, known answers, exact arithmetic: what the core proves
of each proposal is at least the truth, and what lies below the truth it refuses.
"""

import math
from fractions import Fraction

import flint
import numpy as np
import pytest
import torch

from lipcert.core.interval import Interval
from lipcert.core.norms import ENGINES
from lipcert.core.norms.claim import NormWitness
from lipcert.core.norms.convolution import Convolution, Kernel
from lipcert.search.norms import proposals
from tests.core.norms.convolutions import window_of
from tests.search.test_norms import matrix_kernel, raised

TIERS = ("quick", "fast", "tight")
ROUNDING = 1.0 - 1e-12
_SMALL = 400


def same(size, taps=3, *, rank=2, stride=1, dilation=1):
    """A window that keeps the size, up to the stride."""
    pad = dilation * (taps - 1) // 2
    numbers = [(n,) * rank for n in (taps, size, stride, dilation, pad)]
    return window_of(*numbers, numbers[-1])


def map_of(weight, window, size, groups=1):
    rank = weight.ndim - 2
    sizes = size if isinstance(size, tuple) else (size,) * rank
    return Convolution(weight, sizes, window, groups)


def written_out(conv):
    """The matrix of a convolution with as much padding at both ends, by torch."""
    window = conv.window
    units = torch.eye(conv.kernel.shape[1] * math.prod(conv.size), dtype=torch.float64)
    images = torch.nn.functional.conv2d(
        units.reshape(-1, conv.kernel.shape[1], *conv.size),
        torch.tensor(conv.kernel),
        stride=window.strides,
        padding=window.before,
        dilation=window.dilations,
    )
    return images.reshape(len(units), -1).T.numpy()


def kernel_of(conv):
    return Kernel(Interval(conv.kernel, conv.kernel), conv, False)


def proved(kernel, tier="fast"):
    """The smallest claim that both engines prove."""
    for claim in proposals(kernel, tier):
        bound = raised(claim)
        if all(kernel.norm_at_most(bound, claim.witness, e.norms) for e in ENGINES.values()):
            return bound
    return math.inf


def refuses(kernel, norm):
    """Whether no engine proves a norm by any method."""
    witnesses = [claim.witness for claim in proposals(kernel, "fast")]
    witnesses += [NormWitness("windows"), NormWitness("absolute")]
    if math.prod(kernel.frame.size) <= _SMALL:
        witnesses.append(NormWitness("explicit"))
    return not any(
        kernel.norm_at_most(norm, witness, engine.norms)
        for witness in witnesses
        for engine in ENGINES.values()
    )


def circular_norm(weight, sizes):
    """The largest singular value over the frequencies of a circular convolution."""
    symbol = np.fft.fftn(weight, s=sizes, axes=range(2, weight.ndim))
    matrices = np.moveaxis(symbol, (0, 1), (-2, -1)).reshape(-1, *weight.shape[:2])
    return float(np.max(np.linalg.norm(matrices, 2, axis=(1, 2))))


@pytest.mark.parametrize(("size", "excess"), [(3, 1.29), (5, 1.06), (7, 1.02)])
def test_circular_frequencies_miss_zero_padding(size, excess):
    line = np.array([-1.0, 2.0, -1.0])
    conv = map_of(np.outer(line, line)[None, None], same(size), size)
    truth = np.linalg.norm(written_out(conv), 2)
    wrong = circular_norm(conv.kernel, (size, size))
    assert truth > excess * wrong
    assert refuses(kernel_of(conv), wrong)
    for tier in TIERS:
        assert proved(kernel_of(conv), tier) >= truth * ROUNDING


def test_truncating_a_kernel_wider_than_the_image():
    weight = np.zeros((1, 1, 3, 3))
    weight[0, 0, 2, 2] = 1.0
    conv = map_of(weight, same(2), 2)
    assert np.linalg.norm(written_out(conv), 2) == 1.0
    assert proved(kernel_of(conv)) >= 1.0
    assert refuses(kernel_of(conv), 0.5)


def test_alternating_maximisation_finds_a_local_maximum():
    """A strong channel with a box kernel among weaker ones: every local search may miss it."""
    rng = np.random.default_rng(0)
    weight = np.zeros((8, 8, 3, 3))
    weight[0, 0] = 1.0
    for channel in range(1, 8):
        left, _, right = np.linalg.svd(rng.standard_normal((3, 3)))
        weight[channel, channel] = 2.0 * np.outer(left[:, 0], right[0])
    bound = proved(kernel_of(map_of(weight, same(30), 30)))
    assert (1 + 2 * math.cos(math.pi / 31)) ** 2 <= bound <= 9.0 * 1.003


def test_few_frequency_samples_with_a_margin_for_the_wrong_grid():
    """Sampling both ends of the period wastes a sample: 8.0 claimed, 8.87 true."""
    line = np.array([-1.0, 1.0, -1.0])
    weight = np.outer(line, line)
    angles = np.linspace(0.0, 2 * np.pi, 4)
    phases = np.exp(1j * np.outer(angles, np.arange(3)))
    sampled = np.abs(np.einsum("at,bs,ts->ab", phases, phases, weight)).max() / (1 - 2 / 4)
    conv = map_of(weight[None, None], same(20), 20)
    truth = (1 + 2 * math.cos(math.pi / 21)) ** 2
    assert sampled < truth
    assert refuses(kernel_of(conv), float(sampled))
    assert proved(kernel_of(conv)) >= truth


def test_stride_is_not_ignored_and_not_overpaid():
    """The unit-stride supremum is sound for a strided convolution but far from tight."""
    rng = np.random.default_rng(0)
    conv = map_of(rng.standard_normal((4, 3, 7, 7)), same(16, 7, stride=2), 16)
    truth = np.linalg.norm(written_out(conv), 2)
    assert truth <= proved(kernel_of(conv)) <= 1.03 * truth
    assert circular_norm(conv.kernel, (64, 64)) > 1.2 * truth


@pytest.mark.sample(1)
@pytest.mark.parametrize("size", [7, 14, 40])
def test_the_box_kernel(size):
    exact = (1 + 2 * math.cos(math.pi / (size + 1))) ** 2
    kernel = kernel_of(map_of(np.ones((1, 1, 3, 3)), same(size), size))
    assert refuses(kernel, exact * (1.0 - 1e-7))
    assert exact <= proved(kernel) <= exact * 1.004


def test_pointwise_and_disjoint_windows_are_exact():
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((20, 30, 1, 1))
    kernel = kernel_of(map_of(weight, window_of((1, 1), (56, 56), (2, 2)), 56))
    assert proved(kernel) == pytest.approx(np.linalg.norm(weight[:, :, 0, 0], 2), rel=1e-6)
    patches = rng.standard_normal((5, 3, 4, 4))
    kernel = kernel_of(map_of(patches, window_of((4, 4), (224, 224), (4, 4)), 224))
    assert proved(kernel) == pytest.approx(np.linalg.norm(patches.reshape(5, -1), 2), rel=1e-6)


def test_groups_are_bounded_by_the_largest():
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((12, 2, 3, 3)) * np.linspace(0.1, 3, 12)[:, None, None, None]
    together = proved(kernel_of(map_of(weight, same(12), 12, 4)))
    parts = np.split(weight, 4)
    apart = max(proved(kernel_of(map_of(part, same(12), 12))) for part in parts)
    assert together == pytest.approx(apart, rel=1e-9)


def test_taps_on_padding_do_not_count():
    weight = np.full((1, 1, 3, 3), 5.0)
    weight[0, 0, 1, 1] = 1.0
    assert proved(kernel_of(map_of(weight, same(1), 1))) == pytest.approx(1.0, rel=1e-6)


@pytest.mark.parametrize("seed", range(4))
def test_matrices_against_arb(seed):
    """A ball of 200 bits around each eigenvalue of W Wᵀ."""
    matrix = np.random.default_rng(seed).standard_normal((12, 17))
    kernel = matrix_kernel(matrix)
    precision = flint.ctx.prec
    flint.ctx.prec = 200
    try:
        exact = flint.arb_mat(matrix.tolist())
        gram = flint.acb_mat(exact * exact.transpose())
        largest = max((value.real for value in gram.eig()), key=lambda ball: float(ball.mid()))
        bound = proved(kernel)
        assert flint.arb(bound) ** 2 >= largest
        assert float((flint.arb(bound) / largest.sqrt()).mid()) <= 1 + 1e-7
        assert refuses(kernel, float(largest.sqrt().mid()) * (1.0 - 1e-15))
    finally:
        flint.ctx.prec = precision


def test_a_vector_rounded_to_nearest_would_be_too_small():
    """The naive norm falls below the exact one about every second time; then it is refused."""
    rng = np.random.default_rng(5)
    naive_failures = 0
    for _ in range(30):
        row = rng.standard_normal((1, 400))
        exact = sum(Fraction(float(entry)) ** 2 for entry in row[0])
        naive = float(np.linalg.norm(row))
        assert Fraction(proved(matrix_kernel(row))) ** 2 >= exact
        if Fraction(naive) ** 2 < exact:
            naive_failures += 1
            assert refuses(matrix_kernel(row), naive)
    assert naive_failures > 3
