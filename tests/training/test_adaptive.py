"""When the bounds of weight clipping are made anew, and when those at hand or their lines serve."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lipcert.analysis import bounded
from lipcert.training import WeightClipping, enforcement
from lipcert.training.calibration import recalibrated
from lipcert.training.enforcement import AdaptiveNoise
from tests.training.runs import private_run

CAPS = {"w": 1.0, "b": 2.0}
ABOVE = 1.0 + 2.0**-50
"""as certified norms are that were rounded up"""


class Run:
    """An AdaptiveNoise whose calibrations are the radii that they are made for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, slack: float) -> None:
        self.made: list[Mapping[str, float]] = []
        self.norms: dict[str, float] = {}
        monkeypatch.setattr(enforcement, "recalibrated", self._recalibrated)
        planned = None
        self.noise = AdaptiveNoise(planned, lambda: self.norms, CAPS, slack)

    def _recalibrated(self, before: object, radii: Mapping[str, float]):
        self.made.append(dict(radii))
        return self.made[-1]

    def at(self, **norms: float) -> Mapping[str, float]:
        self.norms = norms
        return self.noise.present()


@pytest.fixture
def patched():
    with pytest.MonkeyPatch.context() as monkeypatch:
        yield monkeypatch


@pytest.mark.parametrize("slack", [0.0, 0.02])
def test_weights_at_their_caps_need_no_new_bounds(
    patched: pytest.MonkeyPatch, slack: float
) -> None:
    run = Run(patched, slack)
    for _ in range(3):
        assert run.at(w=1.0 * ABOVE, b=2.0 * ABOVE, free=3.0) == {**CAPS, "free": 3.0 * (1 + slack)}
    assert len(run.made) == 1


def test_a_norm_that_leaves_its_radius_makes_them_anew(patched: pytest.MonkeyPatch) -> None:
    run = Run(patched, 0.1)
    run.at(w=0.5, b=0.5, free=0.5)
    assert run.at(w=0.59, b=0.69, free=0.54) is run.made[0]
    assert run.at(w=0.61, b=0.5, free=0.5) == pytest.approx({"w": 0.71, "b": 0.7, "free": 0.55})
    assert len(run.made) == 2


def test_norms_that_fell_altogether_make_them_anew(patched: pytest.MonkeyPatch) -> None:
    """Also where one of them stays at its cap."""
    run = Run(patched, 0.1)
    run.at(w=1.0, b=1.0)
    assert run.at(w=1.0, b=0.9) is run.made[0]
    assert run.at(w=1.0, b=0.7)["b"] == pytest.approx(0.9)


def test_without_slack_they_follow_every_change(patched: pytest.MonkeyPatch) -> None:
    run = Run(patched, 0.0)
    for w in (0.5, 0.5, 0.4, 0.45):
        assert run.at(w=w, b=2.0)["w"] == pytest.approx(w, rel=1e-12)
    assert len(run.made) == 3


def test_biases_that_are_zero_do_not_count_as_falling(patched: pytest.MonkeyPatch) -> None:
    run = Run(patched, 0.02)
    for norm in (0.0, 2.0**-40, 1e-5):
        run.at(w=0.5, b=norm)
    assert len(run.made) == 1


@given(
    st.floats(0.0, 0.5),
    st.lists(st.tuples(st.floats(0.0, 1.0), st.floats(0.0, 2.0), st.floats(0.0, 9.0)), min_size=1),
)
def test_the_weights_at_hand_are_within_the_radii(
    slack: float, walk: list[tuple[float, float, float]]
) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        run = Run(monkeypatch, slack)
        for w, b, free in walk:
            radii = run.at(w=w * ABOVE, b=b * ABOVE, free=free)
            assert w <= radii["w"] <= CAPS["w"]
            assert b <= radii["b"] <= CAPS["b"]
            assert free <= radii["free"]


def test_lines_serve_without_a_search_until_bounds_are_others(patched: pytest.MonkeyPatch) -> None:
    def made_of(radius: float) -> dict[str, float]:
        return dict.fromkeys(private.release.enforcement.present().bounds.grad_norms, radius)

    searches, search = [], bounded.with_chains
    patched.setattr(bounded, "with_chains", lambda *given: searches.append(1) or search(*given))
    with private_run(mechanism=WeightClipping(bias_norm=1.0, input_norm=1.0)) as private:
        found, fresh = private.calibration, private.calibration
        for radius, searched in ((0.7, True), (0.71, False), (0.69, False), (0.2, True)):
            fresh = recalibrated(private.calibration, made_of(radius))
            searches.clear()
            found = recalibrated(found, made_of(radius))
            assert bool(searches) == searched
            assert found.groups == fresh.groups
