"""Local errors of functions of one number, and of products and quotients of two values.

What enters: activations, functions on domains, bilinear ops. What leaves: a few roundings of what
they make; slopes that are computed are off by a few units, and by what the rounding of a kink's
place may change.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from lipcert.audit.drift.local import EXACT, Growth, LocalErrors, Site, local_errors
from lipcert.audit.drift.rounding import joined, root
from lipcert.facts import ValueFacts
from lipcert.interval import Interval
from lipcert.ops import functions
from lipcert.ops.activation import Activation
from lipcert.ops.bilinear import MatMul, Multiply, Quotient
from lipcert.ops.domain import OnDomain
from lipcert.ops.functions import ScalarFunction
from lipcert.ops.powers import Exponential, Power
from lipcert.upper import ONE, ZERO, Upper

_COMPOSED: Final = (
    functions.Celu,
    functions.ErfGate,
    functions.HardGate,
    functions.HardSigmoid,
    functions.QuickGelu,
    functions.Selu,
    functions.Softsign,
    functions.TanhGate,
)


@local_errors.register
def _activation(op: Activation, site: Site) -> LocalErrors:
    """4 units of f(x), of L·x and of f(0), entry by entry; max(x, 0) and |x| are exact.

    Backwards the slope is off by 16 units of max(1, L), and where x is so near a kink that its
    comparison with the rounded place of the kink may fail, by what the slope jumps there. Both are
    units inside one operation, whose results are then stored (some slopes are computed from a
    stored f(x)), except for functions that are made of several operations.
    """
    (x,) = site.inputs
    function, rounding = op.function, site.rounding
    if isinstance(function, functions.Relu | functions.Abs):
        return LocalErrors(ZERO, (EXACT,))
    inside = rounding if isinstance(function, _COMPOSED) else rounding.inside()
    steep = max(function.lipschitz, ONE)
    reach = site.output.norm.value + steep * x.norm.value + root(x.size) * function.origin
    output = inside.stored(4) * reach + rounding.stored(1) * site.output.norm.value
    slope = (inside.stored(16) + rounding.stored(4)) * steep + _jump(function, x, site)
    floor = rounding.floor(x.size, 8)
    return LocalErrors(output + floor * steep, (Growth(slope, floor),))


def _jump(function: ScalarFunction, x: ValueFacts, site: Site) -> Upper:
    """How far slopes near x leave the range of the slopes at x."""
    room = site.rounding.stored(4).value
    box = _shared(x.box)
    reach = _kink_shift(function)
    lo, hi = box.lo - room * (np.abs(box.lo) + reach), box.hi + room * (np.abs(box.hi) + reach)
    here, near = function.derivative(box), function.derivative(Interval(lo, hi))
    below = Interval.exact(np.maximum(here.lo, near.lo)) - Interval.exact(near.lo)
    above = Interval.exact(np.maximum(here.hi, near.hi)) - Interval.exact(here.hi)
    if np.array_equal(here.lo, near.lo) and np.array_equal(here.hi, near.hi):
        return ZERO
    return below.max_abs() + above.max_abs()


def _kink_shift(function: ScalarFunction) -> float:
    """How much larger than |x| the numbers are that decide on which side of a kink x is."""
    if isinstance(function, functions.HardSigmoid) and function.slope != 0.0:
        return (1.0 + abs(function.offset)) / abs(function.slope)
    if isinstance(function, functions.HardGate):
        return float(1 / (2 * function.slope))
    return 3.0 if isinstance(function, functions.HardSwish) else 0.0


def _shared(box: Interval) -> Interval:
    """One interval for all entries: the hull of their ranges, where they are all alike."""
    lo, hi = box.lo, box.hi
    if lo.size and lo.min() == lo.max() and hi.min() == hi.max():
        return Interval(lo.reshape(-1)[:1].reshape(()), hi.reshape(-1)[:1].reshape(()))
    return box


@local_errors.register
def _on_domain(op: OnDomain, site: Site) -> LocalErrors:
    """A few units of f and of f'; powers also feel the rounding of their exponent."""
    (x,) = site.inputs
    rounding = site.rounding
    relative = rounding.stored(12)
    if isinstance(op.function, Power):
        relative = joined(relative, rounding.powers(op.function.exponent))
    if isinstance(op.function, Exponential):
        largest = x.box.max_abs().value * abs(math.log(op.function.base))
        count = math.ceil(4.0 * largest) if math.isfinite(largest) else 2**62
        relative = joined(relative, rounding.stored(count))
    lipschitz = site.lipschitz(op)
    output = relative * site.output.norm.value + rounding.floor(x.size, 4)
    return LocalErrors(output, (Growth(relative * lipschitz, rounding.floor(x.size, 8)),))


@local_errors.register
def _multiply(op: Multiply, site: Site) -> LocalErrors:
    """One product; backwards one more, and a sum where a value is broadcast."""
    return _bilinear(op, site, 1)


@local_errors.register
def _matmul(op: MatMul, site: Site) -> LocalErrors:
    """Sums of products, in proportion to the norms that also bound the Jacobians."""
    return _bilinear(op, site, site.inputs[0].shape[-1])


def _bilinear(op: Multiply | MatMul, site: Site, terms: int) -> LocalErrors:
    """Proof: the norms of the slices that bound J are norms of magnitudes, so they bound |J|."""
    rounding, out = site.rounding, site.output.size
    slopes = [site.lipschitz(op, index) for index in range(2)]
    relative = joined(rounding.product(terms), rounding.stored(1))
    products = [slope * x.norm.value for slope, x in zip(slopes, site.inputs, strict=True)]
    reading = [
        rounding.tiny * slope * root(x.size) for slope, x in zip(slopes, site.inputs, strict=True)
    ]
    output = relative * min(products) + reading[0] + reading[1] + rounding.floor(out, terms + 2)
    growths = []
    for x, slope in zip(site.inputs, slopes, strict=True):
        back = max(out * terms // max(x.size, 1), 1)
        again = joined(rounding.product(back), rounding.stored(2))
        spread = rounding.tiny * root(out * terms)
        floor = rounding.tiny * slope * root(out) + rounding.floor(x.size, back + 2)
        growths.append(Growth(again * slope + spread, floor))
    return LocalErrors(output, tuple(growths))


@local_errors.register
def _quotient(op: Quotient, site: Site) -> LocalErrors:
    """One quotient; backwards b/d and −b·a/d², summed where a value is broadcast."""
    rounding, out = site.rounding, site.output.size
    slopes = [site.lipschitz(op, index) for index in range(2)]
    output = rounding.stored(4) * slopes[0] * site.inputs[0].norm.value + rounding.floor(out, 4)
    growths = []
    for x, slope in zip(site.inputs, slopes, strict=True):
        repeats = max(out // max(x.size, 1), 1)
        relative = joined(rounding.summed(repeats), rounding.stored(8))
        steep = ONE + slope
        growths.append(Growth(relative * slope, rounding.floor(out, repeats + 8) * steep * steep))
    return LocalErrors(output, tuple(growths))
