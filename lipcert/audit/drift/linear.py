"""Local errors of matrices, convolutions and diagonal maps by operands.

What enters: ops with weights. What leaves: errors in proportion to the mass ‖|W|‖ of what is
multiplied, because |fl(Wx) − Wx| ≤ ρ|W||x| entry by entry (Higham 2002, section 3.5), ρ being
`Rounding.product` of the number of terms.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from lipcert.audit.drift.local import EXACT, Growth, LocalErrors, Site, linear_growth, local_errors
from lipcert.audit.drift.masses import convolution_mass, matrix_mass
from lipcert.audit.drift.rounding import FAST_ALGORITHM, joined, root
from lipcert.norms.windows import window_multiplicity
from lipcert.ops.activation import PRelu
from lipcert.ops.affine import Divide, Scale, Shift
from lipcert.ops.conv import Conv, ConvTranspose
from lipcert.ops.linear import Dense
from lipcert.ops.normalization import BatchNorm
from lipcert.upper import ONE, Lower, Upper, norm


@local_errors.register
def _dense(op: Dense, site: Site) -> LocalErrors:
    """Positions are apart; the weight's gradient sums ‖b_p‖‖x_p‖ over them, at most ‖b‖‖x‖."""
    (x,) = site.inputs
    outputs, inputs = op.weight.shape
    positions = math.prod(x.shape[:-1])
    terms = (inputs + 1, outputs + 1, positions + 1)
    return _affine(op, site, terms, matrix_mass(site.arrays["weight"]), x.norm.value)


@local_errors.register(Conv)
@local_errors.register(ConvTranspose)
def _convolution(op: Conv | ConvTranspose, site: Site) -> LocalErrors:
    """As for a matrix; the kernel's gradient has a mass of at most κ‖b‖‖x‖."""
    (x,) = site.inputs
    weight = site.arrays["weight"]
    taps = math.prod(weight.shape[2:])
    of_output, of_input = weight.shape[1] * taps, weight.shape[0] // op.groups * taps
    if isinstance(op, ConvTranspose):
        of_output, of_input = of_input, of_output
    positions = math.prod(window.outputs for window in op.geometry)
    reach = window_multiplicity(op.geometry) * x.norm.value
    slack = FAST_ALGORITHM + 1
    terms = (of_output + slack, of_input + slack, positions + slack)
    return _affine(op, site, terms, convolution_mass(op, weight), reach)


def _affine(
    op: Dense | Conv | ConvTranspose,
    site: Site,
    terms: tuple[int, int, int],
    mass: Upper,
    reach: Upper,
) -> LocalErrors:
    """terms: of an output, of an input's cotangent, of a weight's gradient. reach: ‖∂y/∂W‖."""
    (x,) = site.inputs
    rounding, size = site.rounding, (x.size, site.output.size)
    here, back, gradient = (rounding.product(count) for count in terms)
    forward = linear_growth(mass, terms[0], size, rounding, here)
    backward = linear_growth(mass, terms[1], size[::-1], rounding, back)
    output = forward.at(x.norm.value)
    entries = op.weight.array.size
    lost = rounding.tiny * (x.norm.value + root(site.output.size) * root(entries))
    operands = {
        "weight": Growth(
            gradient * reach + lost,
            lost + rounding.floor(entries, terms[2] + 2),
        )
    }
    if op.bias is not None:
        added = root(_repeats(site, op.bias.array.size))
        output = output + joined(here, rounding.stored(2)) * added * norm(site.arrays["bias"])
        operands["bias"] = _summed(site, op.bias.array.size, added)
    return LocalErrors(output, (backward,), operands)


def _repeats(site: Site, entries: int) -> int:
    """How many places of the output one entry of an operand reaches."""
    return site.output.size // max(entries, 1)


def _summed(site: Site, entries: int, stretch: Upper) -> Growth:
    """A gradient that sums the cotangents of all places that one entry reaches."""
    terms = _repeats(site, entries)
    rounding = site.rounding
    return Growth(rounding.product(terms + 4) * stretch, rounding.floor(entries, terms + 4))


@local_errors.register
def _scale(op: Scale, site: Site) -> LocalErrors:
    """One product each: the factor read, the result stored."""
    return _diagonal(op, site, "scale", 4)


@local_errors.register
def _divide(op: Divide, site: Site) -> LocalErrors:
    """One quotient; the gradient of a divisor is −Σ b·x/d², a few roundings more."""
    return _diagonal(op, site, "divisor", 4)


@local_errors.register
def _prelu(op: PRelu, site: Site) -> LocalErrors:
    """One product where x < 0, nothing elsewhere; the kink is at 0 exactly."""
    return _diagonal(op, site, "slope", 4)


def _diagonal(op: Scale | Divide | PRelu, site: Site, slot: str, roundings: int) -> LocalErrors:
    (x,) = site.inputs
    rounding, steepness = site.rounding, site.lipschitz(op)
    relative = joined(rounding.stored(roundings), rounding.product(1)) * steepness
    floor = rounding.floor(x.size, 4) * (ONE + steepness)
    reading = rounding.tiny * (ONE + steepness) * (ONE + steepness)
    around = Growth(relative + reading, floor)
    entries = op.operands()[slot].array.size
    gradient = _summed(site, entries, site.param_lipschitz(op)[slot])
    repeated = rounding.stored(2 * roundings) * site.param_lipschitz(op)[slot]
    return LocalErrors(
        around.at(x.norm.value),
        (around,),
        {slot: Growth(gradient.relative + repeated, gradient.floor * (ONE + steepness))},
    )


@local_errors.register
def _shift(op: Shift, site: Site) -> LocalErrors:
    """The operand is read, the sum is stored; cotangents pass unchanged."""
    rounding, entries = site.rounding, op.bias.array.size
    added = root(_repeats(site, entries))
    read = rounding.stored(2) * added * norm(site.arrays["bias"])
    stored = rounding.stored(1) * site.output.norm.value
    output = read + stored + rounding.floor(site.output.size, 2)
    return LocalErrors(output, (EXACT,), {"bias": _summed(site, entries, added)})


@local_errors.register
def _batch_norm(op: BatchNorm, site: Site) -> LocalErrors:
    """In any order of operations: f·x, f·mean and bias each err by a few roundings.

    With f = scale/√(variance + ε), the shift f·mean counts at P positions of its channel. The
    gradient of the scale sums b·x/√· and mean·b/√· over the positions, in any order.
    """
    (x,) = site.inputs
    rounding, steepness = site.rounding, site.lipschitz(op)
    positions = x.size // x.shape[0]
    mean = norm(op.mean.array)
    moved = steepness * mean + norm(site.arrays["bias"])
    reach = steepness * x.norm.value + root(positions) * moved
    relative = rounding.stored(12)
    floor = rounding.floor(x.size, 8) * (ONE + steepness)
    inverse = ONE.over((Lower(float(np.min(op.variance.array))) + Lower(op.epsilon)).sqrt())
    offset = Upper(float(np.max(np.abs(op.mean.array), initial=0.0))) * root(positions)
    normalised = (x.norm.value + offset) * inverse
    gradient = joined(rounding.product(positions + 4), rounding.stored(12))
    slots = op.operands()
    found: Mapping[str, Growth] = {
        "scale": Growth(gradient * normalised, floor * (ONE + inverse)),
        "bias": _summed(site, op.bias.array.size, root(positions)),
    }
    return LocalErrors(
        relative * reach + floor,
        (Growth(relative * steepness, floor),),
        {slot: growth for slot, growth in found.items() if slot in slots},
    )
