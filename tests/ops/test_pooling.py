"""Pooling: explicit matrices, exact rational averages, known answers, refusals."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lipcert.facts import Bound, ValueFacts
from lipcert.interval import Interval
from lipcert.geometry import Window
from lipcert.norms.operator_norm import Tier
from lipcert.ops.pooling import AveragePool, LpPool, MaxPool
from lipcert.scope import PointScope
from lipcert.upper import Upper

POINT = PointScope(Tier.QUICK)


def facts(shape, radius=1.0, box=None) -> ValueFacts:
    ends = None if box is None else Interval(np.full(shape, box[0]), np.full(shape, box[1]))
    return ValueFacts.of(shape, Bound(Upper(radius), "test"), ends)


def lipschitz(op) -> float:
    shape = (1, *(window.size for window in op.geometry))
    return op.input_lipschitz(0, [facts(shape)], POINT).value.value


@st.composite
def windows(draw) -> Window:
    taps, stride, dilation = (
        draw(st.integers(1, 4)),
        draw(st.integers(1, 4)),
        draw(st.integers(1, 2)),
    )
    pad_begin, pad_end = draw(st.integers(0, 2)), draw(st.integers(0, 2))
    size = draw(st.integers(1, 6))
    assume(size + pad_begin + pad_end >= dilation * (taps - 1) + 1)
    return Window(size, taps, stride, dilation, pad_begin, pad_end)


def slow(x, geometry, combine):
    """Windows by definition: one Python loop per output."""
    shape = (x.shape[0], *(w.outputs for w in geometry))
    result = np.empty(shape)
    for output in itertools.product(*map(range, shape)):
        channel, *place = output
        reads = [
            [w.read(o, t) for t in range(w.taps)] for w, o in zip(geometry, place, strict=True)
        ]
        entries = [x[(channel, *at)] for at in itertools.product(*reads) if None not in at]
        result[output] = combine(entries, output)
    return result


@given(st.lists(windows(), min_size=1, max_size=3), st.integers(1, 3), st.integers(0, 999))
@settings(max_examples=40, deadline=None)
def test_evaluate_and_boxes_follow_the_definition(geometry, p, seed) -> None:
    geometry = tuple(geometry)
    random = np.random.default_rng(seed)
    shape = (2, *(w.size for w in geometry))
    x = random.normal(size=shape)
    divisors = tuple(tuple(random.integers(1, 5, w.outputs).tolist()) for w in geometry)
    box = Interval(x - random.random(shape), x + random.random(shape))
    ops = [(AveragePool(geometry, divisors), lambda e, o: sum(e) / divisor(o))]

    def divisor(output):
        return math.prod(d[o] for d, o in zip(divisors, output[1:], strict=True))

    if all(min(w.reads()) > 0 for w in geometry):
        ops.append((MaxPool(geometry), lambda e, _: max(e)))
        ops.append((LpPool(geometry, p), lambda e, _: sum(abs(v) ** p for v in e) ** (1 / p)))
    for op, combine in ops:
        expected = slow(x, geometry, combine)
        assert op.output_shape([shape]) == expected.shape
        np.testing.assert_allclose(op.evaluate(x[np.newaxis])[0], expected, atol=1e-12)
        whole = Bound(box.norm(), "test")
        out = op.output_facts([ValueFacts.of(shape, whole, box)], POINT)
        for point in (x, box.lo, box.hi, np.where(random.random(shape) < 0.5, box.lo, box.hi)):
            value = slow(point, geometry, combine)
            assert np.all(value <= out.box.hi + 1e-12)
            assert np.all(value >= out.box.lo - 1e-12)
            assert np.linalg.norm(value) <= out.norm.value.value * (1 + 1e-12)


@given(st.lists(windows(), min_size=1, max_size=2), st.integers(0, 999))
@settings(max_examples=40, deadline=None)
def test_average_pool_norm_is_that_of_the_matrix(geometry, seed) -> None:
    geometry = tuple(geometry)
    random = np.random.default_rng(seed)
    divisors = tuple(tuple(random.integers(1, 5, w.outputs).tolist()) for w in geometry)
    op = AveragePool(geometry, divisors)
    shape = (1, *(w.size for w in geometry))
    basis = np.eye(math.prod(shape)).reshape(-1, *shape)
    matrix = op.evaluate(basis).reshape(len(basis), -1)
    true = np.linalg.norm(matrix, 2)
    assert true * (1 - 1e-12) <= lipschitz(op) <= true * (1 + 1e-6) + 1e-300
    assert op.operator_norm(POINT).value.value == lipschitz(op)


@pytest.mark.parametrize(
    ("taps", "stride", "pad", "expected"),
    [(3, 1, 1, 3.0), (3, 2, 0, 2.0), (2, 1, 0, 2.0), (5, 3, 0, 2.0), (2, 2, 0, 1.0)],
)
def test_max_pool_known_answers(taps, stride, pad, expected) -> None:
    """The overlap counts, and one peak attains it."""
    size = 11
    window = Window(size, taps, stride, 1, pad, pad)
    op = MaxPool((window, window))
    assert lipschitz(op) == expected
    peaks = np.zeros((size * size, 1, size, size))
    peaks[
        np.arange(size * size), 0, np.arange(size * size) // size, np.arange(size * size) % size
    ] = 1
    assert np.sqrt((op.evaluate(peaks) ** 2).sum((1, 2, 3)).max()) == expected


def test_max_pool_never_sees_padding() -> None:
    op = MaxPool((Window(3, 3, 1, 1, 1, 1),))
    assert op.evaluate(np.full((1, 1, 3), -5.0)).tolist() == [[[-5.0, -5.0, -5.0]]]
    box = op.output_facts([facts((1, 3), 99.0, (-7.0, -5.0))], POINT).box
    assert box.lo.tolist() == [[-7.0] * 3]
    assert box.hi.tolist() == [[-5.0] * 3]


def test_average_pool_known_answers() -> None:
    two = Window(6, 2, 2)
    assert lipschitz(AveragePool((two, two), ((2,) * 3, (2,) * 3))) == pytest.approx(0.5, rel=1e-15)
    line = Window(7, 3, 1, 1, 1, 1)
    inside_only = tuple(line.reads())
    assert lipschitz(AveragePool((line, line), (inside_only,) * 2)) == pytest.approx(
        1.0167, abs=1e-4
    )


def test_lp_pool_known_answers() -> None:
    two = Window(4, 2, 2)
    assert lipschitz(LpPool((two, two), 2)) == 1.0
    assert lipschitz(LpPool((two, two), 5)) == 1.0
    assert lipschitz(LpPool((two, two), 1)) == 2.0
    assert lipschitz(LpPool((Window(5, 3),), 2)) == pytest.approx(math.sqrt(3))
    out = LpPool((two,), 2).output_facts([facts((3, 4), 0.0)], POINT)
    assert out.norm.value.value == 0.0


def test_huge_and_tiny_boxes_stay_sound() -> None:
    op = LpPool((Window(2, 2),), 3)
    for scale in (1e-200, 1e150):
        out = op.output_facts([facts((1, 2), 1e308, (0.5 * scale, scale))], POINT).box
        assert out.lo[0, 0] <= 0.5 * scale * 2 ** (1 / 3)
        assert out.hi[0, 0] >= scale * 2 ** (1 / 3) * (1 - 1e-15)


def test_refusals() -> None:
    line = (Window(4, 2, 2),)
    with pytest.raises(ValueError, match="padding only"):
        MaxPool((Window(2, 1, 1, 1, 1, 0),))
    with pytest.raises(ValueError, match="padding only"):
        LpPool((Window(2, 1, 1, 1, 1, 0),))
    with pytest.raises(ValueError, match="p >= 1"):
        LpPool(line, 0)
    with pytest.raises(ValueError, match="divisors"):
        AveragePool(line, ((2,),))
    with pytest.raises(ValueError, match="less than 1"):
        AveragePool(line, ((2, 0),))
    for shape in ((4,), (1, 5), (1, 4, 4), ()):
        with pytest.raises(ValueError, match="fit"):
            MaxPool(line).output_shape([shape])
