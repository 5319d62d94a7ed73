"""Random examples: admissible, deterministic, and of every kind that the domain has."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lipcert.audit.bounds import claims_of_analysis
from lipcert.audit.prepared_job import random_examples
from lipcert.core.interval import norm_up
from lipcert.gradient_stats.examples import outside
from lipcert.gradient_stats.labels import checked_labels
from lipcert.graph.domain import lengths
from lipcert.settings.settings import Settings
from tests.domains import box_and_ball
from tests.networks import chain, trained
from tests.ops import Dense
from tests.written import model_of

DOMAINS = {
    "box": {"input_box": (-0.5, 2.0)},
    "ball": {"input_norm": 3.0},
    "both": {"input_box": (0.0, 1.0), "input_norm": 1.1},
    "box off zero": {"input_box": (0.3, 0.7), "input_norm": 2.0},
    "box not in float32": {"input_box": (0.1, 0.1 + 1e-9)},
    "point": {"input_box": (0.25, 0.25)},
    "ball of no size": {"input_norm": 0.0},
    "assumed": {},
}
LOSSES = {
    "cross-entropy": {},
    "bce": {"loss": "bce"},
    "mse": {"loss": "mse", "label_norm": 2.5},
    "mse at 0": {"loss": "mse", "label_norm": 0.0},
    "mae": {"loss": "mae"},
    "huber": {"loss": "huber", "huber_delta": 0.3},
    "huber within": {"loss": "huber", "label_norm": 0.7},
    "focal": {"loss": "focal"},
    "multiclass-hinge": {"loss": "multiclass-hinge"},
    "multi-margin": {"loss": "multi-margin"},
    "kr": {"loss": "kr"},
    "hkr": {"loss": "hkr", "hkr_weight": 2.0},
    "cosine": {"loss": "cosine", "cosine_floor": 0.5},
}
SINGLE = ("bce", "mse", "mae", "kr", "hkr")


def claims(outputs: int = 4, inputs: int = 6, **given_settings):
    weight = np.random.default_rng(0).standard_normal((outputs, inputs))
    graph = chain((inputs,), Dense(trained("w", weight), trained("b", np.ones(outputs))))
    return claims_of_analysis(model_of(graph), Settings(**given_settings))


def assert_inside(x, run: Settings) -> None:
    """Exactly, without the slack that the admissibility check grants to rounding."""
    assert outside(x, run) == []
    exact = np.asarray(x, dtype=np.float64)
    if run.effective_input_box is not None:
        low, high = run.effective_input_box
        assert exact.min() >= low
        assert exact.max() <= high
    if run.input_norm is not None:
        assert all(norm_up(example) <= run.input_norm for example in exact)


@pytest.mark.parametrize("domain", DOMAINS.values(), ids=DOMAINS)
def test_inputs(domain):
    run = claims(**domain)
    found = random_examples(run, 33)
    assert found.x.shape == (33, 6)
    assert_inside(found.x, run.settings)
    again, other = random_examples(run, 33), random_examples(run, 33, seed=1)
    assert np.array_equal(found.x, again.x)
    assert np.array_equal(found.y, again.y)
    if run.engine.domain.width > 1e-3:
        assert not np.array_equal(found.x, other.x)
        assert len(np.unique(found.x, axis=0)) > 16
    assert len(random_examples(run, 1)) == 1


@pytest.mark.parametrize("outputs", [1, 4])
@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_labels(loss, outputs):
    if outputs == 1 and loss.get("loss") not in SINGLE:
        pytest.skip("a loss over several classes")
    run = claims(outputs, **loss)
    found = random_examples(run, 40)
    labels = checked_labels(run.engine.loss, found.y, (outputs,))
    assert len(labels) == 40
    if labels.dtype.kind == "i":
        assert set(labels.tolist()) == set(range(outputs))


def test_kinds_of_inputs():
    run = claims(inputs=64, input_box=(0.0, 1.0), input_norm=6.0)
    x = random_examples(run, 100).x.astype(np.float64)
    norms = lengths(x)
    assert np.any(norms > 5.999)
    assert np.any(norms < 3.0)
    assert np.any(np.all((x == 0.0) | (x == 1.0), axis=1))


@given(
    low=st.floats(-2.0, 1.0),
    width=st.floats(0.0, 3.0),
    slack=st.floats(1.001, 3.0),
    seed=st.integers(0, 2**16),
)
def test_projection_is_the_nearest_point(low, width, slack, seed):
    """Seen from the projection, no random point of the domain lies towards x."""
    high = low + width
    least = float(np.linalg.norm(np.full(5, np.clip(0.0, low, high))))
    radius = max(least, 0.1) * slack
    domain = box_and_ball(5, radius, (low, high))
    random = np.random.default_rng(seed)
    x = random.standard_normal((4, 5)) * 10.0 ** random.integers(-2, 3)
    found = domain.projected(x)
    assert np.all((found >= domain.low) & (found <= domain.high))
    assert np.all(lengths(found) <= domain.radius * (1.0 + 1e-12))
    others = domain.drawn(64, random)
    for point, near in zip(x, found, strict=True):
        inner = (others - near) @ (point - near)
        assert np.all(inner <= 1e-9 * (1.0 + np.linalg.norm(point)) * (1.0 + radius))
    assert all(domain.contains(example) for example in domain.settled(found).astype(np.float64))
