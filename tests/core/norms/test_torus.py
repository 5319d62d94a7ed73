import itertools
import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from lipcert.core.circle import half_turns
from lipcert.core.norms import torus
from lipcert.core.norms.convolution import Convolution
from lipcert.core.norms.float_engine import norm_at_most_float
from lipcert.core.norms.integer_engine import norm_at_most_exact
from lipcert.core.norms.lines import axes_of
from lipcert.core.norms.stacks import norms_at_most_float, square_sums
from lipcert.core.norms.symbol import GramSymbol, Symbol, symbol_of
from lipcert.core.norms.torus import absolute_at_most, torus_at_most

from .convolutions import convolutions, window_of

engines = pytest.mark.parametrize("check", [norm_at_most_float, norm_at_most_exact])


def least_counts(conv, twists):
    """The smallest counts that are accepted, one for each axis with shifts."""
    counts = []
    rest = iter(twists)
    for axis in axes_of(conv):
        if axis.length > 1:
            twist = next(rest)
            counts.append(next(n for n in range(1, 100) if axis.fits(n, twist)))
    return tuple(counts)


def extended(conv):
    return [number for number, axis in enumerate(axes_of(conv)) if axis.length > 1]


def circular(conv, counts, twists):
    """The norm of the circular convolution around, a matrix written out by definition.

    Along an axis with N = D·count outputs, tap t of output o reads entry s·o + d·t modulo s·N.
    """
    window, rank = conv.window, len(conv.size)
    shape, turns = list(window.outputs), [0.0] * rank
    for number, count, twist in zip(extended(conv), counts, twists, strict=True):
        stride, dilation = window.strides[number], window.dilations[number]
        apart = dilation // math.gcd(stride, dilation)
        shape[number] = apart * count
        turns[number] = twist * np.pi / (count * stride * apart)
    inputs = [n * s for n, s in zip(shape, window.strides, strict=True)]
    rows, inner = len(conv.kernel) // conv.groups, conv.kernel.shape[1]
    best = 0.0
    for kernel in np.split(conv.kernel, conv.groups):
        matrix = np.zeros((rows, math.prod(shape), inner, math.prod(inputs)), dtype=complex)
        for flat, place in enumerate(np.ndindex(*shape)):
            for tap in np.ndindex(*window.taps):
                moved = [t * d for t, d in zip(tap, window.dilations, strict=True)]
                at = [p * s + m for p, s, m in zip(place, window.strides, moved, strict=True)]
                wrapped = tuple(a % n for a, n in zip(at, inputs, strict=True))
                turn = np.exp(1j * sum(a * b for a, b in zip(moved, turns, strict=True)))
                where = np.ravel_multi_index(wrapped, inputs)
                matrix[:, flat, :, where] += turn * kernel[(..., *tap)]
        best = max(best, np.linalg.norm(matrix.reshape(rows * math.prod(shape), -1), 2))
    return best


def trimmed(conv):
    """Without taps that read nothing."""
    kernel = conv.kernel.copy()
    for axis in range(len(conv.size)):
        dead = ~(conv.reads(axis) >= 0).any(axis=0)
        np.moveaxis(kernel, axis + 2, 0)[dead] = 0.0
    return Convolution(kernel, conv.size, conv.window, conv.groups)


@engines
@given(convolutions(ranks=(1, 2)), st.integers(0, 3), st.integers(0, 2))
def test_claims_on_tori(check, conv, twist, more):
    twists = tuple(twist >> number & 1 for number in range(len(extended(conv))))
    counts = tuple(n + more for n in least_counts(conv, twists))
    around = circular(trimmed(conv), counts, twists)
    inside = np.linalg.norm(conv.matrix(), 2)
    assert inside <= around * (1.0 + 1e-12)
    assert torus_at_most(conv, counts, twists, around * (1.0 + 1e-8), check)
    assert (
        around == 0.0
        or inside == 0.0
        or not torus_at_most(conv, counts, twists, around * (1.0 - 1e-6), check)
    )


@given(convolutions(), st.lists(st.integers(1, 9), max_size=3), st.integers(0, 7))
def test_no_witness_proves_a_claim_that_is_false(conv, counts, twist):
    norm = float(np.linalg.norm(conv.matrix(), 2))
    assume(norm > 0.0)
    twists = tuple(twist >> number & 1 for number in range(len(counts)))
    assert not torus_at_most(conv, tuple(counts), twists, norm * (1 - 1e-6), norm_at_most_float)


@engines
@given(convolutions())
def test_absolute_values(check, conv):
    norm = float(np.linalg.norm(np.abs(conv.matrix()), 2))
    plain = Convolution(np.abs(conv.kernel), conv.size, conv.window, conv.groups)
    twists = (0,) * len(extended(conv))
    around = circular(trimmed(plain), least_counts(conv, twists), twists)
    assert absolute_at_most(conv, around * (1.0 + 1e-8), check)
    assert norm == 0.0 or not absolute_at_most(conv, norm * (1.0 - 1e-6), check)


def wrapped(kernel, size, dilation=1, stride=1):
    """A convolution of a line that is wrapped around."""
    taps = kernel.shape[2]
    line = np.arange(-2, size + dilation * (taps - 1) - 2) % size
    window = window_of((taps,), (len(line),), (stride,), (dilation,))
    return Convolution(kernel, (size,), window, moved=(line,))


@engines
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("dilation", [1, 2, 3])
def test_wrapped_lines_are_their_own_torus(check, stride, dilation):
    rng = np.random.default_rng(dilation)
    conv = wrapped(rng.standard_normal((2, 3, 3)), 10, dilation, stride)
    norm = np.linalg.norm(conv.matrix(), 2)
    apart = dilation // math.gcd(dilation, stride)
    count = 10 // stride // math.gcd(10 // stride, apart)
    assert torus_at_most(conv, (count,), (0,), norm * (1.0 + 1e-8), check)
    assert not torus_at_most(conv, (count,), (0,), norm * (1.0 - 1e-6), check)
    assert not torus_at_most(conv, (count,), (1,), norm * 9.0, check)
    assert not torus_at_most(conv, (count + 1,), (0,), norm * 9.0, check)


def ring(kernel, sizes):
    """A convolution of a grid that is wrapped around along every axis."""
    taps = kernel.shape[2:]
    moved = tuple(np.arange(n + t - 1) % n for n, t in zip(sizes, taps, strict=True))
    window = window_of(taps, tuple(map(len, moved)))
    return Convolution(kernel, sizes, window, moved=moved)


def peak(kernel, sizes):
    """The largest norm of the discrete Fourier transform of a kernel, by singular values."""
    transformed = np.moveaxis(np.fft.fftn(kernel, sizes, range(2, kernel.ndim)), (0, 1), (-2, -1))
    return float(np.linalg.norm(transformed, 2, axis=(-2, -1)).max())


@engines
@pytest.mark.parametrize("sizes", [(48,), (47,), (24, 25), (40, 3), (9, 8, 10)])
def test_claims_on_large_tori(check, sizes):
    rng = np.random.default_rng(len(sizes))
    for _ in range(3 if check is norm_at_most_exact else 10):
        kernel = rng.standard_normal((2, 3, *[min(3, n) for n in sizes]))
        conv, norm, twists = ring(kernel, sizes), peak(kernel, sizes), (0,) * len(sizes)
        assert not torus_at_most(conv, sizes, twists, norm * (1.0 - 1e-6), check)
        assert torus_at_most(conv, sizes, twists, norm * (1.0 + 1e-8), check)


@pytest.mark.sample(sizes=3, taps=1)
@pytest.mark.parametrize("sizes", [(16,), (33,), (12, 12), (100,)])
@pytest.mark.parametrize("taps", [2, 3, 5])
def test_peaks_anywhere_between_frequencies(sizes, taps):
    """|P(w)| is the larger Π 2|cos((taps − 1)(w ± a)/2)|, which falls off as fast as a norm can."""
    rank = len(sizes)
    for angle in np.linspace(0.0, 2.0 * np.pi, 9):
        cosine, sine = np.cos(angle), np.sin(angle)
        kernel, turn = np.zeros((2, 2, *[taps] * rank)), np.array([[cosine, -sine], [sine, cosine]])
        for corner in itertools.product((0, -1), repeat=rank):
            kernel[(..., *corner)] = np.linalg.matrix_power(turn, -sum(corner))
        conv, norm, twists = ring(kernel, sizes), peak(kernel, sizes), (0,) * rank
        assert torus_at_most(conv, sizes, twists, norm * (1.0 + 1e-8), norm_at_most_float)
        for below in (1e-7, 1e-3, 1e-2):
            claim = norm * (1.0 - below)
            assert not torus_at_most(conv, sizes, twists, claim, norm_at_most_float)


def test_few_frequencies_are_looked_at(monkeypatch):
    powers, seen = torus._powers, []
    monkeypatch.setattr(torus, "_powers", lambda *asked: seen.append(asked[1]) or powers(*asked))
    kernel = np.random.default_rng(0).standard_normal((8, 8, 3, 3))
    conv, claim = ring(kernel, (64, 65)), peak(kernel, (64, 65)) * (1.0 + 1e-8)
    assert torus_at_most(conv, (64, 65), (0, 0), claim, norm_at_most_float)
    assert sum(map(len, seen)) < 64 * 65 / 4


@pytest.mark.parametrize(
    ("taps", "side", "points", "quicker"),
    [(3, 64, 5000, True), (3, 64, 5, False), (31, 1, 500, False)],
)
def test_the_quicker_form(taps, side, points, quicker):
    kernel = np.full((taps**2, 1, side, side), 0.5)
    assert isinstance(symbol_of(kernel, (taps, taps), points), GramSymbol) is quicker


def test_reflected_lines_have_no_torus():
    line = np.array([1, 0, 1, 2, 3, 2])
    conv = Convolution(np.ones((1, 1, 3)), (4,), window_of((3,), (6,)), moved=(line,))
    for count in range(1, 12):
        assert not torus_at_most(conv, (count,), (0,), 100.0, norm_at_most_float)
    assert absolute_at_most(conv, 3.0, norm_at_most_float) is False


@engines
@pytest.mark.parametrize("scale", [1.0, 1e300, 2.0**-1035])
def test_constant_kernels(check, scale):
    window = window_of((3, 3), (8, 8), before=(1, 1), after=(1, 1))
    conv = Convolution(np.full((2, 2, 3, 3), scale), (8, 8), window)
    assert torus_at_most(conv, (9, 9), (0, 0), 18.0 * scale * (1.0 + 1e-8), check)
    assert not torus_at_most(conv, (9, 9), (0, 0), 18.0 * scale * (1.0 - 1e-8), check)
    assert absolute_at_most(conv, 18.0 * scale * (1.0 + 1e-8), check)


def test_zero_kernels():
    window = window_of((3,), (8,))
    conv = Convolution(np.zeros((2, 2, 3)), (8,), window)
    assert torus_at_most(conv, (), (), 0.0, norm_at_most_float)
    assert absolute_at_most(conv, 0.0, norm_at_most_float)


@pytest.mark.parametrize(
    ("counts", "twists"),
    [
        ((), ()),
        ((9,), ()),
        ((9, 9), (0, 0)),
        ((9,), (2,)),
        ((9,), (-1,)),
        ((8,), (0,)),
        ((0,), (0,)),
    ],
)
def test_witnesses_that_do_not_fit(counts, twists):
    window = window_of((3,), (8,), before=(1,), after=(1,))
    conv = Convolution(np.ones((1, 1, 3)), (8,), window)
    assert torus_at_most(conv, (9,), (0,), 10.0, norm_at_most_float)
    assert not torus_at_most(conv, counts, twists, 10.0, norm_at_most_float)


def test_too_many_frequencies():
    window = window_of((3, 3), (8, 8))
    conv = Convolution(np.ones((64, 64, 3, 3)), (8, 8), window)
    assert not torus_at_most(conv, (4000, 4000), (0, 0), 1e9, norm_at_most_float)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 7, 16, 57, 113, 226])
def test_parts_are_within_the_promise(count):
    roots = half_turns(count, 2 * count)
    assert roots.shape == (2 * count,)
    with mpmath.workprec(200):
        for m, root in enumerate(roots.tolist()):
            angle = mpmath.pi * m / count
            assert abs(mpmath.mpf(root.real) - mpmath.cos(angle)) <= mpmath.mpf(2) ** -53
            assert abs(mpmath.mpf(root.imag) - mpmath.sin(angle)) <= mpmath.mpf(2) ** -53


@pytest.mark.parametrize(("count", "parts"), [(0, 1), (-1, 1), (1, 0), (1, 1 << 22)])
def test_other_counts(count, parts):
    with pytest.raises(ValueError, match="half turn"):
        half_turns(count, parts)


sizes = st.tuples(st.integers(1, 4), st.integers(1, 9), st.integers(1, 9))


def complex_stack(shape, seed, scale=1.0, rank=None):
    rng = np.random.default_rng(seed)
    k, m, n = shape
    rank = min(m, n) if rank is None else rank

    def gaussian(*sides):
        return rng.standard_normal(sides) + 1j * rng.standard_normal(sides)

    return np.ascontiguousarray(gaussian(k, m, rank) @ gaussian(k, rank, n) * scale)


@given(sizes, st.integers(0, 10**6), st.sampled_from([1.0, 1e-300, 1e300, 2.0**-1040]))
def test_claims(shape, seed, scale):
    stack = complex_stack(shape, seed, scale)
    exact = np.linalg.norm(stack * 2.0**600 if scale < 1e-305 else stack, 2, axis=(1, 2)).max()
    norm = float(exact * 2.0**-600 if scale < 1e-305 else exact)
    slack = 1e-8 if scale >= 1e-300 else 1e-3
    assert norms_at_most_float(stack, norm * (1.0 + slack)).all()
    assert not norms_at_most_float(stack, norm * (1.0 - slack)).all()


@pytest.mark.parametrize("side", [3, 60])
def test_each_matrix_is_proved_by_itself(side):
    stack = np.zeros((5, side, side), dtype=np.complex128)
    stack[:, range(side), range(side)] = 1.0
    stack[3, 0, 0] = 1j * (1.0 + 1e-7)
    assert norms_at_most_float(stack, 1.0 + 5e-8).tolist() == [True, True, True, False, True]
    assert norms_at_most_float(stack, 1.0 + 1.01e-7).all()
    assert not norms_at_most_float(stack, 1.0 - 1e-7).any()


def test_a_matrix_whose_parts_alone_are_within_the_claim():
    stack = np.array([[[1.0, 1j], [-1j, 1.0]]])  # norm 2, real and imaginary part 1
    assert norms_at_most_float(stack, 2.0 + 1e-9).all()
    assert not norms_at_most_float(stack, 2.0 - 1e-9).any()
    assert not norms_at_most_float(stack.conj(), 1.5).any()


def test_zeros():
    assert norms_at_most_float(np.zeros((2, 3, 4), dtype=np.complex128), 0.0).all()
    assert not norms_at_most_float(np.full((1, 1, 1), 5e-324 + 0j), 0.0).any()
    assert len(norms_at_most_float(np.zeros((0, 3, 4), dtype=np.complex128), 0.0)) == 0


@pytest.mark.parametrize("claim", [-1.0, np.inf, np.nan])
def test_no_claims(claim):
    with pytest.raises(ValueError, match="finite"):
        norms_at_most_float(np.zeros((1, 1, 1), dtype=np.complex128), claim)


def test_numbers_that_are_not_finite():
    with pytest.raises(ValueError, match="finite"):
        norms_at_most_float(np.full((1, 2, 2), np.inf + 0j), 1.0)


@given(sizes, st.integers(0, 10**6), st.sampled_from([1.0, 1e-170, 1e100]))
def test_square_sums_are_above(shape, seed, scale):
    stack = complex_stack(shape, seed, scale)
    for matrix, bound in zip(stack, square_sums(stack), strict=True):
        exact = sum(Fraction(z.real) ** 2 + Fraction(z.imag) ** 2 for z in matrix.ravel().tolist())
        assert (
            exact
            <= Fraction(float(bound))
            <= exact * (1 + Fraction(1, 10**12)) + Fraction(1, 2**980)
        )


shapes = st.tuples(
    st.lists(st.integers(2, 3), max_size=2), st.integers(1, 2), st.integers(1, 4), st.integers(1, 4)
)
QUARTERS = [(1, 0), (0, 1), (-1, 0), (0, -1)]  # powers of i


def random_kernel(lengths, groups, outputs, inputs, seed):
    shape = (int(np.prod(lengths, dtype=int)), groups, outputs, inputs)
    kernel = np.random.default_rng(seed).standard_normal(shape)
    return np.ldexp(kernel, -np.frexp(np.abs(kernel).max())[1])


def powers_at(symbol, turns):
    """exp(iπ/2·Σ_a j_a·turns_a), exact in float64."""
    quarters = [QUARTERS[int(e @ turns) % 4] for e in symbol.exponents]
    return np.array([[complex(*quarter) for quarter in quarters]])


def exact_symbol(kernel, lengths, turns):
    """P at quarter turns: its real and imaginary parts as rational numbers, group by group."""
    parts = []
    for j, taps in zip(itertools.product(*map(range, lengths)), kernel, strict=True):
        quarter = QUARTERS[int(np.dot(j, turns)) % 4]
        exact = np.vectorize(Fraction, otypes=[object])(taps)
        parts.append([exact * part for part in quarter])
    return sum(real for real, _ in parts), sum(imaginary for _, imaginary in parts)


@given(shapes, st.tuples(st.integers(0, 3), st.integers(0, 3)), st.integers(0, 10**6))
def test_gram_matrices_are_within_their_error(shape, quarters, seed):
    lengths, groups, outputs, inputs = shape
    kernel = random_kernel(lengths, groups, outputs, inputs, seed)
    turns = np.array(quarters[: len(lengths)], dtype=np.int64)
    symbol = GramSymbol.of(Symbol(kernel, tuple(lengths)))
    computed = symbol.matrices(powers_at(symbol, turns))
    real, imaginary = exact_symbol(kernel, lengths, turns)
    if outputs > inputs:
        real, imaginary = real.swapaxes(1, 2), imaginary.swapaxes(1, 2)
    for H, X, Y in zip(computed, real, imaginary, strict=True):
        even, odd = X @ X.T + Y @ Y.T, Y @ X.T - X @ Y.T
        pairs = [(H.real, even), (H.imag, odd)]
        apart = [Fraction(a) - b for A, B in pairs for a, b in zip(A.flat, B.flat, strict=True)]
        assert sum(each**2 for each in apart) <= symbol.error**2
        assert np.trace(even) <= symbol.square
    assert symbol.error <= 1e-12 * symbol.square


def by_coefficients(kernel, lengths):
    return GramSymbol.of(Symbol(kernel, lengths))


@pytest.mark.parametrize("form", [Symbol, by_coefficients])
@given(shapes, st.integers(0, 10**6), st.floats(0.0, 6.28))
def test_norms_at_frequencies(form, shape, seed, angle):
    lengths, groups, outputs, inputs = shape
    kernel = random_kernel(lengths, groups, outputs, inputs, seed)
    symbol = form(kernel, tuple(lengths))
    angles = angle * np.arange(1, 1 + len(lengths))
    powers = np.exp(1j * (symbol.exponents @ angles))[None]
    shifts = np.array(list(itertools.product(*map(range, lengths)))).reshape(len(kernel), -1)
    matrices = np.tensordot(np.exp(1j * (shifts @ angles)), kernel, 1)
    norms = np.linalg.norm(matrices, 2, axis=(1, 2))
    for norm in norms:
        above = symbol.at_most(
            powers, Fraction(norm) * (1 + Fraction(1, 10**8)), norm_at_most_float
        )
        below = symbol.at_most(
            powers, Fraction(norm) * (1 - Fraction(1, 10**6)), norm_at_most_float
        )
        assert (above >= (norms <= norm)).all()
        assert not below[norms >= norm].any()
    assert symbol.at_most(powers, Fraction(10) ** 400, norm_at_most_float).all()
    assert not symbol.at_most(powers, Fraction(-1), norm_at_most_float).any()
