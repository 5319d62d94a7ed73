"""Cross-entropy, and what softmaxes of bounded logits have in common."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from lipcert.core.arithmetic import add_up, divide_up
from lipcert.core.losses.parameters import Parameters, number, positive
from lipcert.core.losses.softmax_error import SoftmaxDomain
from lipcert.core.lower.errors import Unsupported
from lipcert.core.rules.facts import Cotangent, Fact, Hull


def cross_entropy(parameters: Parameters, logits: Fact, classes: int) -> Cotangent:
    """(p − t)/τ with p = softmax(z/τ), t as in `softmax_error`; √2/τ for logits without bounds.

    Proof of the hull: p is a mean of the e_j, so that p − t lies in conv{e_j − t}. Without
    smoothing p − e_y = Σ_{j≠y} p_j(e_j − e_y) is (1 − p_y) times a member, and the hull, which
    holds 0, holds every shorter multiple of a member: the largest 1 − p_y scales it.
    """
    temperature = positive(parameters, "temperature")
    smoothing = number(parameters, "label_smoothing")
    if not 0 <= smoothing < 1:
        raise Unsupported("label_smoothing is not in [0, 1)")
    domain = softmax_domain(logits, classes, temperature)
    scale = 1.0 if smoothing else domain.miss()
    hull = Hull(classes, divide_up(scale, temperature), float(smoothing))
    exact = Fraction(hull.smoothing) == smoothing
    norm = divide_up(domain.error(smoothing), temperature)
    return Cotangent(norm, hull if exact else None)


def softmax_domain(logits: Fact, classes: int, temperature: Fraction) -> SoftmaxDomain:
    """The logits, over a temperature."""
    if classes < 2:
        raise Unsupported("a softmax over a single class is constant")
    low, high = float(np.min(logits.box.lo)), float(np.max(logits.box.hi))
    width = add_up(high, -low) if math.isfinite(low) else math.inf
    return SoftmaxDomain(
        classes, divide_up(logits.norm, temperature), divide_up(width, temperature)
    )
