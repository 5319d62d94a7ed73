"""Local errors of normalisations of an example by its own statistics.

What enters: LayerNorm, GroupNorm, RmsNorm, LRN. What leaves: errors of x̂ = (x − m)/√(q + ε).

Assumptions besides those of `rounding`: the variance is computed from x − m, or by Welford's
method (not as E x² − (E x)²); statistics are accumulated in float32 or better, in at least
`LANES` partial sums; and kept so for the backward pass, if the layer has a scale of its own (which
is stored in float32 or better), otherwise in the precision of the result.
"""

from __future__ import annotations

import math
from typing import Final

from lipcert.audit.drift.local import Growth, LocalErrors, Site, local_errors
from lipcert.audit.drift.rounding import Rounding, joined, root
from lipcert.facts import Runs, ValueFacts, bound_of
from lipcert.ops.lrn import Lrn
from lipcert.ops.normalization import GroupNorm, LayerNorm, RmsNorm
from lipcert.upper import INFINITE, ONE, Lower, Upper, norm

LANES: Final = 4
"""partial sums that statistics are at least split into"""
_SHORT: Final = 64
_QUARTER: Final = Upper(0.25)
_TWO: Final = Upper(2.0)
_FOUR: Final = Upper(4.0)


@local_errors.register(LayerNorm)
@local_errors.register(GroupNorm)
@local_errors.register(RmsNorm)
def _block_norm(op: LayerNorm | GroupNorm | RmsNorm, site: Site) -> LocalErrors:
    """First order in γ·a for the values, second order for every norm.

    Here n entries are normalised together, of norm at most R; A = R/√n, a = A/√ε, s = √(q + ε),
    k = q/ε, and γ is the relative error of a mean.
    Proof: the mean is off by γA. The variance is off by at most 2γ(q + A√q) + (γA)², hence 1/s,
    relatively, by η = 2γ(1 + A√q/s²) + (γa)² where that is at most ¼. So x̂ is off by a multiple of
    itself and by a constant c of |c| ≤ γA/s: at most √n·(3γ(1 + a) + 2(γa)²) in all.
    Norms: x̂ is orthogonal to constants, and of norm √n·√q/s. So the computed one has a norm of at
    most √n/s·√(q(1 + η)² + (γA)²), where √k(1 + α√k/(1 + k))/√(1 + k) is at most √(1 + α²), and a
    single entry that may be y ≤ w√q/s has at most (w√q + γA)/s ≤ √(w² + (γa)²), w ≥ 1.
    Backwards, (g − mean g − x̂·mean(g∘x̂))/s, or the same expanded into b·x + c with
    b = (m·Σg − Σg∘x)/(n·s³). Every term of first order in γa has a factor √q/s besides: η and both
    x̂, b being off by 2γ‖g‖R/(ns³) and meeting x − m, |b| ≤ ‖g‖√q/(√n·s³) meeting the roundings of
    x. With α = 16γa for all of them, the norm is at most (1 + α√k)/√(1 + k)·L ≤ √(1 + α²)·L;
    products of two errors are below α², and what does not depend on a is a few γ. Statistics that
    are kept for the backward pass in the precision of the result are further off, by v = γa < α/16
    each, which need not be small: (2v√k + v²)/(1 + k)^(3/2) ≤ v + v² more.
    """
    (x,) = site.inputs
    rounding, scope = site.rounding, site.scope
    entries = _block_entries(op, x.shape)
    steep, inverse = site.lipschitz(op), ONE.over(Lower(op.epsilon).sqrt())
    lift = _longest(op, site) * inverse * ONE.over(Lower(float(entries)).sqrt())
    means = _means(entries, rounding)
    first = means * lift
    if not _TWO * means * (ONE + lift) + first * first < _QUARTER:
        first = INFINITE
    wrong = Upper(3.0) * (means + first) + _TWO * first * first
    scaled = ONE if op.scale is None else scope.max_abs(op.scale).value
    floor = rounding.floor(x.size, 16) * (ONE + steep + inverse)
    output = wrong * root(x.size) * scaled + _affine_error(site) + floor
    stored = means if _is_fused(op, x.shape) else joined(means, rounding.stored(3))
    kept = stored * lift
    back = Upper(16.0) * stored + _excess(Upper(16.0) * kept) + kept * kept + rounding.stored(4)
    norms = Upper(8.0) * means + _excess(_FOUR * first)
    return LocalErrors(
        output,
        (Growth(back * scaled * inverse, floor * (ONE + inverse)),),
        _operand_growths(op, site, norms if entries > 1 else joined(norms, wrong), floor),
        _reached(op, site, norms, floor + _affine_error(site)),
    )


def _is_fused(op: LayerNorm | GroupNorm | RmsNorm, shape: tuple[int, ...]) -> bool:
    """Whether one operation scales, too: its statistics then have the precision of the scale."""
    if op.scale is None:
        return False
    return isinstance(op, GroupNorm) or op.scale.shape == shape[-op.axes :]


def _affine_error(site: Site) -> Upper:
    """Error of scale·x̂ + bias, given x̂."""
    rounding, bias = site.rounding, site.arrays.get("bias")
    stored = rounding.stored(4) * site.output.norm.value
    if bias is None:
        return stored
    return stored + rounding.stored(4) * root(site.output.size // bias.size) * norm(bias)


def _reached(
    op: LayerNorm | GroupNorm | RmsNorm, site: Site, norms: Upper, rounded: Upper
) -> ValueFacts:
    """Norm of the computed output, and of each token where tokens are normalised."""
    scaled = ONE if op.scale is None else site.scope.max_abs(op.scale).value
    shape, size, runs = site.output.shape, site.output.size, None
    longest = scaled * (ONE + norms)
    bias = site.arrays.get("bias")
    added = rounded
    if bias is not None:
        added = added + root(size // bias.size) * norm(bias)
    if site.output.runs is not None:
        entries = _block_entries(op, shape)
        token = longest * root(entries) + rounded
        if bias is not None:
            token = token + norm(bias)
        runs = Runs(site.output.runs.axis, token)
    return ValueFacts.of(shape, bound_of(longest * root(size) + added, "audit.drift"), None, runs)


def _operand_growths(
    op: LayerNorm | GroupNorm | RmsNorm, site: Site, norms: Upper, floor: Upper
) -> dict[str, Growth]:
    """Σ x̂∘b over the places of an entry: the norm of x̂ there, and the sum rounds; or Σ b.

    A block of one entry is 0 in exact arithmetic, and computed as what x − m is off by.
    """
    rounding, found = site.rounding, {}
    for slot, lipschitz in site.param_lipschitz(op).items():
        repeats = site.output.size // max(site.arrays[slot].size, 1)
        sums = joined(rounding.product(repeats + 4), rounding.stored(8))
        found[slot] = Growth(joined(sums, norms) * max(lipschitz, root(repeats)), floor)
    return found


def _excess(first: Upper) -> Upper:
    """Returns B ≥ √(1 + α²) − 1, twice as much for products of errors."""
    return min(_TWO * first, first * first)


def _longest(op: LayerNorm | GroupNorm | RmsNorm, site: Site) -> Upper:
    """The largest norm of a block."""
    (x,) = site.inputs
    token = x.run_norm(-1) if not isinstance(op, GroupNorm) and op.axes == 1 else x.norm.value
    return min(x.norm.value, token, x.max_abs * root(_block_entries(op, x.shape)))


def _block_entries(op: LayerNorm | GroupNorm | RmsNorm, shape: tuple[int, ...]) -> int:
    if isinstance(op, GroupNorm):
        return math.prod(shape) // op.groups
    return math.prod(shape[-op.axes :])


def _means(entries: int, rounding: Rounding) -> Upper:
    """Relative error of a mean of so many entries."""
    return rounding.inside().stored(min(entries, _SHORT + entries // LANES) + 8)


@local_errors.register
def _lrn(op: Lrn, site: Site) -> LocalErrors:
    """s is a sum of positive terms, so s^−β is off by β times its relative error, and its own.

    Backwards s^−β·b and x·Σ(x∘b∘s^−(β+1)): the rule of L bounds the magnitudes of both.
    """
    (x,) = site.inputs
    rounding = site.rounding
    steps = math.ceil(op.power) + 1
    sums = joined(rounding.product(op.size + 4), rounding.stored(6))
    power = Upper(float(steps)) * sums
    shrink = joined(joined(power, power), joined(rounding.powers(op.power), rounding.stored(4)))
    steep = site.lipschitz(op)
    floor = rounding.floor(x.size, 16) * (ONE + steep)
    output = shrink * steep * x.norm.value + floor
    return LocalErrors(output, (Growth(_FOUR * shrink * steep, floor),))
