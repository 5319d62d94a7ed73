"""ε against closed forms, against mpmath, and against dp-accounting."""

import math
from fractions import Fraction

import mpmath
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SampledWithoutReplacementDpEvent
from dp_accounting import NeighboringRelation as Relation
from dp_accounting.pld import privacy_loss_distribution as pld
from dp_accounting.rdp import RdpAccountant

from lipcert.core.accounting.account import epsilon_upper
from lipcert.core.accounting.gaussian import gaussian_epsilon
from lipcert.core.accounting.renyi import poisson_renyi_epsilon


def _tail(x: mpmath.mpf) -> mpmath.mpf:
    return mpmath.erfc(x / mpmath.sqrt(2)) / 2


def _gaussian_curve(shift: mpmath.mpf):
    def curve(ratio: mpmath.mpf) -> mpmath.mpf:
        if ratio <= 0:
            return 1 - ratio
        at = mpmath.log(ratio) / shift
        return _tail(at - shift / 2) - ratio * _tail(at + shift / 2)

    return curve


def _removed(shift: mpmath.mpf, rate: Fraction):
    q = mpmath.mpf(rate.numerator) / rate.denominator
    curve = _gaussian_curve(shift)
    return lambda ratio: q * curve((ratio - 1 + q) / q)


def _added(shift: mpmath.mpf, rate: Fraction):
    curve = _removed(shift, rate)
    return lambda ratio: 1 - ratio + ratio * curve(1 / ratio)


def _replaced(shift: mpmath.mpf, rate: Fraction):
    """By bisection for the threshold, not by its closed form."""
    q = mpmath.mpf(rate.numerator) / rate.denominator

    def difference(x: mpmath.mpf, ratio: mpmath.mpf) -> mpmath.mpf:
        here, there = (mpmath.exp(sign * shift * x - shift**2 / 2) for sign in (1, -1))
        return (1 - q) + q * here - ratio * ((1 - q) + q * there)

    def curve(ratio: mpmath.mpf) -> mpmath.mpf:
        low, high = mpmath.mpf(-300), mpmath.mpf(300)
        for _ in range(80):
            middle = (low + high) / 2
            low, high = (middle, high) if difference(middle, ratio) < 0 else (low, middle)
        alone = (1 - q) * (1 - ratio) * _tail(high)
        return alone + q * _tail(high - shift) - ratio * q * _tail(high + shift)

    return curve


def _is_private(curves, epsilon: mpmath.mpf, delta: Fraction) -> bool:
    """Whether one release is (ε, δ)-private: exactly, but for the rounding of mpmath."""
    goal = mpmath.mpf(delta.numerator) / delta.denominator
    return all(curve(mpmath.exp(epsilon)) <= goal for curve in curves)


@pytest.fixture(autouse=True)
def _precise() -> object:
    with mpmath.workprec(200):
        yield


@pytest.mark.parametrize("delta", ["1/10", "1e-5", "1e-12", "1e-30"])
@pytest.mark.parametrize(
    ("sigma", "releases"), [(1.0, 1), (0.3, 3), (5.0, 100), (80.0, 7), (0.1, 1), (1.7, 2**20)]
)
def test_gaussian_is_the_optimum(sigma: float, releases: int, delta: str) -> None:
    found = gaussian_epsilon(sigma, releases, Fraction(delta))
    if found is None:
        assert releases / sigma**2 > 700
        return
    shift = mpmath.sqrt(releases) / mpmath.mpf(sigma)
    curve = _gaussian_curve(shift)
    goal = mpmath.mpf(Fraction(delta).numerator) / Fraction(delta).denominator
    assert curve(mpmath.exp(mpmath.mpf(found))) <= goal
    lower = found * (1 - 1e-12)
    assert found == 0.0 or curve(mpmath.exp(mpmath.mpf(lower))) > goal


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("sigma", "rate", "delta"),
    [(1.0, "1/100", "1e-5"), (0.3, "1/1000", "1e-12"), (3.0, "1/2", "1e-9"), (9.0, "1/7", "1e-3")],
)
@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
def test_one_sampled_release(sigma: float, rate: str, delta: str, relation: str) -> None:
    """Never below the exact ε, and hardly above."""
    q, goal = Fraction(rate), Fraction(delta)
    shift = 1 / mpmath.mpf(sigma)
    curves = (
        [_replaced(shift / 2, q)]
        if relation == "replace-one"
        else [_removed(shift, q), _added(shift, q)]
    )
    found = epsilon_upper("poisson", sigma, q, 1, goal, relation)
    assert _is_private(curves, mpmath.mpf(found), goal)
    assert not _is_private(curves, (mpmath.mpf(found) - 1e-9) / (1 + 1e-4), goal)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("sigma", "rate", "releases", "delta"),
    [
        (4.0, "1/2", 30, 1e-3),
        (1.0, "1/50", 400, 1e-5),
        (0.7, "1/100", 50, 1e-6),
        (2.0, "1/10", 300, 1e-8),
    ],
)
def test_poisson_composed(sigma: float, rate: str, releases: int, delta: float) -> None:
    """Between the optimistic and the pessimistic estimate of dp-accounting."""
    q = Fraction(rate)
    found = epsilon_upper("poisson", sigma, q, releases, Fraction(delta), "add-remove")

    def estimate(grid: float, *, pessimistic: bool) -> float:
        one = pld.from_gaussian_mechanism(
            sigma,
            pessimistic_estimate=pessimistic,
            value_discretization_interval=grid,
            sampling_prob=float(q),
            use_connect_dots=pessimistic,
        )
        return float(one.self_compose(releases).get_epsilon_for_delta(delta))

    assert estimate(1e-4, pessimistic=False) <= found <= estimate(1e-4, pessimistic=True) * 1.0001
    renyi = poisson_renyi_epsilon(sigma, q, releases, Fraction(delta))
    assert renyi > found


@pytest.mark.sample(2)
@pytest.mark.parametrize("delta", ["1/10", "1e-5", "1e-12", "1e-25"])
@pytest.mark.parametrize(
    ("sigma", "releases", "relation"), [(2.0, 3, "replace-one"), (30.0, 700, "add-remove")]
)
def test_nearly_certain_samples(sigma: float, releases: int, delta: str, relation: str) -> None:
    """At q = 1 − 10^−12 the convolution must give the closed form of T Gaussian releases."""
    rate, goal = 1 - Fraction(1, 10**12), Fraction(delta)
    found = epsilon_upper("poisson", sigma, rate, releases, goal, relation)
    closed = gaussian_epsilon(sigma, releases, goal)
    slack = 1e-8 if goal > Fraction(1, 10**9) else 1e-3  # q^T of the outcomes, against δ
    assert closed * (1 - slack) <= found <= closed * (1 + 2e-5)


@pytest.mark.nightly
def test_zero_out_is_add_remove_and_replace_one_costs_more() -> None:
    args = ("poisson", 1.0, Fraction(1, 50), 40, Fraction("1e-5"))
    assert epsilon_upper(*args, "zero-out") == epsilon_upper(*args, "add-remove")
    half = ("poisson", 0.5, *args[2:])  # twice the sensitivity at the same noise
    replaced, doubled = epsilon_upper(*half, "replace-one"), epsilon_upper(*half, "add-remove")
    single = epsilon_upper(*args, "add-remove")
    assert single < replaced < doubled


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("sigma", "rate", "releases", "delta"),
    [(1.0, "1/100", 1000, 1e-5), (2.0, "3/1000", 500, 1e-6), (0.7, "1/3", 5, 1e-4)],
)
def test_renyi_agrees_with_dp_accounting(
    sigma: float, rate: str, releases: int, delta: float
) -> None:
    q = Fraction(rate)
    orders = [*range(2, 64), 128, 256, 512]
    poisson = RdpAccountant(orders, Relation.ADD_OR_REMOVE_ONE)
    poisson.compose(PoissonSampledDpEvent(float(q), GaussianDpEvent(sigma)), releases)
    ours = poisson_renyi_epsilon(sigma, q, releases, Fraction(delta))
    assert ours <= poisson.get_epsilon(delta) * (1 + 1e-9)
    fixed = RdpAccountant(None, Relation.REPLACE_ONE)
    event = SampledWithoutReplacementDpEvent(q.denominator, q.numerator, GaussianDpEvent(sigma))
    fixed.compose(event, releases)
    without = epsilon_upper(
        "without-replacement", sigma, q, releases, Fraction(delta), "replace-one"
    )
    assert without == pytest.approx(fixed.get_epsilon(delta), rel=1e-9)


@pytest.mark.nightly
def test_monotone() -> None:
    """More noise, fewer examples, fewer steps, larger δ: never a larger ε."""
    base = (1.0, Fraction(1, 20), 50, Fraction("1e-6"))
    better = [
        (1.1, *base[1:]),
        (1.0, Fraction(1, 22), *base[2:]),
        (*base[:2], 45, base[3]),
        (*base[:3], Fraction("1e-5")),
    ]
    for relation in ("add-remove", "replace-one"):
        worst = epsilon_upper("poisson", *base, relation)
        assert worst is not None
        for case in better:
            found = epsilon_upper("poisson", *case, relation)
            assert found < worst


def test_what_is_not_amplified() -> None:
    args = (2.0, Fraction(1, 100), 7, Fraction("1e-5"))
    shuffled = epsilon_upper("shuffle", *args, "replace-one")
    assert (
        shuffled
        == epsilon_upper("full-batch", *args, "add-remove")
        == gaussian_epsilon(2.0, 7, args[3])
    )
    whole = (2.0, Fraction(1), *args[2:])
    assert epsilon_upper("poisson", *whole, "add-remove") == shuffled


@pytest.mark.parametrize(
    ("sampling", "sigma", "rate", "releases", "delta", "relation"),
    [
        ("shuffle", 1.0, "1/10", 5, "1e-5", "add-remove"),
        ("without-replacement", 1.0, "1/10", 5, "1e-5", "add-remove"),
        ("without-replacement", 1.0, "1/10", 5, "1e-5", "zero-out"),
        ("lottery", 1.0, "1/10", 5, "1e-5", "replace-one"),
        ("poisson", 1.0, "1/10", 5, "1e-5", "neighbours"),
        ("poisson", 0.0, "1/10", 5, "1e-5", "add-remove"),
        ("poisson", math.nan, "1/10", 5, "1e-5", "add-remove"),
        ("poisson", 1e-160, "1/10", 5, "1e-5", "add-remove"),
        ("balls-in-bins", 5e-324, "1/10", 5, "1e-5", "add-remove"),
        ("poisson", 1.0, "0", 5, "1e-5", "add-remove"),
        ("poisson", 1.0, "11/10", 5, "1e-5", "add-remove"),
        ("poisson", 1.0, "1/10", 0, "1e-5", "add-remove"),
        ("poisson", 1.0, "1/10", 5, "0", "add-remove"),
        ("poisson", 1.0, "1/10", 5, "1", "add-remove"),
    ],
)
def test_not_recomputed(
    sampling: str, sigma: float, rate: str, releases: int, delta: str, relation: str
) -> None:
    args = (sampling, sigma, Fraction(rate), releases, Fraction(delta), relation)
    assert epsilon_upper(*args) is None


def test_no_loss_without_sensitivity() -> None:
    args = ("poisson", math.inf, Fraction(1, 2), 9, Fraction("1e-5"), "add-remove")
    assert epsilon_upper(*args) == 0.0
