"""Losses: sampled gradients by autograd, and what is refused."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lipcert.core.interval import Interval
from lipcert.core.losses.base import Loss, loss_cotangent, read_loss
from lipcert.core.losses.softmax import domain_of
from lipcert.core.lower.errors import Unsupported
from lipcert.core.rules.facts import Fact
from tests.plain_losses import loss_value, one_hot

ONE = 1.0
MEAN = {"output_reduction": "mean"}
SUM = {"output_reduction": "sum"}
CASES = [
    ("cross-entropy", {"temperature": ONE, "label_smoothing": 0.0}),
    ("cross-entropy", {"temperature": 0.25, "label_smoothing": 0.0}),
    ("cross-entropy", {"temperature": 2.0, "label_smoothing": 0.125}),
    ("focal", {"focal_gamma": 2.0}),
    ("focal", {"focal_gamma": 0.0}),
    ("focal", {"focal_gamma": 0.5}),
    ("bce", {"temperature": ONE, **MEAN}),
    ("bce", {"temperature": 0.5, **SUM}),
    ("mse", {"label_norm": 1.5, "half": False, **MEAN}),
    ("mse", {"label_norm": 0.0, "half": True, **SUM}),
    ("mae", {**MEAN}),
    ("mae", {**SUM}),
    ("huber", {"huber_delta": 0.5, **MEAN}),
    ("huber", {"huber_delta": 5.0, "label_norm": 1.0, **SUM}),
    ("multiclass-hinge", {"margin": ONE, **MEAN}),
    ("multiclass-hinge", {"margin": ONE, **SUM}),
    ("multi-margin", {"margin": ONE, **MEAN}),
    ("multi-margin", {"margin": 0.0, **SUM}),
    ("kr", {}),
    ("hkr", {"hkr_weight": 3.0, "margin": ONE}),
    ("cosine", {"cosine_floor": 0.25}),
    ("nll", {}),
]


def fact(shape: tuple[int, ...], radius: float, bias: float = 0.0, width: float = math.inf) -> Fact:
    box = None
    if math.isfinite(width):
        low = np.full((1,) * len(shape), bias - width)
        box = Interval(low, low + 2 * width)
    return Fact.of(shape, radius, box)


def gradients(loss: Loss, z: torch.Tensor, y: int, target: torch.Tensor) -> torch.Tensor:
    """∂loss/∂z by autograd. target: any numbers, made admissible."""
    z = z.clone().requires_grad_(True)
    if loss.kind in {"mse", "huber", "cosine"}:
        norm = getattr(loss, "label_norm", 1.0)
        target = target / target.norm() * (7.0 if norm is None else norm)
    elif loss.kind == "bce":
        target = (target > 0).double()
    elif loss.of_classes:
        target = one_hot(y, z)
    (gradient,) = torch.autograd.grad(loss_value(loss, z, target), z)
    return gradient


@pytest.mark.sample(22)
@pytest.mark.parametrize(("kind", "parameters"), CASES)
@pytest.mark.parametrize(("radius", "width"), [(6.0, math.inf), (1.0, 1.0), (math.inf, 0.5)])
def test_sampled_gradients(kind: str, parameters: dict, radius: float, width: float) -> None:
    """No admissible logits and labels exceed norm and hull."""
    classes = 4
    found = fact((1, classes), radius, 0.0, width)
    loss = read_loss(kind, parameters)
    bound = loss_cotangent(loss, found, (1, classes))
    generator = torch.Generator().manual_seed(1)
    for _ in range(30):
        z = torch.randn(classes, generator=generator, dtype=torch.float64)
        z = z * (10 * torch.rand(1, generator=generator, dtype=torch.float64))
        z = z.clamp(-width, width)
        z = z * min(1.0, radius / float(z.norm()))
        target = torch.randn(classes, generator=generator, dtype=torch.float64)
        for y in range(classes):
            gradient = gradients(loss, z, y, target).numpy()
            assert np.linalg.norm(gradient) <= bound.norm * (1 + 1e-9)
            if bound.hull is not None:
                _assert_in_hull(gradient, bound.hull.scale, bound.hull.smoothing)


def _assert_in_hull(gradient: np.ndarray, scale: float, smoothing: float) -> None:
    """No direction in which it is beyond every vertex."""
    classes = len(gradient)
    targets = (1 - smoothing) * np.eye(classes) + smoothing / classes
    vertices = scale * (np.eye(classes)[:, None] - targets).reshape(-1, classes)
    rng = np.random.default_rng(0)
    directions = np.concatenate([rng.standard_normal((200, classes)), [gradient, -gradient]])
    reached, limit = directions @ gradient, (directions @ vertices.T).max(axis=1)
    assert (reached <= limit + 1e-9 * scale).all()


@given(
    st.integers(2, 7),
    st.floats(0.0, 9.0),
    st.floats(0.0, 4.0),
    st.sampled_from([Fraction(0), Fraction(1, 8), Fraction(7, 8)]),
    st.integers(0, 10**6),
)
@settings(max_examples=6)
def test_softmax_errors(
    classes: int, radius: float, width: float, smoothing: Fraction, seed: int
) -> None:
    """No sampled or climbed logits exceed the suprema, over a ball, a cube, and both."""
    rng = np.random.default_rng(seed)
    target = np.full(classes, float(smoothing) / classes)
    target[0] += 1 - float(smoothing)
    for r, w in ((radius, math.inf), (math.inf, width), (radius, width)):
        domain = domain_of(classes, r, w)
        error, miss = domain.error(smoothing), domain.miss()
        z = rng.standard_normal((2000, classes)) * rng.choice([0.3, 1.0, 10.0], (2000, 1))
        z[: classes + 1] = np.vstack([np.eye(classes), -np.ones(classes)]) * 50.0
        if w < math.inf:
            z = np.clip(z, 0.0, w) if r == math.inf else np.clip(z, -w / 2, w / 2)
        if r < math.inf:
            lengths = np.linalg.norm(z, axis=1, keepdims=True)
            z = z * np.minimum(1.0, r / np.maximum(lengths, 1e-300))
        p = np.exp(z - z.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        assert np.linalg.norm(p - target, axis=1).max() <= error * (1 + 1e-12)
        assert (1 - p[:, 0]).max() <= miss * (1 + 1e-12)


def test_attained_on_balls_and_cubes() -> None:
    """Two classes on a ball; a cube with one wrong class at the top."""
    for radius in (0.5, 2.0):
        p = 1 / (1 + math.exp(math.sqrt(2) * radius))
        domain = domain_of(2, radius, math.inf)
        assert domain.error(Fraction(0)) == pytest.approx(math.sqrt(2) * (1 - p), rel=1e-14)
        assert domain.miss() == pytest.approx(1 - p, rel=1e-14)
    domain = domain_of(3, math.inf, 1.0)
    assert domain.miss() == pytest.approx(2 * math.e / (1 + 2 * math.e), rel=1e-14)
    assert domain_of(3, math.inf, math.inf).error(Fraction(0)) == pytest.approx(math.sqrt(2))


def test_attained_by_bce() -> None:
    """All outputs at the end of a box, or equal on a ball."""
    parameters = {"temperature": ONE, **SUM}
    by_box = loss_cotangent(read_loss("bce", parameters), fact((1, 3), math.inf, 0.0, 2.0), (1, 3))
    assert by_box.norm == pytest.approx(math.sqrt(3) / (1 + math.exp(-2)), rel=1e-14)
    by_ball = loss_cotangent(read_loss("bce", parameters), fact((1, 4), 2.0), (1, 4))
    assert by_ball.norm == pytest.approx(2 / (1 + math.exp(-1)), rel=1e-14)


def test_cosine_without_a_floor() -> None:
    """Bounded by the distance of the box from 0, and unbounded if that holds 0."""
    away = Interval(np.full((1, 1), 1.0), np.full((1, 1), 3.0))
    bound = loss_cotangent(read_loss("cosine", {}), Fact.of((1, 4), box=away), (1, 4))
    assert bound.norm == pytest.approx(0.5, rel=1e-15)
    assert loss_cotangent(read_loss("cosine", {}), fact((1, 4), 1.0), (1, 4)).norm == math.inf


def test_one_output() -> None:
    """Losses of a single score, and a softmax of one class."""
    one = fact((1, 1), math.inf)
    for kind, parameters, expected in (
        ("kr", {}, 1.0),
        ("hkr", {"hkr_weight": 2.0, "margin": ONE}, 3.0),
        ("multiclass-hinge", {"margin": ONE, **MEAN}, 1.0),
        ("bce", {"temperature": ONE, **MEAN}, 1.0),
    ):
        assert loss_cotangent(read_loss(kind, parameters), one, (1, 1)).norm == expected
    for kind, parameters in (CASES[0], CASES[3], CASES[16], CASES[21]):
        with pytest.raises(Unsupported, match="single class"):
            loss_cotangent(read_loss(kind, parameters), one, (1, 1))


REFUSED: list[tuple[str, dict]] = [
    ("kr-batch", {}),
    ("cross-entropy", {"temperature": ONE}),
    ("cross-entropy", {"temperature": 0.0, "label_smoothing": 0.0}),
    ("cross-entropy", {"temperature": ONE, "label_smoothing": ONE}),
    ("cross-entropy", {"temperature": ONE, "label_smoothing": -1.0}),
    ("cross-entropy", {"temperature": True, "label_smoothing": 0.0}),
    ("mae", {"output_reduction": "max"}),
    ("mae", {**MEAN, "half": True}),
    ("mse", {"label_norm": -1.0, "half": True, **MEAN}),
    ("mse", {"label_norm": ONE, "half": ONE, **MEAN}),
    ("huber", {"huber_delta": 0.0, **MEAN}),
    ("multi-margin", {"margin": -1.0, **MEAN}),
    ("hkr", {"hkr_weight": -1.0, "margin": ONE}),
    ("cosine", {"cosine_floor": 0.0}),
]


@pytest.mark.parametrize(("kind", "parameters"), REFUSED)
def test_refused_parameters(kind: str, parameters: dict) -> None:
    """Missing, unknown, of the wrong type, out of range."""
    with pytest.raises(Unsupported):
        loss_cotangent(read_loss(kind, parameters), fact((1, 3), 1.0), (1, 3))


@pytest.mark.parametrize("number", [0, 3, 14, 16, 18, 19, 21])
def test_class_scores_need_one_axis(number: int) -> None:
    """Several positions with classes are refused; other losses take them."""
    kind, parameters = CASES[number]
    for shape in itertools.permutations((1, 3, 4)):
        with pytest.raises(Unsupported, match="one vector"):
            loss_cotangent(read_loss(kind, parameters), fact(shape, 1.0), shape)
    assert math.isfinite(
        loss_cotangent(read_loss("mae", {**MEAN}), fact((1, 3, 4), 1.0), (1, 3, 4)).norm
    )
