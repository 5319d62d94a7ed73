"""Powers, exponentials and logarithms: enclosures against mpmath, and refusals with reasons."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from lipcert.facts import Bound, ValueFacts
from lipcert.interval import Interval
from lipcert.norms.operator_norm import Tier
from lipcert.ops.domain import OnDomain
from lipcert.ops.powers import Exp, Exponential, Log, Power
from lipcert.scope import PointScope
from lipcert.upper import Upper

EXPONENTS = [-3.0, -2.0, -1.0, -0.5, 0.0, 0.1, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 7.0, 2.5, 1e-20]


def functions():
    yield Exp(), mpmath.exp, mpmath.exp
    yield Log(), mpmath.log, lambda x: 1 / x
    for base in (0.25, 1.0, 2.0, math.e):
        yield (
            Exponential(base),
            lambda x, b=base: mpmath.power(b, x),
            lambda x, b=base: mpmath.log(b) * mpmath.power(b, x),
        )
    for exponent in EXPONENTS:
        yield (
            Power(exponent),
            lambda x, p=exponent: mpmath.power(x, p),
            lambda x, p=exponent: p * mpmath.power(x, mpmath.mpf(p) - 1) if p else mpmath.mpf(0),
        )


@pytest.mark.parametrize(
    ("function", "exact", "slope"), list(functions()), ids=[str(item[0]) for item in functions()]
)
@given(ends=st.tuples(st.floats(-5, 5), st.floats(-5, 5)), share=st.floats(0, 1))
def test_enclosures(function, exact, slope, ends, share):
    low, high = sorted(ends)
    box = Interval(np.array([low]), np.array([high]))
    assume(function.is_defined(box))
    x = min(max(low + share * (high - low), low), high)
    with mpmath.workprec(200):
        value = exact(mpmath.mpf(x))
        image = function.image(box)
        assert mpmath.mpf(float(image.lo[0])) <= value <= mpmath.mpf(float(image.hi[0]))
        if x == 0.0 and isinstance(function, Power) and function.exponent < 1.0:
            return
        steep = slope(mpmath.mpf(x))
        derivative = function.derivative(box)
        assert mpmath.mpf(float(derivative.lo[0])) <= steep <= mpmath.mpf(float(derivative.hi[0]))


def facts(low, high):
    box = Interval(np.full(3, low), np.full(3, high))
    return ValueFacts.of((3,), Bound(Upper(math.inf), "test", "unknown"), box)


REFUSED = [
    (Log(), -1.0, 1.0, True, True),
    (Log(), 0.0, 1.0, True, True),
    (Power(0.5), -1e-300, 1.0, True, True),
    (Power(0.5), 0.0, 4.0, False, True),
    (Power(1.5), 0.0, 4.0, False, False),
    (Power(-1.0), -1.0, 1.0, True, True),
    (Power(-1.0), -2.0, -1.0, False, False),
    (Exp(), -math.inf, 1.0, False, False),
    (Exp(), 0.0, math.inf, True, True),
    (Exp(), 0.0, 800.0, True, True),
    (Power(2.0), -math.inf, 1.0, True, True),
]


@pytest.mark.parametrize(("function", "low", "high", "no_value", "no_slope"), REFUSED, ids=str)
def test_no_bound_where_the_box_leaves_the_domain(function, low, high, no_value, no_slope):
    op, at = OnDomain(function), PointScope(Tier.FAST)
    value = op.output_facts([facts(low, high)], at).norm
    slope = op.input_lipschitz(0, [facts(low, high)], at)
    assert value.is_finite != no_value
    assert slope.is_finite != no_slope
    for bound in (value, slope):
        assert bound.is_finite or (function.needs in bound.reason and "--input-box" in bound.remedy)


def test_what_makes_no_sense_is_refused():
    for base in (0.0, -2.0, math.inf):
        with pytest.raises(ValueError, match="positive base"):
            Exponential(base)
    with pytest.raises(ValueError, match="exponent"):
        Power(math.nan)
