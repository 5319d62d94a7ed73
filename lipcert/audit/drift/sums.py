"""Local errors of sums, means, pools and norms of entries.

What enters: reductions and pools. What leaves: errors relative to L·‖x‖, because these maps have no
negative coefficients: the norm of the map is that of its magnitudes. (What is left of x without its
mean, or over its norm, has a rule of its own.)

Powers and roots are claimed where no power of an entry underflows; below, where the norm of a slice
is about the root of the smallest number, the error of its slope may be as large as the slope.
"""

from __future__ import annotations

import math

from lipcert.audit.drift.local import EXACT, Growth, LocalErrors, Site, local_errors
from lipcert.audit.drift.rounding import joined, root
from lipcert.audit.drift.softmax import share_error
from lipcert.norms.windows import largest_overlap
from lipcert.ops.base import Op
from lipcert.ops.pooling import AveragePool, LpPool, MaxPool
from lipcert.ops.reduced_norm import DivideByNorm, ReduceLogSumExp, ReduceNorm
from lipcert.ops.reduction import Centre, ReduceMean, ReduceSum
from lipcert.upper import ONE, ZERO, Lower, Upper


@local_errors.register(ReduceSum)
@local_errors.register(ReduceMean)
def _reduce(op: ReduceSum | ReduceMean, site: Site) -> LocalErrors:
    """A sum, and a division for a mean; backwards copies, divided for a mean."""
    terms = site.inputs[0].size // max(site.output.size, 1)
    rounding = site.rounding
    back = rounding.stored(3) if isinstance(op, ReduceMean) else ZERO
    return _positive(op, site, joined(rounding.summed(terms + 2), rounding.stored(2)), back)


@local_errors.register
def _average_pool(op: AveragePool, site: Site) -> LocalErrors:
    """A mean of every window, times a correction; backwards a sum over the windows of an entry."""
    rounding = site.rounding
    taps = math.prod(window.taps for window in op.geometry)
    here = joined(rounding.product(taps + 4), rounding.stored(6))
    back = joined(rounding.product(largest_overlap(op.geometry) + 4), rounding.stored(6))
    back = joined(back, rounding.gathered(largest_overlap(op.geometry)))
    return _positive(op, site, here, back)


@local_errors.register
def _max_pool(op: MaxPool, site: Site) -> LocalErrors:
    """The choice is exact; cotangents of windows that chose the same entry are summed."""
    back = site.rounding.gathered(largest_overlap(op.geometry))
    return _positive(op, site, ZERO, back)


@local_errors.register
def _lp_pool(op: LpPool, site: Site) -> LocalErrors:
    """|x|^p, a sum, a root; backwards (|x|/y)^(p−1)·b, as a product of powers, summed."""
    rounding = site.rounding
    taps = math.prod(window.taps for window in op.geometry)
    power = joined(rounding.powers(float(op.p)), rounding.product(taps + 4))
    here = joined(joined(power, rounding.powers(1.0 / op.p)), rounding.stored(8))
    overlap = largest_overlap(op.geometry)
    back = joined(Upper(2.0 * op.p) * here, rounding.gathered(overlap))
    lost = Upper((taps * rounding.tiny.value) ** (1.0 / op.p)) * root(site.output.size)
    found = _positive(op, site, here, back)
    return LocalErrors(found.output + Upper(2.0) * lost, found.inputs)


@local_errors.register
def _reduce_norm(op: ReduceNorm, site: Site) -> LocalErrors:
    """Σ|x|, or the root of Σx²; backwards sign(x)·b exactly, or x·b/y."""
    rounding = site.rounding
    terms = site.inputs[0].size // max(site.output.size, 1)
    here = joined(rounding.summed(terms + 2), rounding.stored(8))
    if op.p == 1:
        return _positive(op, site, here, ZERO)
    found = _positive(op, site, here, joined(here, rounding.stored(8)))
    lost = Upper(2.0) * (rounding.tiny * Upper(float(terms + 1))).sqrt() * root(site.output.size)
    return LocalErrors(found.output + lost, found.inputs)


@local_errors.register
def _centre(op: Centre, site: Site) -> LocalErrors:
    """A mean and a difference, both of norm at most ‖x‖; backwards the same of b."""
    (x,) = site.inputs
    terms = math.prod(x.shape[axis] for axis in op.axes)
    rounding = site.rounding
    relative = Upper(2.0) * joined(rounding.summed(terms + 2), rounding.stored(4))
    floor = rounding.floor(x.size, terms + 8)
    return LocalErrors(relative * x.norm.value + floor, (Growth(relative, floor),))


@local_errors.register
def _divide_by_norm(op: DivideByNorm, site: Site) -> LocalErrors:
    """The norm of n entries, two quotients; squares that underflow count for less than e of d ≥ c.

    Here d is the divisor, c the floor, e the root of (n + 1)·tiny over the radius. Backwards b/d,
    and x·(xᵀb)/(d‖x‖²), which is no larger. Which branch is taken at d ≈ c does not matter: both
    Jacobians have norm at most 1/c.
    """
    (x,) = site.inputs
    rounding, steep = site.rounding, site.lipschitz(op)
    terms = math.prod(x.shape[axis] for axis in op.axes)
    lost = (rounding.tiny * Upper(float(terms + 1))).sqrt() * ONE.over(Lower(op.radius)) * steep
    relative = joined(joined(rounding.summed(terms + 2), rounding.stored(12)), Upper(2.0) * lost)
    floor = rounding.floor(x.size, 8) * (ONE + steep)
    return LocalErrors(
        relative * site.output.norm.value + floor,
        (Growth(Upper(8.0) * relative * steep, floor * (ONE + steep)),),
    )


@local_errors.register
def _log_sum_exp(op: ReduceLogSumExp, site: Site) -> LocalErrors:
    """The logarithm errs by the relative error of the sum, and the largest entry is added.

    Backwards Σ p·b, where the p = e^(x − y) are off in proportion to |x| + |y| too.
    """
    del op
    (x,) = site.inputs
    rounding = site.rounding
    terms = max(x.size // max(site.output.size, 1), 1)
    around = x.max_abs + site.output.max_abs + Upper(4.0)
    sums = joined(rounding.summed(terms + 2), share_error(terms, rounding))
    output = root(site.output.size) * (rounding.stored(6) * around + sums)
    share = Upper(2.0) * share_error(terms, rounding) + rounding.stored(6) * around
    floor = rounding.floor(x.size, 4)
    return LocalErrors(output + floor, (Growth(share, floor),))


def _positive(op: Op, site: Site, forward: Upper, backward: Upper) -> LocalErrors:
    """Relative errors of a map without negative coefficients, and of its adjoint."""
    (x,) = site.inputs
    rounding, lipschitz = site.rounding, site.lipschitz(op)
    output = ZERO
    if forward != ZERO:
        count = x.size // max(site.output.size, 1) + 8
        output = forward * lipschitz * x.norm.value + rounding.floor(site.output.size, count)
    if backward == ZERO:
        return LocalErrors(output, (EXACT,))
    return LocalErrors(output, (Growth(backward * lipschitz, rounding.floor(x.size, 8)),))
