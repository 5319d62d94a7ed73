"""The drift of single quantities: in the scope of the claims where that is enough, else here."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lipcert.audit import allowance
from lipcert.audit.allowance import Allowance
from lipcert.audit.bench import Bench
from lipcert.audit.bounds import Claims, claims_of_analysis
from lipcert.audit.data import Examples
from lipcert.audit.precision import Precision
from lipcert.audit.records import Verdict
from lipcert.audit.replay import Replayer
from lipcert.audit.tally import Family
from lipcert.ir import Graph
from lipcert.ops import functions
from lipcert.ops.activation import Activation
from lipcert.ops.linear import Dense
from lipcert.settings import Settings
from tests.audit.checks.runs import model_of
from tests.networks import chain, trained

CPU = torch.device("cpu")
SINGLE, EXACT = Precision.FLOAT32, Precision.FLOAT64


def graph_of(rng: np.random.Generator) -> Graph:
    return chain(
        (6,),
        Dense(trained("a", rng.standard_normal((8, 6)))),
        Activation(functions.Relu()),
        Dense(trained("b", rng.standard_normal((3, 8)))),
    )


def claims_under(clip: float, radius: float | None = 1.0) -> Claims:
    graph = graph_of(np.random.default_rng(0))
    settings = Settings(mechanism="gradient-clipping", clip_norm=clip, input_norm=radius)
    return claims_of_analysis(model_of(graph), settings)


def weights_of(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {"a": rng.standard_normal((8, 6)), "b": rng.standard_normal((3, 8))}


def examples() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(5)
    x = rng.standard_normal((40, 6))
    return x / np.linalg.norm(x, axis=1, keepdims=True), rng.integers(0, 3, 40)


@pytest.fixture
def no_norms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is bounded at single weights."""

    def refused(*_: object) -> object:
        raise AssertionError

    monkeypatch.setattr(allowance, "propagate", refused)


@pytest.mark.usefixtures("no_norms")
def test_what_no_weight_moves_takes_no_certified_norm() -> None:
    claims = claims_under(0.5)
    found = Allowance(claims, weights_of(1))
    graph = claims.engine.graph
    assert 0.0 < found.of(Family.VALUE, graph.input_name, SINGLE) < 1e-6
    assert 0.0 < found.of(Family.COTANGENT, graph.output_name, SINGLE) < 1e-4
    with pytest.raises(AssertionError):
        found.of(Family.GRADIENT, "all", SINGLE)


@pytest.mark.usefixtures("no_norms")
@pytest.mark.parametrize("clip", [1e-3, 0.5])
def test_replaying_clipped_gradients_takes_no_certified_norm(clip: float) -> None:
    claims = claims_under(clip)
    x, y = examples()
    found = Replayer(claims, SINGLE, CPU, weights_of(1), timed=False).replay(
        Examples(x, y, "test", ""), 0, len(x)
    )
    tally = found.tallies[Family.GRADIENT]["all"]
    assert (tally.violations, tally.undecided, found.checks) == (0, 0, ())
    assert tally.max_observed == pytest.approx(min(clip, tally.max_observed))


@pytest.mark.parametrize("radius", [1.0, None], ids=["declared", "any input"])
def test_a_claim_below_the_clip_is_found_violated_all_the_same(radius: float | None) -> None:
    """The drift is asked for, and is no excuse."""
    claims = claims_under(0.5, radius)
    tight = claims_under(0.499)
    wrong = Claims(
        tight.origin, claims.settings, claims.engine, {}, {}, tight.parameters, tight.groups
    )
    x, y = examples()
    found = Replayer(wrong, SINGLE, CPU, weights_of(1), timed=False).replay(
        Examples(x, y, "test", ""), 0, len(x)
    )
    assert found.tallies[Family.GRADIENT]["all"].violations > 0
    assert not [check for check in found.checks if check.verdict is Verdict.PASS]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("size", [1.0, 20.0])
@pytest.mark.parametrize("radius", [20.0, None], ids=["declared", "any input"])
def test_the_drift_at_free_weights_covers_what_float32_does_there(
    seed: int, size: float, radius: float | None
) -> None:
    claims, weights = claims_under(1e9, radius), weights_of(seed)
    x, y = examples()
    x *= size
    single, exact = (
        Bench(claims, precision, CPU, weights, watch_values=True, timed=False)
        for precision in (SINGLE, EXACT)
    )
    near, true = single.measure(x, y), exact.measure(x, y)
    for family, name in (
        (Family.GRADIENT, "all"),
        (Family.VALUE, claims.engine.graph.output_name),
        (Family.COTANGENT, claims.engine.graph.output_name),
    ):
        ours, theirs = near.of(family)[name], true.of(family)[name]
        width = ours.error + theirs.error + single.drift(family, name) + exact.drift(family, name)
        assert np.all(np.abs(ours.norm - theirs.norm) <= width)
        assert np.all(width < 1e-2)


def test_the_drift_for_any_input_follows_the_longest_example() -> None:
    found = Allowance(claims_under(0.5, None), weights_of(2))
    assert found.of(Family.GRADIENT, "all", SINGLE) == np.inf
    x, _ = examples()
    drifts = []
    for size in (1.0, 100.0, 1.0):
        found.cover(size * x)
        drifts.append(found.of(Family.GRADIENT, "all", SINGLE))
    assert np.isfinite(drifts[0])
    assert drifts[0] < drifts[1] == drifts[2]


def test_parameters_that_share_a_bound_take_their_drift_from_one_scope() -> None:
    claims = claims_under(0.5)
    found = Allowance(claims, weights_of(2))
    together = found.of_parameters(("a", "b"), SINGLE)
    assert np.all(np.isfinite(together))
    assert found.of(Family.GRADIENT, "all", SINGLE) == pytest.approx(float(np.hypot(*together)))
    finer = found.of_parameters(("a", "b"), EXACT)
    assert all(f < 1e-6 * t for f, t in zip(finer, together, strict=True))
