"""Local errors of ops that move, copy, choose or clip numbers.

What enters: rearrangements, sums of values, extrema, clips. What leaves: no error where numbers are
only moved; where an entry is copied, its cotangents are summed; sums and clips round.
"""

from __future__ import annotations

from lipcert.audit.drift.local import EXACT, Growth, LocalErrors, Site, carried, local_errors
from lipcert.audit.drift.rounding import Rounding, joined, root
from lipcert.facts import CotangentFacts
from lipcert.ops.clip import ClipNorm, CotangentClip, InputClip
from lipcert.ops.combine import Add, Concat
from lipcert.ops.extremum import Extremum
from lipcert.ops.shape import Expand, Pad, Reshape, Select, Tile, Transpose
from lipcert.ops.sorting import Sort
from lipcert.upper import ONE, ZERO, Upper, total


@local_errors.register(Reshape)
@local_errors.register(Transpose)
@local_errors.register(Concat)
def _permutation(op: Reshape | Transpose | Concat, site: Site) -> LocalErrors:
    """Every entry is moved once: nothing rounds."""
    del op
    return LocalErrors(ZERO, (EXACT,) * len(site.inputs))


@local_errors.register
def _sort(op: Sort, site: Site) -> LocalErrors:
    """Entries are moved; of an equal pair each gets half of two cotangents, a sum that rounds once
    (halves are exact above the smallest numbers)."""
    rounding = site.rounding
    growth = Growth(rounding.stored(1) * site.lipschitz(op), rounding.floor(site.output.size, 2))
    return LocalErrors(ZERO, (growth,))


@local_errors.register(Select)
@local_errors.register(Expand)
@local_errors.register(Tile)
@local_errors.register(Pad)
def _copies(op: Select | Expand | Tile | Pad, site: Site) -> LocalErrors:
    """Copies are exact, constants are rounded; cotangents of copies are summed in storage.

    Expanded axes are summed like any sum; |J| is J, a 0/1 matrix.
    """
    (x,) = site.inputs
    repetitions = op.repetitions(x.shape)
    constants = site.rounding.stored(1) * op.constants_norm(x.shape)
    return LocalErrors(constants, (_copied(site, repetitions, site.lipschitz(op)),))


def _copied(site: Site, repetitions: int, lipschitz: Upper) -> Growth:
    if repetitions <= 1:
        return EXACT
    rounding = site.rounding
    relative = min(
        rounding.gathered(repetitions), rounding.stored(1) + rounding.stored(repetitions)
    )
    return Growth(relative * lipschitz, rounding.floor(site.output.size, 1))


@local_errors.register
def _extremum(op: Extremum, site: Site) -> LocalErrors:
    """The choice is exact; ties may share a cotangent, and broadcast values sum theirs."""
    rounding = site.rounding
    growths = tuple(
        Growth(
            joined(rounding.stored(1), rounding.gathered(site.output.size // max(x.size, 1)))
            * site.lipschitz(op, index),
            rounding.floor(site.output.size, 2),
        )
        for index, x in enumerate(site.inputs)
    )
    return LocalErrors(ZERO, growths)


@local_errors.register
def _add(op: Add, site: Site) -> LocalErrors:
    """|fl(Σ c_i x_i) − Σ c_i x_i| ≤ γ·Σ |c_i||x_i|; back, ±1 times a value seen once is exact."""
    rounding, growths = site.rounding, []
    reach = total(site.lipschitz(op, i) * x.norm.value for i, x in enumerate(site.inputs))
    roundings = len(site.inputs) + 1
    for index, (x, coefficient) in enumerate(zip(site.inputs, op.coefficients, strict=True)):
        repeats = site.output.size // max(x.size, 1)
        relative = rounding.summed(repeats + 2) if repeats > 1 else ZERO
        if abs(coefficient) != 1.0:
            relative = joined(relative, rounding.stored(2))
        floor = rounding.floor(site.output.size, 2) if relative != ZERO else ZERO
        growths.append(Growth(relative * site.lipschitz(op, index), floor))
    output = rounding.stored(roundings) * reach + rounding.floor(site.output.size, roundings)
    return LocalErrors(output, tuple(growths))


@local_errors.register
def _input_clip(op: InputClip, site: Site) -> LocalErrors:
    """x·r/max(‖x‖, r): the norm of n entries, a quotient, a product.

    Backwards ‖b‖ and two terms that are no larger. Which branch is taken at ‖x‖ ≈ r does not
    matter: the Jacobians of both have norm at most 1.
    """
    (x,) = site.inputs
    relative = _clipping(site.rounding, x.size)
    reach = min(x.norm.value, op.radius * (ONE + relative))
    floor = site.rounding.floor(x.size, 8)
    return LocalErrors(relative * reach + floor, (Growth(Upper(4.0) * relative, floor),))


@local_errors.register
def _cotangent_clip(op: CotangentClip, site: Site) -> LocalErrors:
    """The identity; `carried` holds what the backward pass adds besides the absolute errors."""
    if not op.radius.is_finite:
        return LocalErrors(ZERO, (EXACT,))
    return LocalErrors(ZERO, (Growth(ZERO, site.rounding.floor(site.output.size, 8)),))


@carried.register
def _carried_by_clip(
    op: CotangentClip, index: int, site: Site, cotangent: CotangentFacts, error: Upper
) -> Upper:
    """The rounding of the clip; before it f, or nothing where only the norm is known below.

    Proof: with relative errors δ, |b̂| ≤ r(1 + δ) behind the clip. Where r is at most the bound of b
    and there is neither hull nor label, b̂/(1 + δ) obeys all facts below, and b̂ is δ·r away from it.
    Otherwise compare with the clipped b: g ↦ g·min(1, r/|g|) moves no two points apart in the
    2-norm; in the other norm by at most ‖f‖ + |f| ≤ (1 + √P)‖f‖, P being the number of entries in
    a channel.
    """
    del index
    if not op.radius.is_finite:
        return error
    rounded = _clipping(site.rounding, site.output.size)
    rounded = rounded * min(op.radius, cotangent.norm.value + error)
    known = cotangent.hull is not None or cotangent.label is not None
    if not known and not cotangent.norm.value < op.radius:
        return rounded
    if op.norm is ClipNorm.L2:
        return rounded + error
    entries = site.output.size // max(site.output.shape[:1], default=1)
    return rounded + (ONE + root(entries)) * error


def _clipping(rounding: Rounding, entries: int) -> Upper:
    """Relative error of r/max(‖x‖, r)·x."""
    return joined(rounding.summed(entries + 4), rounding.stored(8))
