"""Losses whose gradients take finitely many values: likelihood, hinges, Kantorovich–Rubinstein."""

from __future__ import annotations

from fractions import Fraction

from lipcert.core.arithmetic import add_up, divide_up, multiply_up, sqrt_up
from lipcert.core.losses.parameters import Parameters, is_mean, not_negative
from lipcert.core.lower.errors import Unsupported
from lipcert.core.rules.facts import Cotangent, Fact, Hull, root_up


def negative_log_likelihood(parameters: Parameters, logits: Fact, classes: int) -> Cotangent:
    """−e_y: the loss is −z_y, linear in the outputs. Attained: always."""
    del parameters, logits
    if classes < 2:
        raise Unsupported("a likelihood of a single class is constant")
    return Cotangent(1.0, label=1.0)


def multiclass_hinge(parameters: Parameters, logits: Fact, classes: int) -> Cotangent:
    """Entries in [−1, 1] times the weights of the K hinges.

    sum: 1 each. mean: (K − 1)/K for the label and 1/K for the others, √((K − 1)² + K − 1)/K in
    all, which is no less than √K/K, the plain mean's, for K ≥ 2; 1 for one output.
    Attained: where every margin is violated.
    """
    del logits
    not_negative(parameters, "margin")
    return Cotangent(_hinge_mean(classes) if is_mean(parameters) else root_up(classes))


def multi_margin(parameters: Parameters, logits: Fact, classes: int) -> Cotangent:
    """Σ_{j≠y} w_j(e_j − e_y), w_j in [0, 1]; the mean divides by K.

    Proof: Σw_j² + (Σw_j)² ≤ (K − 1) + (K − 1)², and it is at most K − 1 times a member of the hull.
    Attained: where every margin is violated.
    """
    del logits
    not_negative(parameters, "margin")
    divisor = classes if is_mean(parameters) else 1
    norm = sqrt_up(Fraction(classes * (classes - 1), divisor**2))
    return Cotangent(norm, Hull(classes, divide_up(float(classes - 1), float(divisor))))


def kantorovich_rubinstein(parameters: Parameters, logits: Fact, classes: int) -> Cotangent:
    """mean_{j≠y} e_j − e_y, of norm √(1 + 1/(K − 1)); for one output −s, |s| ≤ 1. Attained."""
    del parameters, logits
    return Cotangent(_kr_norm(classes), Hull(classes, 1.0) if classes > 1 else None)


def hinge_kr(parameters: Parameters, logits: Fact, classes: int) -> Cotangent:
    """The sum of `kr` and hkr_weight times the mean `multiclass-hinge`. Attained: as there."""
    del logits
    not_negative(parameters, "margin")
    weight = not_negative(parameters, "hkr_weight")
    return Cotangent(add_up(_kr_norm(classes), multiply_up(weight, _hinge_mean(classes))))


def _hinge_mean(classes: int) -> float:
    return sqrt_up(Fraction(classes - 1, classes)) if classes > 1 else 1.0


def _kr_norm(classes: int) -> float:
    return sqrt_up(Fraction(classes, classes - 1)) if classes > 1 else 1.0
