"""What each kind of loss sends into the network: a norm, and a hull where the labels are classes.

What enters: the kind and every parameter of a loss of one example, as a certificate states them,
and a fact about the outputs z of one example. What leaves: a bound for every admissible label.
A parameter that is missing, unknown or out of range is refused: it would be another loss.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Final, TypeAlias

import numpy as np

from lipcert.core.arithmetic import add_up, divide_up, multiply_up, sqrt_down, sqrt_up
from lipcert.core.exponential import exp_bounds
from lipcert.core.interval import Array
from lipcert.core.losses.focal import focal_scale
from lipcert.core.losses.parameters import (
    REDUCTION,
    Parameters,
    flag,
    is_mean,
    not_negative,
    number,
    positive,
)
from lipcert.core.losses.softmax_error import SoftmaxDomain
from lipcert.core.lower.errors import Unsupported
from lipcert.core.program import Shape
from lipcert.core.rules.facts import Cotangent, Fact, Hull, root_up

_Rule: TypeAlias = Callable[[Parameters, Fact, int], Cotangent]

_SATURATED: Final = 64.0
_SINGLE_EXPONENTIALS: Final = 1 << 12


def loss_cotangent(kind: str, parameters: Parameters, logits: Fact, shape: Shape) -> Cotangent:
    """The gradient of a loss by the outputs of this shape, batch axis of one example included."""
    if kind not in _KINDS:
        raise Unsupported(f"there is no rule for the loss {kind!r}")
    rule, required, optional = _KINDS[kind]
    if not required <= set(parameters) <= required | optional:
        raise Unsupported(f"the loss {kind} has other parameters than {sorted(parameters)}")
    if kind in _OF_CLASSES and sum(length != 1 for length in shape) > 1:
        raise Unsupported(f"the loss {kind} needs one vector of class scores, not shape {shape}")
    return rule(parameters, logits, math.prod(shape))


def _cross_entropy(parameters: Parameters, logits: Fact, classes: int) -> Cotangent:
    """(p − t)/τ with p = softmax(z/τ), t as in `softmax_error`; √2/τ for logits without bounds.

    Proof of the hull: p is a mean of the e_j, so that p − t lies in conv{e_j − t}. Without
    smoothing p − e_y = Σ_{j≠y} p_j(e_j − e_y) is (1 − p_y) times a member, and the hull, which
    holds 0, holds every shorter multiple of a member: the largest 1 − p_y scales it.
    """
    temperature = positive(parameters, "temperature")
    smoothing = number(parameters, "label_smoothing")
    if not 0 <= smoothing < 1:
        raise Unsupported("label_smoothing is not in [0, 1)")
    domain = _softmax_domain(logits, classes, temperature)
    scale = 1.0 if smoothing else domain.miss()
    hull = Hull(classes, divide_up(scale, temperature), float(smoothing))
    exact = Fraction(hull.smoothing) == smoothing
    norm = divide_up(domain.error(smoothing), temperature)
    return Cotangent(norm, hull if exact else None)


def _negative_log_likelihood(parameters: Parameters, logits: Fact, classes: int) -> Cotangent:
    """−e_y: the loss is −z_y, linear in the outputs. Attained: always."""
    del parameters, logits
    if classes < 2:
        raise Unsupported("a likelihood of a single class is constant")
    return Cotangent(1.0, label=1.0)


def _focal(parameters: Parameters, logits: Fact, classes: int) -> Cotangent:
    """h(p_y)·(p − e_y), h(p) = (1 − p)^γ − γp(1 − p)^{γ−1}·log p ≥ 0, p = softmax(z).

    Proof: p − e_y is 1 − p_y times a member of conv{e_j − e_y}, which is no longer than √2; so
    the supremum of h(p)(1 − p) over the p that the logits admit scales hull and norm.
    Attained: where one wrong class has the rest of the mass.
    """
    miss = _softmax_domain(logits, classes, Fraction(1)).miss()
    scale = focal_scale(not_negative(parameters, "focal_gamma"), Fraction(miss))
    return Cotangent(multiply_up(root_up(2), scale), Hull(classes, scale))


def _binary_cross_entropy(parameters: Parameters, logits: Fact, outputs: int) -> Cotangent:
    """(σ(z_i/τ) − t_i)/τ, t_i in [0, 1].

    Proof: |σ(z) − t| ≤ σ(|z|). Entry by entry on the box. On a ball of radius R: g(s) = σ(√s)² is
    concave, since g' = σ²(1 − σ)/z at z = √s has the logarithmic derivative 2 − 3σ − 1/z < 0
    (2 − 3σ ≤ ½ and 1/z > 1 for z < 1; 2 − 3σ < 0 for z ≥ 1); so Σ g(z_i²) ≤ n·g(R²/n).
    Attained: on a box symmetric about 0, on a ball, and in the limit of large outputs.
    """
    temperature = positive(parameters, "temperature")
    radius = divide_up(divide_up(logits.norm, sqrt_down(float(outputs))), temperature)
    square = outputs * _sigmoid(radius) ** 2
    magnitudes = [divide_up(x, temperature) for x in _distinct(logits.box.magnitude())]
    copies = Fraction(outputs, len(magnitudes))
    square = min(square, copies * sum(_sigmoid(x) ** 2 for x in magnitudes))
    return _reduced(parameters, divide_up(sqrt_up(square), temperature), outputs)


def _squared_error(parameters: Parameters, logits: Fact, outputs: int) -> Cotangent:
    """2(z − y), ‖y‖ ≤ label_norm; z − y if half: the triangle inequality."""
    distance = add_up(logits.norm, not_negative(parameters, "label_norm"))
    factor = 1.0 if flag(parameters, "half") else 2.0
    return _reduced(parameters, multiply_up(factor, distance), outputs)


def _absolute_error(parameters: Parameters, logits: Fact, outputs: int) -> Cotangent:
    """Entries in [−1, 1]. Attained: where no output equals its label."""
    del logits
    return _reduced(parameters, root_up(outputs), outputs)


def _huber(parameters: Parameters, logits: Fact, outputs: int) -> Cotangent:
    """clip(z − y, −δ, δ): entries in [−δ, δ], and no longer than z − y."""
    total = multiply_up(positive(parameters, "huber_delta"), root_up(outputs))
    if "label_norm" in parameters:
        total = min(total, add_up(logits.norm, not_negative(parameters, "label_norm")))
    return _reduced(parameters, total, outputs)


def _multiclass_hinge(parameters: Parameters, logits: Fact, classes: int) -> Cotangent:
    """Entries in [−1, 1] times the weights of the K hinges.

    sum: 1 each. mean: (K − 1)/K for the label and 1/K for the others, √((K − 1)² + K − 1)/K in
    all, which is no less than √K/K, the plain mean's, for K ≥ 2; 1 for one output.
    Attained: where every margin is violated.
    """
    del logits
    not_negative(parameters, "margin")
    return Cotangent(_hinge_mean(classes) if is_mean(parameters) else root_up(classes))


def _multi_margin(parameters: Parameters, logits: Fact, classes: int) -> Cotangent:
    """Σ_{j≠y} w_j(e_j − e_y), w_j in [0, 1]; the mean divides by K.

    Proof: Σw_j² + (Σw_j)² ≤ (K − 1) + (K − 1)², and it is at most K − 1 times a member of the hull.
    Attained: where every margin is violated.
    """
    del logits
    not_negative(parameters, "margin")
    divisor = classes if is_mean(parameters) else 1
    norm = sqrt_up(Fraction(classes * (classes - 1), divisor**2))
    return Cotangent(norm, Hull(classes, divide_up(float(classes - 1), float(divisor))))


def _kantorovich_rubinstein(parameters: Parameters, logits: Fact, classes: int) -> Cotangent:
    """mean_{j≠y} e_j − e_y, of norm √(1 + 1/(K − 1)); for one output −s, |s| ≤ 1. Attained."""
    del parameters, logits
    return Cotangent(_kr_norm(classes), Hull(classes, 1.0) if classes > 1 else None)


def _hinge_kr(parameters: Parameters, logits: Fact, classes: int) -> Cotangent:
    """The sum of `kr` and hkr_weight times the mean `multiclass-hinge`. Attained: as there."""
    del logits
    not_negative(parameters, "margin")
    weight = not_negative(parameters, "hkr_weight")
    return Cotangent(add_up(_kr_norm(classes), multiply_up(weight, _hinge_mean(classes))))


def _cosine(parameters: Parameters, logits: Fact, outputs: int) -> Cotangent:
    """ℓ = −⟨z, y⟩/max(‖z‖, floor), ‖y‖ ≤ 1: at most 1/max(floor, inf ‖z‖).

    Proof: above the floor the gradient is −(I − uuᵀ)y/‖z‖ with u = z/‖z‖, below it −y/floor. No
    entry is nearer to 0 than its interval. Attained: for y orthogonal to the shortest output.
    """
    floor = positive(parameters, "cosine_floor") if "cosine_floor" in parameters else Fraction(0)
    nearest = np.maximum(np.maximum(logits.box.lo, -logits.box.hi), 0.0).ravel().tolist()
    square = sum(Fraction(min(x, _LARGEST)) ** 2 for x in nearest) * outputs / len(nearest)
    floor = max(floor, Fraction(sqrt_down(Fraction(square))))
    return Cotangent(divide_up(1.0, floor) if floor else math.inf)


_LARGEST: Final = 1e100
_KINDS: Final[Mapping[str, tuple[_Rule, frozenset[str], frozenset[str]]]] = {
    kind: (rule, frozenset(required), frozenset(optional))
    for kind, rule, required, optional in (
        ("cross-entropy", _cross_entropy, ("temperature", "label_smoothing"), ()),
        ("nll", _negative_log_likelihood, (), ()),
        ("focal", _focal, ("focal_gamma",), ()),
        ("bce", _binary_cross_entropy, ("temperature", REDUCTION), ()),
        ("mse", _squared_error, ("label_norm", REDUCTION, "half"), ()),
        ("mae", _absolute_error, (REDUCTION,), ()),
        ("huber", _huber, ("huber_delta", REDUCTION), ("label_norm",)),
        ("multiclass-hinge", _multiclass_hinge, ("margin", REDUCTION), ()),
        ("multi-margin", _multi_margin, ("margin", REDUCTION), ()),
        ("kr", _kantorovich_rubinstein, (), ()),
        ("hkr", _hinge_kr, ("hkr_weight", "margin"), ()),
        ("cosine", _cosine, (), ("cosine_floor",)),
    )
}
_OF_CLASSES: Final = frozenset(
    {"cross-entropy", "nll", "focal", "multiclass-hinge", "multi-margin", "kr", "hkr"}
)


def _softmax_domain(logits: Fact, classes: int, temperature: Fraction) -> SoftmaxDomain:
    if classes < 2:
        raise Unsupported("a softmax over a single class is constant")
    low, high = float(np.min(logits.box.lo)), float(np.max(logits.box.hi))
    width = add_up(high, -low) if math.isfinite(low) else math.inf
    return SoftmaxDomain(
        classes, divide_up(logits.norm, temperature), divide_up(width, temperature)
    )


def _distinct(magnitudes: Array) -> list[float]:
    """Entries that stand for equally many outputs; the largest for all, where they are many."""
    if magnitudes.size > _SINGLE_EXPONENTIALS:
        return [float(np.max(magnitudes))]
    return [float(x) for x in magnitudes.ravel()]


def _sigmoid(x: float) -> Fraction:
    """≥ 1/(1 + e^−x), for x ≥ 0."""
    return 1 / (1 + exp_bounds(-Fraction(x))[0]) if x <= _SATURATED else Fraction(1)


def _hinge_mean(classes: int) -> float:
    return sqrt_up(Fraction(classes - 1, classes)) if classes > 1 else 1.0


def _kr_norm(classes: int) -> float:
    return sqrt_up(Fraction(classes, classes - 1)) if classes > 1 else 1.0


def _reduced(parameters: Parameters, total: float, terms: int) -> Cotangent:
    """Of the sum over the outputs, or of their mean."""
    return Cotangent(divide_up(total, float(terms)) if is_mean(parameters) else total)
