"""Draws against the probabilities of the plan, by exact tests with fixed seeds."""

import itertools
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, binomtest, chisquare
from torch.utils.data import DataLoader, TensorDataset

from lipcert.audit.checks.chance import SHARE
from lipcert.audit.checks.draws import Epochs, bin_member_tests, bin_size_tests, repeated_or_missing
from lipcert.errors import UsageError
from lipcert.privacy.noise import Neighbouring
from lipcert.privacy.plan import Sampling, TrainingPlan
from lipcert.training import BallsInBinsSampler
from lipcert.training.loader import Drawn, Sampler

LEAST = 1e-6
ALL = list(Sampling)


def plan(sampling: Sampling, count: int = 60, batch: int = 17, steps: int = 10) -> TrainingPlan:
    replaced = sampling in {Sampling.WITHOUT_REPLACEMENT, Sampling.SHUFFLE}
    return TrainingPlan(
        dataset_size=count,
        sampling=sampling,
        delta=1e-5,
        batch_size=count if sampling is Sampling.FULL_BATCH else batch,
        steps=steps,
        neighbours=Neighbouring.REPLACE_ONE if replaced else Neighbouring.ADD_OR_REMOVE_ONE,
    )


def together(
    planned: TrainingPlan,
    ranks: int,
    steps: int,
    seed: int = 7,
    first: int = 0,
    examples: int | None = None,
) -> list[list[np.ndarray]]:
    """What all ranks draw: by step, by rank."""
    samplers = [
        Sampler(planned, seed, rank=rank, ranks=ranks, first=first, examples=examples)
        for rank in range(ranks)
    ]
    return [[sampler.draw().index for sampler in samplers] for _ in range(steps)]


def least_tail(counts: list[int], trials: int, rate: float) -> float:
    """The smallest two-sided probability of a count, times how many there are."""
    return len(counts) * min(binomtest(int(one), trials, rate).pvalue for one in counts)


@pytest.mark.parametrize("sampling", [Sampling.POISSON, Sampling.WITHOUT_REPLACEMENT])
@pytest.mark.parametrize("ranks", [1, 3])
def test_every_example_is_drawn_at_the_rate(sampling: Sampling, ranks: int) -> None:
    steps = 1500
    drawn = [np.concatenate(parts) for parts in together(plan(sampling), ranks, steps)]
    counts = np.bincount(np.concatenate(drawn), minlength=60)
    assert least_tail(list(counts), steps, 17 / 60) > LEAST


@pytest.mark.parametrize("present", [40, 90])
@pytest.mark.parametrize("sampling", [Sampling.POISSON, Sampling.WITHOUT_REPLACEMENT])
def test_the_rate_is_that_of_the_declared_size(sampling: Sampling, present: int) -> None:
    """B/N for every example, however many there are; not B over how many there are."""
    if sampling is Sampling.WITHOUT_REPLACEMENT and present > 60:
        with pytest.raises(UsageError, match=r"N = 60 places, and there are 90 examples"):
            Sampler(plan(sampling), examples=present)
        return
    steps = 1500
    drawn = [np.concatenate(p) for p in together(plan(sampling), 2, steps, examples=present)]
    assert max(map(max, filter(len, drawn))) < present
    counts = np.bincount(np.concatenate(drawn), minlength=present)
    assert least_tail(list(counts), steps, 17 / 60) > LEAST
    assert least_tail([int(counts.sum())], steps * present, 17 / present) < LEAST


def test_a_shuffled_epoch_with_empty_places_has_each_example_once() -> None:
    planned = plan(Sampling.SHUFFLE)
    drawn = [np.concatenate(p) for p in together(planned, 2, 8, examples=40)]
    for epoch in (drawn[:4], drawn[4:]):
        assert sorted(np.concatenate(epoch)) == list(range(40))


@pytest.mark.parametrize("ranks", [1, 2])
def test_poisson_draws_examples_and_steps_independently(ranks: int) -> None:
    steps, rate = 2000, 4 / 12
    drawn = [np.concatenate(p) for p in together(plan(Sampling.POISSON, 12, 4), ranks, steps)]
    taken = np.zeros((steps, 12), dtype=np.int64)
    for row, index in zip(taken, drawn, strict=True):
        row[index] = 1
    pairs = taken.T @ taken
    both = [pairs[i, j] for i in range(12) for j in range(i)]
    assert least_tail(both, steps, rate**2) > LEAST
    twice = list((taken[1::2] * taken[::2]).sum(axis=0))  # in both of two consecutive steps
    assert least_tail(twice, steps // 2, rate**2) > LEAST
    sizes = np.bincount(taken.sum(axis=1), minlength=13)
    expected = steps * binom.pmf(np.arange(13), 12, rate)
    sizes, expected = np.append(sizes[:8], sizes[8:].sum()), np.append(expected[:8], 0.0)
    expected[-1] = steps - expected.sum()
    assert chisquare(sizes, expected).pvalue > LEAST


def test_the_probability_is_a_ratio_of_integers() -> None:
    """Each of the N equally likely numbers once: exactly B of them take part."""
    sampler = Sampler(plan(Sampling.POISSON, 97, 31))
    asked = []

    class Every:
        def integers(self, low: int, high: int, size: int) -> np.ndarray:
            asked.append((low, high, size))
            return np.arange(97)

    sampler._generator = Every()
    assert sampler.draw().index.tolist() == list(range(31))
    assert asked == [(0, 97, 97)]


@given(st.sampled_from(ALL), st.integers(1, 40), st.data())
def test_ranks_draw_disjoint_parts_of_one_batch(
    sampling: Sampling, count: int, data: st.DataObject
) -> None:
    batch = data.draw(st.integers(1, count))
    planned = plan(sampling, count, batch)
    ranks = data.draw(st.integers(1, min(planned.batch, 5)))
    steps = 2 * planned.batches_per_epoch + 1
    alone = together(planned, 1, steps)
    for step, parts in enumerate(together(planned, ranks, steps)):
        index = np.concatenate(parts)
        assert index.dtype == np.int64
        assert len(np.unique(index)) == len(index)
        assert not len(index) or (index.min() >= 0 and index.max() < count)
        if sampling in {Sampling.POISSON, Sampling.BALLS_IN_BINS}:
            assert all((part % ranks == rank).all() for rank, part in enumerate(parts))
        else:
            assert sorted(index) == sorted(alone[step][0])
            assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_fixed_sizes_and_full_batches() -> None:
    for (index,) in together(plan(Sampling.WITHOUT_REPLACEMENT), 1, 20):
        assert len(index) == len(set(index)) == 17
    for (index,) in together(plan(Sampling.FULL_BATCH), 1, 3):
        assert index.tolist() == list(range(60))
    for (index,) in together(plan(Sampling.POISSON, 60, 60), 1, 3):
        assert index.tolist() == list(range(60))


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("present", [60, 90])
def test_an_epoch_of_bins_holds_every_example_once(ranks: int, present: int) -> None:
    """In each of the four bins as often, independently of its bin before, and of other examples."""
    planned, epochs = plan(Sampling.BALLS_IN_BINS), 600
    drawn = together(planned, ranks, 4 * epochs, examples=present)
    bins = np.full((epochs, present), -1)
    for step, parts in enumerate(drawn):
        epoch, bin_ = divmod(step, 4)
        assert np.all(bins[epoch, np.concatenate(parts)] == -1)
        bins[epoch, np.concatenate(parts)] = bin_
    assert np.all(bins >= 0)
    assert least_tail([int(np.sum(bins == k)) for k in range(4)], epochs * present, 1 / 4) > LEAST
    assert least_tail(list(np.sum(bins == 2, axis=0)), epochs, 1 / 4) > LEAST
    moved = (bins[1:] - bins[:-1]) % 4
    assert least_tail([int(np.sum(moved == k)) for k in range(4)], moved.size, 1 / 4) > LEAST
    beside = (bins[:, 1:] - bins[:, :-1]) % 4
    assert least_tail([int(np.sum(beside == k)) for k in range(4)], beside.size, 1 / 4) > LEAST


def test_shuffled_epochs_are_disjoint_batches_of_everything() -> None:
    planned = plan(Sampling.SHUFFLE)
    assert planned.batches_per_epoch == 4
    batches = [parts[0] for parts in together(planned, 1, 12)]
    assert [len(index) for index in batches] == [17, 17, 17, 9] * 3
    epochs = [np.concatenate(batches[k : k + 4]) for k in (0, 4, 8)]
    for epoch in epochs:
        assert sorted(epoch) == list(range(60))
    assert len({tuple(epoch) for epoch in epochs}) == 3


def test_steps_are_counted_from_the_first() -> None:
    sampler = Sampler(plan(Sampling.POISSON), first=5)
    drawn = [sampler.draw() for _ in range(3)]
    assert [one.step for one in drawn] == [5, 6, 7]
    assert sampler.step == 8
    assert isinstance(drawn[0], Drawn)
    with pytest.raises(ValueError, match="read-only"):
        drawn[0].index[:] = 0


@pytest.mark.parametrize("sampling", [item for item in ALL if item is not Sampling.FULL_BATCH])
def test_only_a_given_seed_repeats_draws(sampling: Sampling) -> None:
    def words(seed: int | None, first: int = 0) -> str:
        sampler = Sampler(plan(sampling), seed, first=first)
        return str([sampler.draw().index.tolist() for _ in range(4)])

    texts = [words(3), words(3), words(None), words(None), words(4), words(3, first=8)]
    assert Counter(texts).most_common(1) == [(texts[0], 2)]
    assert len(set(texts)) == 5


def test_ranks_with_one_seed_draw_different_numbers() -> None:
    """One stream for all ranks would make the choices of neighbours depend on one another."""
    parts = together(plan(Sampling.POISSON, 400, 200), 2, 1)[0]
    first, second = parts[0] // 2, parts[1] // 2
    assert len(np.intersect1d(first, second)) < 75


def test_what_is_refused() -> None:
    shuffled = plan(Sampling.SHUFFLE)
    with pytest.raises(UsageError, match="release 3 does not begin an epoch of 4"):
        Sampler(shuffled, first=3)
    Sampler(shuffled, first=4)
    with pytest.raises(UsageError, match="give all of them the secret of one"):
        Sampler(shuffled, ranks=2)
    halves = [Sampler(shuffled, 2**200, rank=r, ranks=2).draw().index for r in (0, 1)]
    assert len(set(np.concatenate(halves))) == 17
    Sampler(plan(Sampling.POISSON), ranks=2)
    Sampler(plan(Sampling.FULL_BATCH), ranks=2)
    with pytest.raises(UsageError, match="rank 2 of 2"):
        Sampler(plan(Sampling.POISSON), rank=2, ranks=2)
    with pytest.raises(UsageError, match="a batch of 17 examples leaves some of 18 ranks"):
        Sampler(plan(Sampling.POISSON), ranks=18)
    for wrong in (-1, True, 1.5):
        with pytest.raises(UsageError, match="seed: give a whole number"):
            Sampler(plan(Sampling.POISSON), wrong)


def test_a_loader_gives_every_example_once_an_epoch() -> None:
    data = TensorDataset(torch.arange(50))
    loader = DataLoader(data, batch_sampler=BallsInBinsSampler(len(data), 16, seed=3))
    epochs = [[batch for (batch,) in loader] for _ in range(2)]
    assert len(loader) == 4 == len(epochs[0])
    for batches in epochs:
        assert sorted(torch.cat(batches).tolist()) == list(range(50))
    assert len({len(batch) for batch in epochs[0]}) > 1
    assert any(not torch.equal(one, other) for one, other in zip(*epochs, strict=True))


def test_an_audit_finds_its_draws_as_accounted_for() -> None:
    sampler = BallsInBinsSampler(300, 25)
    drawn = list(itertools.chain.from_iterable(iter(sampler) for _ in range(20)))
    members = [(step, np.array(index, dtype=np.int64)) for step, index in enumerate(drawn)]
    epochs, sizes = Epochs(12), {step: len(index) for step, index in members}
    assert repeated_or_missing(epochs, 300, members) is None
    tests = [*bin_size_tests(epochs, 300, sizes), *bin_member_tests(epochs, 300, members)]
    assert not any(test.is_too_rare(SHARE) for test in tests)


@pytest.mark.parametrize(("examples", "batch"), [(0, 1), (10, 0), (10, 11)])
def test_a_loader_that_has_no_bins_is_refused(examples: int, batch: int) -> None:
    with pytest.raises(UsageError, match="batch-size"):
        BallsInBinsSampler(examples, batch)
