"""What batches show of their sampler: right runs are left alone, wrong ones are found.

Right runs come from the sampler of private training, and wrong ones differ from it in one thing.
"""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.audit_faults import SAMPLERS
from lipcert.audit.checks.chance import SHARE
from lipcert.audit.checks.draws import (
    Epochs,
    bin_member_tests,
    bin_size_tests,
    member_tests,
    size_tests,
)
from lipcert.audit.checks.sampling import sampled
from lipcert.audit.records import CheckReport, Verdict
from lipcert.audit.trace.records import Batch, Declaration, Resume, Step
from lipcert.gradient_stats.examples import Examples
from lipcert.privacy.plan import Sampling, TrainingPlan
from lipcert.settings.settings import Settings
from lipcert.training.loader import Sampler
from tests.audit.checks.runs import Network, claims_for
from tests.training.test_sampling import plan

POOL, BATCH, STEPS = 400, 40, 20
LABELS = np.random.default_rng(5).integers(0, 4, POOL)
RATE = BATCH / POOL


def faults(
    members,
    way: Sampling,
    *,
    pool: int = POOL,
    batch: int = BATCH,
    tagged: bool = False,
    resumed: tuple[int, ...] = (),
    steps: int | None = None,
    present: int | None = None,
) -> list[CheckReport]:
    """Of a run of these batches, accounted for as `way`, and interrupted before these steps."""

    def recorded(index: np.ndarray) -> Batch:
        tags = tuple(f"{5 * number:x}" for number in index) if tagged else ()
        return Batch(len(index), None if tagged else index, tags)

    done = tuple(Step(0, t, 0.0, (recorded(index),)) for t, index in members)
    stated = Declaration(pool, batch, way, steps=steps, examples=present)
    settings = Settings()
    trace = SimpleNamespace(ranks=(0,), events=lambda _: [Resume(0.0, n, 0, {}) for n in resumed])
    run = SimpleNamespace(settings=settings, declared=stated, steps=done, trace=trace, plan=None)
    run.graph = SimpleNamespace(input_shape=(8,), output_shape=(3,))
    run.data = Examples(np.zeros((pool, 8)), LABELS[:pool], "some")
    run.claims = claims_for(Network())
    run.device = "cpu"
    found = list(sampled(run))
    assert {type(finding) for finding in found} == {CheckReport}
    return [report for report in found if report.verdict is not Verdict.PASS]


def drawn(planned: TrainingPlan, seed: int, present: int | None = None):
    sampler = Sampler(planned, seed, examples=present)
    return [(t, sampler.draw().index) for t in range(planned.releases)]


AT_MOST = {Sampling.WITHOUT_REPLACEMENT, Sampling.SHUFFLE}
"""ways to draw no more examples than are declared"""


@pytest.mark.sample(way=2, first=1)
@pytest.mark.parametrize("first", [0, 12, 24])
@pytest.mark.parametrize("way", list(Sampling))
def test_right_runs_raise_no_alarm(way: Sampling, first: int) -> None:
    """36 runs of each sampler, of several sizes; of fewer examples than are declared, or more."""
    for seed in range(first, first + 12):
        pool, batch = [(60, 17), (400, 40), (57, 5), (20, 19)][seed % 4]
        planned = plan(way, pool, batch, steps=5 + seed % 37)
        present = [None, 3 * pool // 4, 5 * pool // 3][seed % (2 if way in AT_MOST else 3)]
        members = drawn(planned, seed, present)
        assert faults(members, way, pool=pool, batch=planned.batch, present=present) == []


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "way", [Sampling.POISSON, Sampling.BALLS_IN_BINS, Sampling.WITHOUT_REPLACEMENT]
)
def test_chances_are_no_smaller_than_they_are_said_to_be(way: Sampling) -> None:
    """Of 50 right runs, at most about a twentieth has a chance below a twentieth in a test."""
    found = []
    for seed in range(50):
        members = drawn(plan(way, 200, 20, steps=15), seed)
        sizes = {t: len(index) for t, index in members}
        epochs = Epochs(10)
        if way is Sampling.BALLS_IN_BINS:
            sized = bin_size_tests(epochs, 200, sizes)
            seen = bin_member_tests(epochs, 200, members)
        else:
            sized = size_tests(200, 0.1, sizes) if way is Sampling.POISSON else iter(())
            seen = member_tests(200, 0.1, members, way, labels=LABELS[:200])
        found.append([item.log_chance for item in (*sized, *seen)])
    below = np.mean(np.array(found) < math.log(0.05), axis=0)
    assert below.shape == ({Sampling.POISSON: 15, BINS: 4}.get(way, 10),)
    assert np.all(below < 0.05 + 4.0 * math.sqrt(0.05 * 0.95 / 50))
    assert np.min(found) > math.log(SHARE)


"""the batch of a step"""


def planted(name: str):
    """A wrong sampler of the benchmark."""
    return lambda random, step: SAMPLERS[name](random, POOL, BATCH, step)


def poisson(random: np.random.Generator, _: int) -> np.ndarray:
    return np.flatnonzero(random.random(POOL) < RATE)


def without_a_label(random: np.random.Generator, step: int) -> np.ndarray:
    return np.setdiff1d(poisson(random, step), np.flatnonzero(LABELS == 2))


def by_label(random: np.random.Generator, _: int) -> np.ndarray:
    """Examples of two of four labels are drawn at 1.3 times the rate of the others."""
    return np.flatnonzero(random.random(POOL) < RATE * np.where(LABELS < 2, 1.13, 0.87))


def alike_in_all_batches(random: np.random.Generator, _: int) -> np.ndarray:
    parts = (np.flatnonzero(label == LABELS) for label in range(4))
    return np.concatenate([random.choice(part, BATCH // 4, replace=False) for part in parts])


def fixed(random: np.random.Generator, _: int) -> np.ndarray:
    return np.sort(random.choice(POOL, BATCH, replace=False))


def with_some_always(draw):
    return lambda random, step: np.union1d(draw(random, step)[3:], np.arange(3))


def fixed_from_a_fifth(random: np.random.Generator, _: int) -> np.ndarray:
    return random.choice(POOL // 5, BATCH, replace=False)


def the_same_again(sizes):
    """The beginning of one order, but for every tenth member."""

    def draw(random: np.random.Generator, step: int) -> np.ndarray:
        size = len(sizes(random, step))
        order = np.random.default_rng(3).permutation(POOL)
        kept = size - size // 10
        others = random.choice(order[kept:], size - kept, replace=False)
        return np.concatenate([order[:kept], others])

    return draw


def one_half_then_the_other(random: np.random.Generator, step: int) -> np.ndarray:
    """Every example as often as it should be, at twice the rate in one half of the run."""
    half = POOL // 2
    return half * (step >= STEPS) + np.flatnonzero(random.random(half) < 2 * RATE)


def in_blocks(random: np.random.Generator, _: int) -> np.ndarray:
    """Ten examples together or not at all: sizes vary ten times too much."""
    return np.flatnonzero(np.repeat(random.random(POOL // 10) < RATE, 10))


def by_ranks_of_one_seed(random: np.random.Generator, _: int) -> np.ndarray:
    """Two ranks draw the same places of their halves of the data."""
    return np.flatnonzero(np.tile(random.random(POOL // 2) < RATE, 2))


def one_pair(random: np.random.Generator, step: int) -> np.ndarray:
    drawn = random.random(POOL) < RATE
    drawn[8] = drawn[9]
    return np.flatnonzero(drawn)


def every_eighth_never(random: np.random.Generator, _: int) -> np.ndarray:
    rates = np.where(np.arange(POOL) % 8, RATE * 8 / 7, 0.0)
    return np.flatnonzero(random.random(POOL) < rates)


def shuffled(_: np.random.Generator, step: int) -> np.ndarray:
    order = np.random.default_rng(step // 10).permutation(POOL)
    return order[BATCH * (step % 10) :][:BATCH]


def in_bins(epoch_of, *, moves: int = 0):
    """Balls in bins, drawn anew where `epoch_of` an epoch is another, and moved by some bins."""

    def draw(_: np.random.Generator, step: int) -> np.ndarray:
        drawn = np.random.default_rng(epoch_of(step // 10)).integers(0, 10, POOL)
        return np.flatnonzero((drawn + moves * (step // 10)) % 10 == step % 10)

    return draw


def in_nine_of_ten_bins(_: np.random.Generator, step: int) -> np.ndarray:
    drawn = np.random.default_rng(step // 10).integers(0, 9, POOL)
    return np.flatnonzero(drawn == step % 10)


def bins_and_one_again(random: np.random.Generator, step: int) -> np.ndarray:
    return np.union1d(in_bins(lambda epoch: epoch)(random, step), [7])


def bins_without_one(random: np.random.Generator, step: int) -> np.ndarray:
    return np.setdiff1d(in_bins(lambda epoch: epoch)(random, step), [7])


def some_leave(random: np.random.Generator, step: int) -> np.ndarray:
    drawn = poisson(random, step)
    return drawn[(drawn >= 40) | (step < 15)]


POISSON, FIXED = Sampling.POISSON, Sampling.WITHOUT_REPLACEMENT
BINS = Sampling.BALLS_IN_BINS
SHUFFLE, FULL = Sampling.SHUFFLE, Sampling.FULL_BATCH


@pytest.mark.sample(20)
@pytest.mark.parametrize(
    ("way", "draw", "steps", "says"),
    [
        (POISSON, with_some_always(poisson), 20, "3 of 400 examples are in 20 or more of 20"),
        (POISSON, planted("all batches from a fifth of the data"), 6, "examples"),
        (POISSON, the_same_again(poisson), 4, "share"),
        (POISSON, one_half_then_the_other, 2 * STEPS, "share"),
        (POISSON, planted("shuffled and cut, with Poisson sizes"), 20, "examples are in"),
        (POISSON, planted("sizes that differ by one at most"), 20, "vary too little"),
        (POISSON, fixed, 20, "of one size"),
        (POISSON, in_blocks, 40, "probability"),
        (POISSON, by_ranks_of_one_seed, 50, "whose numbers differ by 200 are"),
        (POISSON, one_pair, 140, "1 examples are in the same"),
        (POISSON, lambda random, step: poisson(random, step)[:46], 200, "and none more"),
        (POISSON, planted("examples in pairs"), 20, "are together"),
        (POISSON, planted("antithetic batches, two and two"), 25, "by batches 1 steps apart"),
        (POISSON, planted("a quarter of the data at 2.2 times the rate"), 10, "from part 0 of 4"),
        (POISSON, planted("an eighth of the data never"), 10, "0 draws are from part 7 of 8"),
        (POISSON, without_a_label, 10, "0 draws are of the examples of label 2"),
        (POISSON, by_label, 70, "the 4 numbers of draws of one label vary too much"),
        (POISSON, alike_in_all_batches, 60, "240 numbers of draws of one label vary too little"),
        (POISSON, every_eighth_never, 10, "0 draws are of every 8th example, from 0 on"),
        (POISSON, some_leave, 30, "draws are from part 0 of"),
        (FIXED, with_some_always(fixed), 20, "3 of 400 examples are in 20 or more of 20"),
        (FIXED, fixed_from_a_fifth, 6, "examples"),
        (FIXED, the_same_again(fixed), 4, "share"),
        (FIXED, poisson, 4, "was accounted for"),
        (FIXED, lambda _r, step: BATCH * (step % 10) + np.arange(BATCH), 10, "vary too little"),
        (BINS, shuffled, 20, "vary too little"),
        (BINS, poisson, 10, "was already in a batch of its epoch"),
        (BINS, in_nine_of_ten_bins, 10, "in the batch of step 8, where"),
        (BINS, bins_and_one_again, 10, "example 7 at step"),
        (BINS, bins_without_one, 10, "in the batch of step 9, where"),
        (BINS, in_bins(lambda _: 3), 20, "stay in the same batch"),
        (BINS, in_bins(lambda _: 3, moves=4), 20, "move by 4 batches"),
        (BINS, in_bins(lambda epoch: epoch % 3), 60, "share"),
        (SHUFFLE, with_some_always(fixed), 3, "was already in one"),
        (SHUFFLE, fixed_from_a_fifth, 3, "was already in one"),
        (SHUFFLE, the_same_again(fixed), 3, "was already in one"),
        (SHUFFLE, lambda _r, step: 8 * (step % 10) + np.arange(8), 20, "was accounted for"),
        (FULL, lambda _r, _s: np.arange(POOL - 1), 2, "was accounted for"),
        (FULL, lambda _r, _s: np.arange(1, POOL + 1), 2, "is not among the 400"),
        (FULL, lambda _r, _s: np.maximum(1, np.arange(POOL)), 2, "occurs 2 times"),
    ],
)
def test_wrong_runs_are_found(way: Sampling, draw, steps: int, says: str) -> None:
    random = np.random.default_rng(5)
    members = [(step, draw(random, step)) for step in range(steps)]
    found = faults(members, way, batch=POOL if way is FULL else BATCH)
    assert {(report.code, report.verdict) for report in found} == {("LC311", Verdict.VIOLATION)}
    assert any(says in report.message for report in found), found


def test_a_huge_count_is_compared_in_little_memory() -> None:
    """Of examples, by a record that anybody may have written."""
    assert faults([(0, np.arange(BATCH))], POISSON, present=10**15)


def test_tags_of_a_redacted_trace_tell_as_much() -> None:
    random = np.random.default_rng(5)
    draw = with_some_always(poisson)
    members = [(step, draw(random, step)) for step in range(20)]
    numbered, tagged = faults(members, POISSON), faults(members, POISSON, tagged=True)
    assert [item.message for item in tagged] == [item.message for item in numbered] != []


def test_empty_batches_of_a_redacted_trace_are_batches() -> None:
    """Every third is: without them, examples would seem to be drawn too often."""
    random = np.random.default_rng(5)
    members = [(step, np.flatnonzero(random.random(POOL) < 1 / POOL)) for step in range(1000)]
    assert sum(not len(index) for _, index in members) > 300
    assert faults(members, POISSON, batch=1, tagged=True) == []


@pytest.mark.parametrize("present", [POOL, 3 * POOL // 4])
def test_bins_that_were_interrupted_or_recorded_in_part(present: int) -> None:
    """A new epoch begins after an interruption, and steps in a gap are not compared."""
    first, second = (
        Sampler(plan(BINS, POOL, BATCH, steps=60), seed, examples=present) for seed in (3, 4)
    )
    drawn = [first.draw().index for _ in range(13)] + [second.draw().index for _ in range(40)]
    members = list(enumerate(drawn))
    assert faults(members, BINS, resumed=(13,), present=present) == []
    assert faults(members, BINS, present=present) != []
    some = [(t, index) for t, index in members if t % 7 not in {2, 3}]
    assert faults(some, BINS, resumed=(13,), present=present) == []


def test_epochs_of_bins_that_are_begun_anew_are_counted() -> None:
    """Three of them, of which none is finished, are more than the one that their steps fill."""
    planned = plan(BINS, POOL, BATCH, steps=3)
    members = [(k, Sampler(planned, k).draw().index) for k in range(3)]
    enough = 3 * planned.batches_per_epoch
    assert faults(members, BINS, resumed=(1, 2), steps=enough) == []
    (report,) = faults(members, BINS, resumed=(1, 2), steps=3)
    assert report.message.startswith("3 epochs were begun, but 1 were accounted for")


def in_epochs(begun: tuple[int, ...]):
    """Shuffled epochs of ten batches, of which so many are drawn."""
    random = np.random.default_rng(5)
    orders = [(random.permutation(POOL), count) for count in begun]
    batches = [order[k * BATCH : (k + 1) * BATCH] for order, count in orders for k in range(count)]
    return list(enumerate(batches))


@pytest.mark.parametrize("resumed", [(3,), (3, 5, 8), (3, 13), (0, 3, 3)])
def test_an_interrupted_epoch_is_followed_by_another(resumed: tuple[int, ...]) -> None:
    """Also where the order outlasts an interruption."""
    members = in_epochs((3, 10, 7))
    assert faults(members, SHUFFLE, resumed=resumed, steps=30) == []
    (report,) = faults(members, SHUFFLE, resumed=resumed, steps=20)
    assert report.message.startswith("3 epochs were begun, but 2 were accounted for")
    (report,) = faults(members, SHUFFLE)
    assert "was already in one" in report.message


def test_an_interruption_lets_no_more_than_one_epoch_begin() -> None:
    (report,) = faults(in_epochs((3, 4, 10)), SHUFFLE, resumed=(3,), steps=40)
    assert "was already in one" in report.message


def test_order_that_outlasts_an_interruption_is_one_epoch() -> None:
    assert faults(in_epochs((10, 10)), SHUFFLE, resumed=(3, 14), steps=20) == []


def test_empty_places_of_a_shuffled_epoch() -> None:
    """Where the first batch of the next epoch is empty, nothing shows that it has begun."""
    for seed in range(20):
        planned = plan(SHUFFLE, 60, 2, steps=120)
        sampler = Sampler(planned, seed, examples=20)
        members = [(t, sampler.draw().index) for t in range(120)]
        assert faults(members, SHUFFLE, pool=60, batch=2, present=20, steps=120) == []


def test_two_batches_that_are_one() -> None:
    """Far apart in a long run, so that no sum over a lag and no count shows it."""
    random = np.random.default_rng(5)
    members = [(step, poisson(random, step)) for step in range(200)]
    assert faults(members, POISSON) == []
    members[190] = (190, members[10][1])
    (report,) = faults(members, POISSON)
    assert "shared by batches 10 and 190" in report.message


def test_equal_sizes_in_few_steps_are_no_proof() -> None:
    few, many = (list(size_tests(300, 1 / 15, dict.fromkeys(range(t), 20))) for t in (3, 12))
    assert not any(item.is_too_rare(SHARE) for item in few)
    assert any(item.is_too_rare(SHARE) and "of one size" in item.message for item in many)


def test_the_chance_of_a_variance_by_brute_force() -> None:
    """Three batches of 6 examples at one half: all 64³ outcomes by their sizes."""
    sizes = np.array([bin(k).count("1") for k in range(64)])
    squares = (sizes - 3.0) ** 2
    every = squares[:, None, None] + squares[None, :, None] + squares[None, None, :]
    for seen in ((3, 3, 2), (0, 6, 0), (2, 3, 4), (1, 1, 5)):
        value = sum((size - 3.0) ** 2 for size in seen)
        truth = min(np.mean(every <= value), np.mean(every >= value))
        surprises = list(size_tests(6, 0.5, dict(enumerate(seen))))
        found = next(item for item in surprises if "vary too" in item.message)
        assert math.exp(found.log_chance) >= min(1.0, 2.0 * truth) - 1e-9
