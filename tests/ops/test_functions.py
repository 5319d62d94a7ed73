"""Scalar functions against mpmath: constants, images and derivatives on boxes, extreme arguments.

Every comparison with mpmath is exact: a float converts to mpmath without rounding.
"""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from functools import cache
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import erf, erfc

from lipcert.interval import Interval
from lipcert.ops.functions import (
    Abs,
    Atan,
    Celu,
    Clip,
    Cos,
    Elu,
    Erf,
    ErfGate,
    Gelu,
    HardGate,
    HardSigmoid,
    HardSwish,
    LeakyRelu,
    Mish,
    QuickGelu,
    Relu,
    RootMultiple,
    ScalarFunction,
    Selu,
    Sigmoid,
    Silu,
    Sin,
    Softplus,
    Softsign,
    Tanh,
    TanhGate,
)

mp = mpmath.mp.clone()
mp.dps = 45
mpf = mp.mpf


def logistic(x):
    return 1 / (1 + mp.exp(-x))


def gelu(x):
    return tail(x) if abs(x) > 1e6 else x * mp.erfc(-x / mp.sqrt(2)) / 2


def gelu_tanh(x):
    """x·(1 + tanh u)/2 = x·σ(2u), without cancellation."""
    if abs(x) > 1e6:
        return tail(x)
    return x * logistic(2 * mp.sqrt(2 / mp.pi) * (x + mpf("0.044715") * x**3))


def erf_gate(x, slope):
    return tail(x) if abs(x) > 1e6 else x * mp.erfc(-slope * x) / 2


def tanh_gate(x, slope, cubic):
    return tail(x) if abs(x) > 1e6 else x * logistic(2 * slope * (x + cubic * x**3))


def tail(x):
    """GELU beyond mpmath's reach: x, or a negative number of no size."""
    return x if x > 0 else -(mpf(10) ** -400)


def exponential(gain, scale, width):
    gain, scale, width = mpf(gain), mpf(scale), mpf(width)
    return lambda x: gain * x if x > 0 else gain * scale * mp.expm1(x / width)


SMOOTH = {
    Sigmoid(): logistic,
    Tanh(): mp.tanh,
    Atan(): mp.atan,
    Softplus(): lambda x: mp.log1p(mp.exp(x)),
    Erf(): mp.erf,
    Gelu(): gelu,
    Gelu(approximate=True): gelu_tanh,
    Silu(): lambda x: x * logistic(x),
    QuickGelu(1.702): lambda x: x * logistic(mpf(1.702) * x),
    QuickGelu(-0.3): lambda x: x * logistic(mpf(-0.3) * x),
    ErfGate(Fraction(0.7)): lambda x: erf_gate(x, mpf(0.7)),
    ErfGate(1 / Fraction(1.3)): lambda x: erf_gate(x, 1 / mpf(1.3)),
    TanhGate(Fraction(0.797884464263916), Fraction(0.0447150021791458)): lambda x: tanh_gate(
        x, mpf(0.797884464263916), mpf(0.0447150021791458)
    ),
    TanhGate(Fraction(9, 4), Fraction(1, 3)): lambda x: tanh_gate(x, mpf(9) / 4, mpf(1) / 3),
    TanhGate(Fraction(1, 64), Fraction(50)): lambda x: tanh_gate(x, mpf(1) / 64, mpf(50)),
    RootMultiple(Fraction(1, 3)): lambda x: x / mp.sqrt(3),
    Mish(): lambda x: x * mp.tanh(mp.log1p(mp.exp(x))),
    Sin(): mp.sin,
    Cos(): mp.cos,
}
KINKED = {
    Relu(): lambda x: max(x, mpf(0)),
    Abs(): abs,
    LeakyRelu(0.01): lambda x: x if x > 0 else mpf(0.01) * x,
    LeakyRelu(-2.5): lambda x: x if x > 0 else mpf(-2.5) * x,
    Clip(-0.7, 2.0): lambda x: min(max(x, mpf(-0.7)), mpf(2)),
    Clip(-math.inf, -1.0): lambda x: min(x, mpf(-1)),
    HardSigmoid(0.2, 0.5): lambda x: min(max(mpf(0.2) * x + mpf(0.5), mpf(0)), mpf(1)),
    HardSigmoid(-3.0, 2.0): lambda x: min(max(2 - 3 * x, mpf(0)), mpf(1)),
    HardSwish(): lambda x: x * min(max(x / 6 + mpf(0.5), mpf(0)), mpf(1)),
    HardGate(Fraction(1, 7)): lambda x: x * min(max(x / 7 + mpf(0.5), mpf(0)), mpf(1)),
    HardGate(Fraction(0.16666668)): lambda x: (
        x * min(max(mpf(0.16666668) * x + mpf(0.5), mpf(0)), mpf(1))
    ),
    Elu(1.0): exponential(1, 1, 1),
    Elu(3.0): exponential(1, 3, 1),
    Elu(-0.5): exponential(1, -0.5, 1),
    Selu(): exponential(1.0507009873554805, 1.6732632423543772, 1),
    Selu(-2.0, 0.5): exponential(0.5, -2, 1),
    Selu(0.5, -3.0): exponential(-3, 0.5, 1),
    Celu(0.3): exponential(1, 0.3, 0.3),
    Softsign(): lambda x: x / (1 + abs(x)),
}
ALL = SMOOTH | KINKED


def parametrize(functions):
    return pytest.mark.parametrize(
        ("function", "truth"), functions.items(), ids=[repr(f) for f in functions]
    )


ENDS = st.one_of(
    st.floats(-8.0, 8.0),
    st.floats(-60.0, 60.0),
    st.sampled_from([0.0, -0.0, -3.0, 3.0, 5e-324, -1e-300, -1.5, 0.25, 2.0, -1.0]),
)


def box_of(low: float, high: float) -> Interval:
    return Interval(np.array([low]), np.array([high]))


def inside(box: Interval, number: Any, slack: Any = 0) -> bool:
    return mpf(float(box.lo[0])) - slack <= number <= mpf(float(box.hi[0])) + slack


def points(low: float, high: float) -> list[float]:
    return sorted({low, high, *np.clip(np.linspace(low, high, 9), low, high).tolist()})


@parametrize(ALL)
@settings(max_examples=25, deadline=None)
@given(first=ENDS, second=ENDS)
def test_images_hold_every_value(function, truth, first, second) -> None:
    low, high = sorted((first, second))
    image = function.image(box_of(low, high))
    for x in points(low, high):
        assert inside(image, truth(mpf(x))), x


@parametrize(ALL)
@settings(max_examples=12, deadline=None)
@given(first=ENDS, second=ENDS)
def test_derivatives_hold_every_one_sided_derivative(function, truth, first, second) -> None:
    low, high = sorted((first, second))
    slopes = function.derivative(box_of(low, high))
    step = mpf(10) ** -330
    with mp.workdps(400):
        for x in points(low, high):
            for side in (1, -1):
                quotient = (truth(mpf(x) + side * step) - truth(mpf(x))) / (side * step)
                assert inside(slopes, quotient, slack=mpf(10) ** -60), (x, side)


@parametrize(SMOOTH)
@settings(max_examples=15, deadline=None)
@given(first=st.floats(-9.0, 9.0), second=st.floats(-9.0, 9.0))
def test_boxes_of_smooth_functions_are_not_loose(function, truth, first, second) -> None:
    low, high = sorted((first, second))
    grid = np.linspace(low, high, 20001)
    spacing = 3.0 * (high - low) / 20000
    values = function.value(grid)
    image, slopes = function.image(box_of(low, high)), function.derivative(box_of(low, high))
    assert image.hi[0] <= values.max() + spacing + 1e-11
    assert image.lo[0] >= values.min() - spacing - 1e-11
    steps = np.gradient(values, grid) if high - low > 1e-3 else None
    if steps is not None:
        assert slopes.hi[0] <= steps.max() + spacing + 1e-6
        assert slopes.lo[0] >= steps.min() - spacing - 1e-6


@parametrize(ALL)
def test_a_wide_box_gives_the_global_constants(function, truth) -> None:
    slopes = function.derivative(box_of(-80.0, 80.0)).max_abs().value
    assert slopes == pytest.approx(function.lipschitz.value, rel=1e-13)
    assert mpf(function.origin.value) >= abs(truth(mpf(0)))
    assert function.origin.value == pytest.approx(float(abs(truth(mpf(0)))), rel=1e-15)


@parametrize(ALL)
@settings(max_examples=30, deadline=None)
@given(x=ENDS)
def test_chords_from_zero(function, truth, x) -> None:
    rise = abs(truth(mpf(x)) - truth(mpf(0)))
    assert rise <= mpf(function.chord.value) * abs(mpf(x)) + mpf(10) ** -40


def phi(x):
    return mp.exp(-x * x / 2) / mp.sqrt(2 * mp.pi)


KNOWN = {
    Gelu(): mp.erfc(-1) / 2 + mp.sqrt(2) * phi(mp.sqrt(2)),
    Gelu(approximate=True): mpf("1.1289930686587717654559044703996"),
    Silu(): mpf("1.0998393201288669169581849243206"),
    QuickGelu(1.702): mpf("1.0998393201288669169581849243206"),
    Mish(): mpf("1.0884981612517278612282936273921"),
    Selu(): mpf(1.0507009873554805) * mpf(1.6732632423543772),
    Erf(): 2 / mp.sqrt(mp.pi),
    Sigmoid(): mpf("0.25"),
    HardSwish(): mpf("1.5"),
    HardSigmoid(-3.0, 0.1): mpf(3),
    Elu(2.5): mpf("2.5"),
    Elu(-2.5): mpf("2.5"),
    Elu(0.5): mpf(1),
    Celu(0.1): mpf(1),
    LeakyRelu(-4.0): mpf(4),
}


@pytest.mark.parametrize(("function", "truth"), KNOWN.items(), ids=[repr(f) for f in KNOWN])
def test_known_lipschitz_constants(function: ScalarFunction, truth: Any) -> None:
    stated = mpf(function.lipschitz.value)
    assert truth <= stated <= truth * (1 + mpf(10) ** -15)


def test_selu_constant_is_the_published_one() -> None:
    assert Selu().lipschitz.value == pytest.approx(1.7580993408473768599, rel=1e-15)


@pytest.mark.parametrize(
    ("function", "lowest"),
    [
        (Gelu(), "-0.169971207479903661693868"),
        (Gelu(approximate=True), "-0.17004075057125405063906"),
        (Silu(), "-0.27846454276107379510935873"),
        (Mish(), "-0.30884341301725040662876"),
        (HardSwish(), "-0.375"),
    ],
    ids=repr,
)
def test_known_minima(function: ScalarFunction, lowest: str) -> None:
    stated = mpf(float(function.image(box_of(-9.0, 9.0)).lo[0]))
    assert mpf(lowest) * (1 + mpf(10) ** -14) <= stated <= mpf(lowest) * (1 - mpf(10) ** -22)


@pytest.mark.parametrize("function", [Gelu(), Gelu(approximate=True), Silu(), Mish()], ids=repr)
def test_turns_are_the_only_ones(function: ScalarFunction) -> None:
    """The derivative changes direction exactly twice, f exactly once, on a fine grid."""
    truth = SMOOTH[function]
    grid = [mpf(k) / 20 for k in range(-220, 160)]
    for values, turns in (
        ([truth(x) for x in grid], 1),
        ([mp.diff(truth, x) for x in grid], 2),
    ):
        rises = [b > a for a, b in itertools.pairwise(values)]
        assert sum(a != b for a, b in itertools.pairwise(rises)) == turns


@pytest.mark.parametrize(
    ("function", "at", "slopes"),
    [
        (Relu(), 0.0, (0.0, 1.0)),
        (Abs(), 0.0, (-1.0, 1.0)),
        (LeakyRelu(0.25), 0.0, (0.25, 1.0)),
        (LeakyRelu(-2.0), 0.0, (-2.0, 1.0)),
        (Clip(-1.0, 2.0), 2.0, (0.0, 1.0)),
        (Clip(1.0, 1.0), 1.0, (0.0, 1.0)),
        (HardSwish(), -3.0, (-0.5, 0.0)),
        (HardSwish(), 3.0, (1.0, 1.5)),
        (HardSigmoid(-0.5, 0.5), 1.0, (-0.5, 0.0)),
        (Elu(3.0), 0.0, (1.0, 3.0)),
        (Elu(-3.0), 0.0, (-3.0, 1.0)),
        (Selu(2.0, 0.5), 0.0, (0.5, 1.0)),
    ],
    ids=repr,
)
def test_kinks_count_with_everything_between(function, at, slopes) -> None:
    stated = function.derivative(box_of(at, at))
    assert stated.lo[0] <= slopes[0]
    assert stated.hi[0] >= slopes[1]
    assert stated.lo[0] == pytest.approx(slopes[0], rel=1e-12, abs=1e-12)
    assert stated.hi[0] == pytest.approx(slopes[1], rel=1e-12, abs=1e-12)


@parametrize(ALL)
def test_extreme_arguments_stay_sound_and_silent(function, truth) -> None:
    largest = np.finfo(np.float64).max
    ends = [-math.inf, -largest, -1e150, -710.0, -5e-324, 0.0, 1e-310, 710.0, 1e160, math.inf]

    @cache
    def exact(x: float) -> mpf:
        with mp.workdps(400):
            return truth(mpf(x))

    for i, low in enumerate(ends):
        for high in ends[i:]:
            if math.isinf(low) and low == high:
                continue
            image = function.image(box_of(low, high))
            slopes = function.derivative(box_of(low, high))
            assert slopes.max_abs().value <= function.lipschitz.value * (1 + 1e-12)
            for x in (low, high, min(max(low, -1e160), high), max(min(high, 1e160), low)):
                if math.isinf(x):
                    continue
                with mp.workdps(400):
                    assert inside(image, exact(x)), (low, high, x)


def test_a_known_sign_survives() -> None:
    """A value known to be non-negative stays so: later rules use it."""
    box = box_of(0.0, 2.0)
    for function in (Relu(), Tanh(), Atan(), Erf(), Gelu(), Silu(), Mish(), Elu(1.0), Softsign()):
        assert function.image(box).lo[0] == 0.0
        assert (-function.image(-box).hi)[0] <= 0.0


@pytest.mark.parametrize(
    "make",
    [
        lambda: Celu(0.0),
        lambda: Celu(-1.0),
        lambda: Clip(1.0, 0.0),
        lambda: Clip(math.nan, 0.0),
        lambda: LeakyRelu(math.inf),
        lambda: Elu(math.nan),
        lambda: QuickGelu(0.0),
        lambda: HardSigmoid(math.inf, 0.5),
    ],
)
def test_attributes_without_a_meaning_are_refused(make) -> None:
    with pytest.raises(ValueError, match=r"."):
        make()


@pytest.mark.parametrize(
    ("computed", "truth", "ulps", "span"),
    [
        (np.exp, mp.exp, 8, (-700.0, 700.0)),
        (np.tanh, mp.tanh, 8, (-20.0, 20.0)),
        (np.arctan, mp.atan, 8, (-50.0, 50.0)),
        (np.log, mp.log, 8, (1e-6, 1e6)),
        (np.expm1, mp.expm1, 8, (-40.0, 2.0)),
        (lambda x: np.logaddexp(0.0, x), lambda x: mp.log1p(mp.exp(x)), 8, (-40.0, 40.0)),
        (Softsign().value, KINKED[Softsign()], 8, (-9.0, 9.0)),
        (erf, mp.erf, 64, (-6.0, 6.0)),
        (erfc, mp.erfc, 1024, (-6.0, 26.0)),
    ],
)
def test_elementary_functions_keep_the_accuracy_they_are_trusted_with(
    computed, truth, ulps, span
) -> None:
    random = np.random.default_rng(0)
    x = np.concatenate([random.uniform(*span, 1500), random.uniform(-1, 1, 300) * 1e-3])
    x = x[(x >= span[0]) & (x <= span[1])]
    for argument, value in zip(x, computed(x), strict=True):
        exact = truth(mpf(float(argument)))
        assert abs(mpf(float(value)) - exact) <= abs(exact) * ulps * mpf(2) ** -53


def test_waves_keep_the_accuracy_they_are_trusted_with() -> None:
    random = np.random.default_rng(0)
    x = np.concatenate([random.uniform(-100, 100, 1000), 10.0 ** random.uniform(2, 300, 300)])
    with mp.workdps(400):
        for argument, sine, cosine in zip(x, np.sin(x), np.cos(x), strict=True):
            assert abs(mpf(float(sine)) - mp.sin(mpf(float(argument)))) < mpf(2) ** -50
            assert abs(mpf(float(cosine)) - mp.cos(mpf(float(argument)))) < mpf(2) ** -50


def test_softplus_bounds_hold_for_the_guarded_function_of_frameworks() -> None:
    """x above the guard, ln(1 + e^x) below: slope 1 and values below the smooth ones."""
    box = Interval(np.array([14.0, 16.0]), np.array([16.0, 30.0]))
    slopes, values = Softplus().derivative(box), Softplus().image(box)
    assert np.all(slopes.hi >= 1.0)
    assert np.all(slopes.lo <= 1.0 / (1.0 + np.exp(-box.lo)))
    assert values.lo[1] <= 16.0
    assert values.lo[0] <= np.log1p(np.exp(14.0))
    assert np.all(values.hi >= np.log1p(np.exp(box.hi)))
    below = Softplus().image(box_of(15.0 - 1e-9, 15.0))
    assert below.lo[0] <= 15.0  # the smooth one is above 15 already
