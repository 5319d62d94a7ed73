"""Scalar functions: images and slopes of boxes against mpmath and dense sampling."""

import itertools
import math

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lipcert.core.interval import Interval
from lipcert.core.lower.errors import Unsupported
from lipcert.core.program import Activation
from lipcert.core.rules.activations import function
from lipcert.core.rules.facts import Fact
from tests.core.rules.cases import everywhere, stretch

mpmath.mp.dps = 50


def _piece(low: float, high: float):
    return lambda x: min(max(x, mpmath.mpf(low)), mpmath.mpf(high))


def _exponential(gain: float, scale: float, width: float):
    return lambda x: gain * (x if x > 0 else scale * mpmath.expm1(x / width))


def _sigma(x: mpmath.mpf) -> mpmath.mpf:
    return 1 / (1 + mpmath.exp(-x))


def _tanh_gate(slope: mpmath.mpf, cubic: mpmath.mpf):
    return lambda x: x * _sigma(2 * slope * (x + cubic * x**3))


_gelu_tanh = _tanh_gate(mpmath.sqrt(2 / mpmath.pi), mpmath.mpf("0.044715"))
OWN_NUMBERS = ((0.797884464263916, 0.0447150021791458), (1.25, 0.125), (0.03125, 12.0))


EVERYWHERE = {
    ("relu", ()): lambda x: max(x, mpmath.mpf(0)),
    ("leaky_relu", (0.25,)): lambda x: x if x > 0 else x / 4,
    ("leaky_relu", (-0.5,)): lambda x: x if x > 0 else -x / 2,
    ("leaky_relu", (3.0,)): lambda x: x if x > 0 else 3 * x,
    ("abs", ()): abs,
    ("clip", (-1.0, 2.0)): _piece(-1.0, 2.0),
    ("clip", (-math.inf, 1.5)): _piece(-math.inf, 1.5),
    ("clip", (0.75, 0.75)): _piece(0.75, 0.75),
    ("hard_sigmoid", (0.2, 0.5)): lambda x: _piece(0, 1)(mpmath.mpf(0.2) * x + 0.5),
    ("hard_sigmoid", (-0.3, 0.4)): lambda x: _piece(0, 1)(mpmath.mpf(-0.3) * x + mpmath.mpf(0.4)),
    ("hard_sigmoid", (0.0, 0.4)): lambda x: mpmath.mpf(0.4) + 0 * x,
    ("hard_swish", ()): lambda x: x * _piece(0, 1)(x / 6 + 0.5),
    ("elu", (1.0,)): _exponential(1.0, 1.0, 1.0),
    ("elu", (2.5,)): _exponential(1.0, 2.5, 1.0),
    ("elu", (-0.5,)): _exponential(1.0, -0.5, 1.0),
    ("selu", (1.67, 1.05)): _exponential(1.05, 1.67, 1.0),
    ("celu", (0.7,)): _exponential(1.0, 0.7, 0.7),
    ("sigmoid", ()): _sigma,
    ("tanh", ()): mpmath.tanh,
    ("atan", ()): mpmath.atan,
    ("softplus", ()): lambda x: mpmath.log1p(mpmath.exp(x)),
    ("softsign", ()): lambda x: x / (1 + abs(x)),
    ("erf", ()): mpmath.erf,
    ("sin", ()): mpmath.sin,
    ("cos", ()): mpmath.cos,
    ("gelu", ()): lambda x: x * mpmath.ncdf(x),
    ("gelu_tanh", ()): _gelu_tanh,
    **{("gelu_tanh", numbers): _tanh_gate(*map(mpmath.mpf, numbers)) for numbers in OWN_NUMBERS},
    ("silu", ()): lambda x: x * _sigma(x),
    ("quick_gelu", (1.702,)): lambda x: x * _sigma(mpmath.mpf(1.702) * x),
    ("quick_gelu", (-1.5,)): lambda x: x * _sigma(-1.5 * x),
    ("mish", ()): lambda x: x * mpmath.tanh(mpmath.log1p(mpmath.exp(x))),
    ("exp", ()): mpmath.exp,
    ("power", (0.0,)): lambda x: 1 + 0 * x,
    ("power", (1.0,)): lambda x: x,
    ("power", (2.0,)): lambda x: x**2,
    ("power", (3.0,)): lambda x: x**3,
    ("soft_threshold", (0.5,)): lambda x: x - _piece(-0.5, 0.5)(x),
}
POSITIVE = {
    ("log", ()): mpmath.log,
    ("sqrt", ()): mpmath.sqrt,
    ("reciprocal", ()): lambda x: 1 / x,
    ("power", (-2.0,)): lambda x: x**-2,
    ("power", (1.5,)): lambda x: x ** mpmath.mpf(1.5),
    ("power", (-0.3,)): lambda x: x ** mpmath.mpf(-0.3),
    ("power", (70.0,)): lambda x: x**70,
}
EVERY = {**EVERYWHERE, **POSITIVE}
SMOOTH_TOPS = {"gelu": 1.4, "gelu_tanh": 1.4, "silu": 2.4, "mish": 1.5, "tanh": 0.0, "erf": 0.0}


def _box(case, start: float, width: float) -> tuple[float, float]:
    low = abs(start) + 0.01 if case in POSITIVE else start
    return low, low + width


def _over(low: float, high: float) -> Interval:
    return Interval(np.array([low]), np.array([high]))


def _holds(image: Interval, value: mpmath.mpf, slack: float = 0.0) -> bool:
    low, high = mpmath.mpf(float(image.lo[0])), mpmath.mpf(float(image.hi[0]))
    return bool(low - slack <= value <= high + slack)


@pytest.mark.sample(24)
@pytest.mark.parametrize("case", EVERY, ids=str)
def test_images_and_slopes_hold_what_they_should_and_little_more(case) -> None:
    """Slopes by secants: every one is a mean of derivatives between two points."""
    oracle, known = EVERY[case], function(*case)
    rng = np.random.default_rng(3)
    starts = np.concatenate([rng.normal(size=8) * 2.5, [-1.0, 0.0, -3.0]])
    for start, width in zip(starts, [*rng.exponential(size=9), 0.0, 6.0], strict=True):
        low, high = _box(case, float(start), float(width))
        image, slope = known.image(_over(low, high)), known.derivative(_over(low, high))
        steps = (mpmath.mpf(low) + k * mpmath.mpf(width) / 60 for k in range(61))
        points = [min(step, mpmath.mpf(high)) for step in steps]
        values = [oracle(x) for x in points]
        assert all(_holds(image, value) for value in values)
        size = 1 + max(abs(value) for value in values)
        assert image.lo[0] >= min(values) - 1e-2 * size * width**2 - 1e-9 * size
        assert image.hi[0] <= max(values) + 1e-2 * size * width**2 + 1e-9 * size
        pairs = list(zip(points, values, strict=True))
        secants = [
            (above - below) / (right - left)
            for (left, below), (right, above) in itertools.pairwise(pairs)
            if right > left
        ]
        assert all(_holds(slope, secant, 1e-20 * size) for secant in secants)
        if len(secants) > 1 and case[0] not in {"clip", "hard_sigmoid", "soft_threshold"}:
            spread = max(secants) - min(secants)
            slack = mpmath.mpf("0.4") * spread + 1e-9 * size
            if width < 1.0 or case not in POSITIVE:
                assert slope.lo[0] >= min(secants) - slack
                assert slope.hi[0] <= max(secants) + slack


@given(
    st.sampled_from(list(EVERYWHERE)),
    st.floats(-60, 60),
    st.floats(0, 30) | st.just(math.inf),
    st.floats(0, 1),
)
def test_any_point_of_any_box_is_held(case, low: float, width: float, share: float) -> None:
    high = low + width
    point = min(max(low + share * min(width, 100.0), low), high)
    known = function(*case)
    assert _holds(known.image(_over(low, high)), EVERYWHERE[case](mpmath.mpf(point)))
    left = EVERYWHERE[case](mpmath.mpf(point) - mpmath.mpf(2) ** -40)
    right = EVERYWHERE[case](mpmath.mpf(point) + mpmath.mpf(2) ** -40)
    secant = (right - left) * mpmath.mpf(2) ** 39
    wider = known.derivative(_over(low - 2.0**-40, high + 2.0**-40))
    assert _holds(wider, secant, 1e-18 * (1 + abs(right)))


@pytest.mark.parametrize("name", SMOOTH_TOPS)
def test_the_steepest_slope_is_the_maximum_of_the_derivative(name: str) -> None:
    oracle = EVERYWHERE[name, ()]
    top = mpmath.findroot(lambda x: mpmath.diff(oracle, x, 2), SMOOTH_TOPS[name])
    true = mpmath.diff(oracle, top)
    steepest = function(name, ()).steepest(_over(-math.inf, math.inf))
    assert true <= steepest <= true + mpmath.mpf(1e-12)


GATES = [(name, ()) for name in ("gelu", "gelu_tanh", "silu", "mish")]
GATES += [("gelu_tanh", numbers) for numbers in OWN_NUMBERS]


@pytest.fixture
def _digits():
    yield
    mpmath.mp.dps = 50


@pytest.mark.usefixtures("_digits")
@pytest.mark.parametrize("case", GATES, ids=str)
def test_the_turns_of_gates_are_the_only_ones(case) -> None:
    """f'' changes its sign twice, f' once: on a dense grid, and at the places stated."""
    oracle, known = EVERYWHERE[case], function(*case)
    mpmath.mp.dps = 400 if case[1] else 50  # some tails have no other digits
    grid = [mpmath.mpf(k) / 8 for k in range(-72, 73)]
    for order, turns in ((1, known.value.turns), (2, known.slopes[0].slope.turns)):  # type: ignore[attr-defined]
        signs = [mpmath.sign(mpmath.diff(oracle, x, order)) for x in grid]
        changes = [x for x, a, b in zip(grid, signs, signs[1:], strict=False) if a != b]
        assert len(changes) == len(turns)
        places = sorted(turns, key=lambda turn: float(turn.lo))
        for near, place in zip(changes, places, strict=True):
            assert near <= float(place.hi)
            assert float(place.lo) <= near + 0.125
            ends = (mpmath.mpf(float(end)) for end in (place.lo, place.hi))
            assert math.prod(mpmath.diff(oracle, end, order) for end in ends) <= 0


@pytest.mark.parametrize(
    ("case", "low", "high"),
    [
        (("log", ()), 0.0, 1.0),
        (("log", ()), -1.0, -0.5),
        (("sqrt", ()), -1e-9, 1.0),
        (("reciprocal", ()), -1.0, 2.0),
        (("reciprocal", ()), 0.0, 2.0),
        (("power", (-2.0,)), -1.0, 2.0),
        (("power", (0.5,)), -1.0, 2.0),
        (("power", (-0.5,)), 0.0, 2.0),
    ],
)
def test_outside_the_domain_nothing_is_said(case, low: float, high: float) -> None:
    known = function(*case)
    for answer in (known.image(_over(low, high)), known.derivative(_over(low, high))):
        assert answer.magnitude()[0] == math.inf


def test_the_slope_of_a_root_at_zero_has_no_bound() -> None:
    assert function("sqrt", ()).derivative(_over(0.0, 4.0)).hi[0] == math.inf
    assert function("sqrt", ()).image(_over(0.0, 4.0)).hi[0] == pytest.approx(2.0)


@pytest.mark.parametrize("case", EVERYWHERE, ids=str)
def test_chords_and_the_value_at_zero(case) -> None:
    oracle, known = EVERYWHERE[case], function(*case)
    assert known.at_zero >= abs(oracle(mpmath.mpf(0)))
    for low, high in ((-2.0, 3.0), (1.0, 4.0), (-5.0, -0.5)):
        chord = known.chord(_over(low, high))
        for x in np.linspace(low, high, 41):
            point = mpmath.mpf(float(x))
            rise = abs(oracle(point) - oracle(mpmath.mpf(0)))
            assert rise <= (mpmath.mpf(chord) + mpmath.mpf(1e-25)) * abs(point)


@pytest.mark.parametrize("name", ["gelu", "gelu_tanh", "silu", "mish", "hard_swish", "relu"])
def test_gated_functions_shrink(name: str) -> None:
    assert function(name, ()).chord(_over(-math.inf, math.inf)) <= 1.0


def test_kinks_are_part_of_both_sides() -> None:
    kink = np.array([0.0])
    at_zero = Interval(kink, kink)
    for case, low, high in (
        (("relu", ()), 0.0, 1.0),
        (("abs", ()), -1.0, 1.0),
        (("leaky_relu", (0.25,)), 0.25, 1.0),
        (("elu", (2.0,)), 1.0, 2.0),
        (("clip", (0.0, 1.0)), 0.0, 1.0),
    ):
        slope = function(*case).derivative(at_zero)
        assert slope.lo[0] == pytest.approx(low)
        assert slope.hi[0] == pytest.approx(high)


def test_a_guarded_softplus_is_covered() -> None:
    """PyTorch returns x itself above 20."""
    known = function("softplus", ())
    assert known.image(_over(25.0, 25.0)).lo[0] <= 25.0
    assert known.derivative(_over(25.0, 25.0)).hi[0] >= 1.0
    assert known.image(_over(14.9999999, 20.0)).lo[0] <= 15.0


@pytest.mark.parametrize(
    "case",
    [
        ("unknown", ()),
        ("celu", (-1.0,)),
        ("clip", (1.0, 0.0)),
        ("quick_gelu", (0.0,)),
        ("leaky_relu", (math.inf,)),
        ("leaky_relu", (math.nan,)),
        ("soft_threshold", (-1.0,)),
        ("power", (math.inf,)),
    ],
)
def test_what_has_no_rule_is_refused(case) -> None:
    with pytest.raises(Unsupported):
        function(*case)


@pytest.mark.parametrize("numbers", [(1e-9, 0.04), (0.8, 1e9), (-0.8, 0.04), (0.8, 0.0)])
def test_extreme_numbers_of_a_gelu_are_not_supported(numbers: tuple[float, ...]) -> None:
    with pytest.raises(Unsupported):
        function("gelu_tanh", numbers)


def test_slopes_on_a_box_are_tight() -> None:
    box = everywhere(1.0, 2.0, 1)
    for name, slope in (("tanh", 1 - math.tanh(1.0) ** 2), ("sigmoid", 0.19661193324148185)):
        found = stretch(Activation(name), 0, [Fact.of((3,), box=box)], [(3,)], (3,))
        assert found == pytest.approx(slope, rel=1e-9)
