"""Rules of single families, where `test_laws` asks too little."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lipcert.core import kinds
from lipcert.core.interval import Interval, exact
from lipcert.core.program import Move, Op, Shape
from lipcert.core.rules.base import rule_class
from lipcert.core.rules.facts import Cotangent, Fact, Hull
from lipcert.core.token_kinds import MatMul, Multiply, Normalize, ReduceSum, Scale, Softmax
from lipcert.core.window_kinds import AveragePool, LpPool, MaxPool, Window
from tests.core.rules.attack import holds
from tests.core.rules.cases import (
    POINT,
    behind_one,
    everywhere,
    exactly,
    fact,
    fact_behind,
    number,
    ones,
    output,
    rule,
    shares,
    stretch,
)


def test_the_logarithm_of_a_softmax_passes_a_hull_on() -> None:
    shape, cotangent = (1, 4), Cotangent(1.5, Hull(4, 1.0))

    def pulled(shape: Shape, *, logarithm: bool) -> Cotangent:
        asked = rule(Softmax(1, logarithm), [Fact.of(shape)], [shape], shape)
        return asked.pulled(0, cotangent)

    assert pulled(shape, logarithm=True) == cotangent
    assert pulled(shape, logarithm=False) == Cotangent(0.75)
    assert pulled((2, 2), logarithm=True).hull is None


INF = math.inf


def test_normalisation_bounds_its_runs_inside_and_across_blocks() -> None:
    shape = (4, 6)
    found = output(Normalize((1,), 0.5, True), [Fact.of(shape, 2.0)], [shape], shape)
    assert found.row_norm == pytest.approx(math.sqrt(6 * 4 / (4 + 6 * 0.5)))
    assert found.column_norm == pytest.approx(math.sqrt(5 * 4 * 4 / (4 + 24 * 0.5)))
    assert found.max_abs == pytest.approx(math.sqrt(5 * 4 / (4 + 6 * 0.5)))


@pytest.mark.parametrize("centred", [False, True])
def test_normalisation_attains_what_boxes_and_runs_allow(centred: bool) -> None:
    shape, at = (3, 5), np.array([2.0, *[-0.5 if centred else 0.0] * 4])
    op = Normalize((1,), 0.3, centred)
    image = (at - centred * at.mean()) / math.sqrt(np.mean((at - centred * at.mean()) ** 2) + 0.3)
    box = Interval(np.tile(np.minimum(at, -0.5), (3, 1)), np.tile(np.maximum(at, -0.5), (3, 1)))
    for known in (Fact.of(shape, box=box), Fact.of(shape, row_norm=float(np.linalg.norm(at)))):
        found = output(op, [known], [shape], shape)
        assert image[0] <= found.box.broadcast(shape).hi[1, 0] <= image[0] * (1.0 + 1e-12)
        assert found.row_norm >= np.linalg.norm(image)
    found = output(op, [Fact.of(shape, row_norm=0.5, box=box)], [shape], shape)
    assert found.row_norm == pytest.approx(math.sqrt(5 * 0.25 / (0.25 + 5 * 0.3)))
    below = Fact.of(shape, box=Interval(np.full(shape, -4.0), np.zeros(shape)))
    assert output(Normalize((1,), 0.3, False), [below], [shape], shape).box.hi.max() < 1e-9


def test_division_by_a_norm_bounds_its_runs() -> None:
    op, shape = kinds.DivideByNorm((1,), number(0.5, 2), number(0.1, 2), INF), (4, 6)
    near = Fact.of(shape, 3.0, Interval(np.zeros((1, 1)), np.full((1, 1), INF)), column_norm=0.01)
    found = output(op, [near], [shape], shape)
    assert found.row_norm == pytest.approx(0.1 * math.sqrt(6))  # six columns of norm 0.01, over 0.1
    assert found.column_norm == pytest.approx(0.1)
    assert found.box.lo.min() == 0.0
    far = output(op, [Fact.of(shape, 1e9)], [shape], shape)
    assert far.row_norm == pytest.approx(2.0)
    assert far.max_abs == pytest.approx(2.0)
    op = kinds.DivideByNorm((1,), number(0.0, 2), number(0.1, 2), INF)
    no_radius = output(op, [near], [shape], shape)
    assert no_radius.norm == INF


def test_what_is_left_of_a_value_without_its_mean() -> None:
    shape = (2, 6)
    unit = Fact.of(shape, box=Interval(np.zeros((1, 1)), np.ones((1, 1))))
    found = fact_behind(kinds.Centre((1,)), unit, shape, shape, {})
    assert found.norm == pytest.approx(math.sqrt(12) / 2)  # half of the entries at each end
    assert found.max_abs == pytest.approx(1.0)
    runs = Fact.of(shape, 4.0, row_norm=3.0, column_norm=2.0)
    assert fact_behind(kinds.Centre((1,)), runs, shape, shape, {}).row_norm == 3.0
    assert fact_behind(kinds.Centre((0,)), runs, shape, shape, {}).column_norm == 2.0
    assert fact_behind(kinds.Centre((0, 1)), runs, shape, shape, {}).norm == 4.0
    alone = fact_behind(kinds.Centre((1,)), Fact.of((2, 1), 4.0), (2, 1), (2, 1), {})
    assert alone.norm == 0.0


def test_windows_that_read_padding_only_have_no_bound() -> None:
    padded = Window((1,), (1,), (1,), (1,), (3,))
    facts = [Fact.of((1, 1, 1), 1.0)]
    for op in (MaxPool(padded), LpPool(padded, 2)):
        assert output(op, facts, [(1, 1, 1)], (1, 1, 3)).norm == INF
        assert stretch(op, 0, facts, [(1, 1, 1)], (1, 1, 3)) == INF


def test_lengths_with_a_negative_floor_have_no_bound() -> None:
    op, facts = kinds.ReduceNorm((0,), 2, -1.0), [Fact.of((3,), 1.0)]
    assert output(op, facts, [(3,)], (1,)).norm == INF
    assert stretch(op, 0, facts, [(3,)], (1,)) == INF


def test_attained_overlapping_average() -> None:
    """3 taps, stride 2: AAᵀ is tridiagonal with 1/3 and 1/9, of norm 1/3 + 2/9·cos(π/(n + 1))."""
    pool = AveragePool(Window((3,), (2,), (1,), (0,), (40,)), counts_padding=True)
    true = math.sqrt(1 / 3 + 2 / 9 * math.cos(math.pi / 41))
    bound = rule(pool, [], [(1, 5, 81)], (1, 5, 40)).lipschitz(0)
    assert true <= bound <= true * (1 + 1e-9)


def test_nonnegative_sums_and_means_stay_nonnegative() -> None:
    box = Interval(np.zeros((1, 1, 1)), np.ones((1, 1, 1)))
    x = Fact.of((1, 3, 6), box=box)
    assert (
        fact_behind(ReduceSum((2,), mean=True), x, (1, 3, 6), (1, 3, 1), {}).box.lo == 0.0
    ).all()
    pool = AveragePool(Window((2,), (2,), (1,), (0,), (3,)), counts_padding=False)
    assert (fact_behind(pool, x, (1, 3, 6), (1, 3, 3), {}).box.lo == 0.0).all()


def test_a_quotient_by_a_length_is_bounded() -> None:
    shape, length = (2, 3), (2, 1)
    x = Fact.of(shape, 5.0)
    divisor = output(kinds.ReduceNorm((1,), 2, 0.25), [x], [shape], length)
    assert divisor.box.lo.min() == pytest.approx(0.5)
    found = output(kinds.Divide(), [x, divisor], [shape, length], shape)
    assert found.norm == pytest.approx(10.0)


@pytest.mark.parametrize("index", [0, 1])
def test_a_divisor_that_may_be_zero_has_no_bound(index: int) -> None:
    facts = [Fact.of((3,), 1.0), Fact.of((3,), box=everywhere(-1e-9, 1.0, 1))]
    assert stretch(kinds.Divide(), index, facts, [(3,), (3,)], (3,)) == INF
    assert output(kinds.Divide(), facts, [(3,), (3,)], (3,)).norm == INF


@pytest.mark.parametrize("op", [Multiply(), MatMul()])
def test_products_of_unbounded_values_have_no_bound(op: Op) -> None:
    shape = (2, 2)
    facts = [Fact.of(shape, 1.0), Fact.of(shape)]
    assert stretch(op, 0, facts, [shape, shape], shape) == INF
    assert stretch(op, 1, facts, [shape, shape], shape) == pytest.approx(1.0)


def test_matrices_times_vectors_have_no_rule() -> None:
    facts = [Fact.of((2, 3), 1.0), Fact.of((3,), 1.0)]
    assert output(MatMul(), facts, [(2, 3), (3,)], (2,)).norm == INF
    assert stretch(MatMul(), 1, facts, [(2, 3), (3,)], (2,)) == INF


def test_slopes_are_the_factors() -> None:
    op = kinds.BatchNorm(*[exactly([2.0, 3.0]) for _ in range(4)])
    found = rule(op, [Fact.of((1, 2, 4))], [(1, 2, 4)], (1, 2, 4)).slopes()
    assert found.hi.ravel() == pytest.approx([4.0, 9.0])


@pytest.mark.parametrize(("groups", "bound"), [(2, 2.0), (1, 5.0), (4, 4.0)])
def test_factors_of_channels_within_groups(groups: int, bound: float) -> None:
    """4 channels of 3×3; a run behind the move holds one group of channels, or a part of one."""
    shape, channels = (1, 4, 3, 3), (1, 4, 1, 1)
    before = (1, groups, 36 // groups) if groups < 4 else (1, 12, 3)
    fact = Fact.of(before, 5.0, row_norm=2.0)
    behind = behind_one(Move(np.arange(36).reshape(shape)), fact, before)
    x = Fact.of(shape, 4.0 if groups == 4 else 5.0)
    op = Scale(ones(channels, "s"))
    found = rule(op, [x], [shape], shape, POINT, behind).gradients(Cotangent(1.0))
    assert dict(found)["s"] == (min(bound, 2.0) if groups == 1 else bound)


def test_factors_of_what_a_move_repeats() -> None:
    """Every entry of a run of norm 2 stands twice where one factor meets it: √2·2."""
    before, shape = (1, 3, 4), (1, 3, 8)
    move = Move(np.tile(np.arange(12).reshape(before), (1, 1, 2)))
    behind = behind_one(move, Fact.of(before, 3.0, row_norm=2.0), before)
    op, x = Scale(ones((1, 3, 1), "s")), Fact.of(shape, 50.0)
    found = rule(op, [x], [shape], shape, POINT, behind).gradients(Cotangent(1.0))
    assert dict(found)["s"] == pytest.approx(2.0 * math.sqrt(2), rel=1e-15)


@pytest.mark.parametrize(("axes", "bound"), [((2, 3), 3.0), ((1, 2, 3), 6.0), ((1,), 50.0)])
def test_factors_behind_a_normalisation(axes: Shape, bound: float) -> None:
    """√n for blocks of n entries that hold all that one factor meets."""
    shape = (1, 4, 3, 3)
    behind = behind_one(Normalize(axes, 1e-5, centred=True), Fact.of(shape), shape)
    op, x = Scale(ones((1, 4, 1, 1), "s")), Fact.of(shape, 50.0)
    found = rule(op, [x], [shape], shape, POINT, behind).gradients(Cotangent(1.0))
    assert dict(found)["s"] == bound


def test_slopes_see_negative_numbers_only() -> None:
    box = exact(np.array([[3.0, -4.0, 5.0]]))
    x = Fact.of((1, 3), box=box)
    assert shares(kinds.PRelu(ones((1, 1), "s")), x, (1, 3), (1, 3))["s"] == pytest.approx(4.0)


def test_runs_bound_what_one_factor_per_token_meets() -> None:
    x = Fact.of((1, 5, 4), 8.0, row_norm=7.5)
    assert shares(Scale(ones((1, 5, 1), "s")), x, (1, 5, 4), (1, 5, 4))["s"] == 7.5
    assert shares(Scale(ones((1, 1, 4), "s")), x, (1, 5, 4), (1, 5, 4))["s"] == 8.0


def response(op, x, before, shape):
    return rule_class(type(op))(
        op=op, inputs=(x,), shapes=(before,), shape=shape, weights=POINT, output="y"
    )


def test_a_logarithm_of_a_sum_is_bounded_as_tightly_as_its_proof_says():
    op = kinds.ReduceLogSumExp((0,))
    zero = response(op, Fact.of((4,), 0.0), (4,), (1,)).fact()
    assert zero.norm == pytest.approx(math.log(4.0), rel=1e-12)
    box = Interval(np.array([-2.0, 1.0]), np.array([-1.0, 3.0]))
    found = response(op, Fact.of((2,), box=box), (2,), (1,)).fact()
    assert found.box.lo.item() == 1.0
    assert found.box.hi.item() == pytest.approx(3.0 + math.log(2.0))
    one = response(op, Fact.of((1,), box=exact(np.ones(1))), (1,), (1,)).fact()
    assert one.box.hi.item() == one.box.lo.item() == 1.0


def test_a_response_is_as_steep_as_its_proof_says():
    """At 0 the slope is floor^−β; the second term is 2·√size·(1 + 1/β)^−(β+1)."""
    x, shape = Fact.of((1, 2, 1)), (1, 2, 1)
    plain = kinds.LocalResponse(1, 0.0, 2.0, 0.5)
    found = response(plain, x, shape, shape).lipschitz(0)
    assert found == pytest.approx(4.0, rel=1e-12)
    steep = response(kinds.LocalResponse(1, 1.0, 1.0, 1.0), x, shape, shape).lipschitz(0)
    assert steep == pytest.approx(1.5, rel=1e-12)


@pytest.mark.parametrize("numbers", [(-1.0, 1.0, 1.0), (1.0, -1.0, 1.0), (1.0, 1.0, 0.0)])
def test_numbers_that_no_proof_covers_leave_no_bound(numbers):
    op, shape = kinds.LocalResponse(3, *numbers), (1, 3, 1)
    x = Fact.of(shape, 1.0)
    assert response(op, x, shape, shape).lipschitz(0) == math.inf
    assert response(op, x, shape, shape).fact().norm == math.inf


def test_runs_follow_heads() -> None:
    """Tokens split into heads and transposed: columns are parts of tokens."""
    x = Fact.of((1, 6, 8), 3.0, row_norm=2.0)
    places = np.arange(48).reshape(1, 6, 2, 4)
    heads = fact_behind(Move(places.transpose(0, 2, 1, 3).copy()), x, (1, 6, 8), (1, 2, 6, 4), {})
    assert (heads.row_norm, heads.column_norm) == (2.0, 3.0)
    keys = fact_behind(Move(places.transpose(0, 2, 3, 1).copy()), x, (1, 6, 8), (1, 2, 4, 6), {})
    assert (keys.row_norm, keys.column_norm) == (3.0, 2.0)


def test_tokens_near_one_point_stay_so_in_heads() -> None:
    """Of keys their columns. Not where heads read different tokens, nor where features mix."""
    x = Fact.of((1, 6, 8), 30.0, row_norm=20.0, row_spread=2.0)
    places = np.arange(48).reshape(1, 6, 2, 4)

    def moved(sources: np.ndarray, fact: Fact = x) -> tuple[float, float]:
        before = (1, 6, 8)
        found = fact_behind(Move(np.ascontiguousarray(sources)), fact, before, sources.shape, {})
        return found.row_spread, found.column_spread

    assert moved(places.transpose(0, 2, 1, 3)) == (2.0, 30.0)
    assert moved(places.transpose(0, 2, 3, 1)) == (30.0, 2.0)
    assert moved(places.reshape(6, 1, 8))[0] == 2.0
    assert moved(places.reshape(2, 3, 8))[0] == 2.0
    assert moved(np.flip(places.reshape(1, 6, 8), 1))[0] == 2.0
    rolled = np.stack([np.roll(np.arange(8), k) + 8 * k for k in range(6)])[None]
    assert moved(rolled)[0] == 20.0
    apart = fact_behind(Move(np.arange(48).reshape(1, 6, 8)), x, (6, 1, 8), (1, 6, 8), {})
    assert apart.row_spread == 2.0
    other = Fact.of((2, 3, 8), 30.0, row_norm=20.0, row_spread=2.0)
    mixed = np.arange(48).reshape(1, 6, 8)
    assert fact_behind(Move(mixed), other, (2, 3, 8), (1, 6, 8), {}).row_spread == 20.0


def _clipped_fact(op: kinds.InputClip, x: Fact, shape: Shape) -> Fact:
    return rule(op, [x], [shape], shape).fact()


def _clipped_cotangent(op: kinds.CotangentClip, cotangent: Cotangent) -> Cotangent:
    return rule(op, [Fact.of((1, 3))], [(1, 3)], (1, 3)).pulled(0, cotangent)


def clipped(x: np.ndarray, radius: float) -> np.ndarray:
    return x * min(1.0, radius / max(float(np.linalg.norm(x)), 1e-300))


@given(st.integers(0, 10**6), st.floats(0.01, 8.0))
def test_the_fact_behind_a_clip_holds_for_what_is_clipped(seed: int, radius: float) -> None:
    rng = np.random.default_rng(seed)
    shape = (1, *(int(n) for n in rng.integers(1, 5, size=rng.integers(1, 4))))
    known, values = fact(rng, shape)
    radius *= float(np.linalg.norm(values[0])) / 4.0
    found = _clipped_fact(kinds.InputClip(radius), known, shape)
    assert found.norm <= radius
    for x in values:
        assert holds(known, x, 1e-9)
        assert holds(found, clipped(x, radius), 1e-9)


def test_a_box_that_does_not_hold_zero_is_drawn_to_it() -> None:
    box = Interval(np.full((1, 2), 3.0), np.full((1, 2), 4.0))
    found = _clipped_fact(kinds.InputClip(1.0), Fact.of((1, 2), box=box), (1, 2))
    assert found.norm == 1.0
    assert (found.box.lo == 0.0).all()
    assert (found.box.hi == 1.0).all()
    assert holds(found, clipped(np.full((1, 2), 3.0), 1.0), 0.0)


def test_what_is_within_the_radius_is_left_alone() -> None:
    known = Fact.of((1, 2), 1.0, Interval(np.full((1, 2), 0.25), np.full((1, 2), 0.5)))
    assert _clipped_fact(kinds.InputClip(1.0), known, (1, 2)) is known


@pytest.mark.parametrize(("by_channel", "sums"), [(True, 0.5), (False, math.inf)])
def test_a_cotangent_is_clipped_in_its_norm(by_channel: bool, sums: float) -> None:
    hull = Hull(3, 1.0)
    found = _clipped_cotangent(kinds.CotangentClip(0.5, by_channel), Cotangent(math.inf, hull))
    assert found == Cotangent(0.5, hull, sums)
    assert _clipped_cotangent(kinds.CotangentClip(2.0, by_channel=False), found) == found
