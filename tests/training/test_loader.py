"""Private batches from a DataLoader: one for each release, whatever the size."""

from collections import OrderedDict, defaultdict, namedtuple
from itertools import count
from types import MappingProxyType

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    SequentialSampler,
    WeightedRandomSampler,
    default_collate,
    get_worker_info,
)

from lipcert.errors import UsageError
from lipcert.privacy.plan import Sampling
from lipcert.process import progress
from lipcert.process.progress import ProgressReport
from lipcert.training.loader import PrivateLoader, Sampler, empty_batch, examples_in, split
from tests.training.test_sampling import plan

Pair = namedtuple("Pair", "x y")


class Spent:
    """A budget."""

    def __init__(self, planned: int, releases: int = 0) -> None:
        self.planned, self.releases = planned, releases

    @property
    def left(self) -> int:
        return self.planned - self.releases


class Numbers(Dataset):
    """Example i is i; it may fail once."""

    def __init__(self, count: int, fails_at: int | None = None) -> None:
        self.count, self.fails_at = count, fails_at

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, place: int) -> tuple[torch.Tensor, int]:
        if place == self.fails_at:
            self.fails_at = None
            raise OSError("the disk is away")
        return torch.full((2, 3), float(place)), place


def made(
    loader,
    batch: int = 2,
    budget: Spent | None = None,
    sampling: Sampling = Sampling.POISSON,
    **given,
) -> PrivateLoader:
    spent = budget or Spent(9)
    planned = plan(sampling, len(loader.dataset), batch)
    sampler = Sampler(planned, 1, first=spent.releases)
    return PrivateLoader(loader, sampler, spent, **given)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_for_every_release_empty_ones_too(workers: int) -> None:
    told: list[np.ndarray] = []
    budget = Spent(60)
    loader = DataLoader(Numbers(30), batch_size=2, shuffle=True, num_workers=workers)
    private = made(loader, 2, budget, on_batch=told.append)
    expected = Sampler(plan(Sampling.POISSON, 30, 2), 1)
    sizes = []
    assert private.index is None
    for x, y in private:
        assert len(private) == 60 - budget.releases
        index = expected.draw().index
        assert y.tolist() == index.tolist() == private.index.tolist() == told[-1].tolist()
        assert x.shape == (len(index), 2, 3)
        assert (x.dtype, y.dtype) == (torch.float32, torch.int64)
        assert (x[:, 0, 0] == y).all()
        sizes.append(len(index))
        budget.releases += 1
    assert len(sizes) == len(told) == 60
    assert 0 in sizes
    assert len(set(sizes)) > 3
    assert len(private) == 0
    assert list(private) == []


def test_collate_is_never_asked_for_nothing() -> None:
    asked: list[int] = []

    def collate(items):
        asked.append(len(items))
        return default_collate(items)

    budget = Spent(40)
    for x, _ in made(DataLoader(Numbers(40), batch_size=1, collate_fn=collate), 1, budget):
        assert asked[-1] == len(x) or not len(x)
        budget.releases += 1
    assert min(asked) >= 1
    assert len(asked) < 42


@pytest.mark.parametrize("sampling", [Sampling.POISSON, Sampling.SHUFFLE])
def test_iterating_again_goes_on(sampling: Sampling) -> None:
    """What was handed out and not released comes again, so that no draw is left out."""
    budget = Spent(20)
    private = made(DataLoader(Numbers(12), batch_size=3), 3, budget, sampling)
    expected = Sampler(plan(sampling, 12, 3), 1)
    seen = []
    while budget.left:
        peeked = next(iter(private))[1].tolist()
        for _, y in private:
            seen.append(y.tolist())
            assert peeked in (None, seen[-1])
            peeked = None
            budget.releases += 1
            if budget.releases % 3 == 0:
                break
    assert seen == [expected.draw().index.tolist() for _ in range(20)]


def test_a_batch_is_released_exactly_once() -> None:
    budget = Spent(9)
    private = made(DataLoader(Numbers(12), batch_size=3), 3, budget)
    with pytest.raises(UsageError, match="batch 0 was not released before the next"):
        list(private)
    for _ in private:
        budget.releases += 1
        if budget.releases == 2:
            break
    batches = iter(private)
    next(batches)
    budget.releases += 2
    with pytest.raises(UsageError, match="2 releases were made from one batch"):
        next(batches)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_failure_loses_no_draw(workers: int) -> None:
    budget = Spent(30)
    first = Sampler(plan(Sampling.POISSON, 12, 3), 1).draw().index
    late = next(place for place in range(1, 12) if place not in first)
    loader = DataLoader(Numbers(12, fails_at=late), batch_size=3, num_workers=workers)
    private = made(loader, 3, budget)
    expected = Sampler(plan(Sampling.POISSON, 12, 3), 1)
    seen = []
    for attempt in range(2):
        try:
            for _, y in private:
                seen.append(y.tolist())
                budget.releases += 1
        except OSError:
            assert attempt == 0
            loader.dataset.fails_at = None
            assert 0 < len(seen) < 30
    assert seen == [expected.draw().index.tolist() for _ in range(30)]


def test_the_rest_of_the_loader_is_taken_over() -> None:
    def collate(items):
        return torch.tensor([[y, get_worker_info().seed % 2] for _, y in items])  # in workers only

    class Here(Numbers):
        pass

    begun = []
    loader = DataLoader(
        Here(8),
        batch_size=8,
        num_workers=1,
        collate_fn=collate,
        worker_init_fn=begun.append,
        prefetch_factor=1,
        multiprocessing_context="fork",
    )
    private = made(loader, 8, Spent(1), Sampling.FULL_BATCH)
    for batch in private:
        assert batch[:, 0].tolist() == list(range(8))
        private._budget.releases += 1
    inner = private._loader
    assert private.dataset is loader.dataset
    for name in ("num_workers", "collate_fn", "worker_init_fn", "prefetch_factor", "timeout"):
        assert getattr(inner, name) == getattr(loader, name)


def test_what_is_refused() -> None:
    class Endless(IterableDataset):
        def __iter__(self):
            return iter(())

    data = Numbers(12)
    order = SequentialSampler(data)
    budget = Spent(9)
    sampler = Sampler(plan(Sampling.POISSON, 12, 3))
    for loader, words in (
        (DataLoader(Endless(), batch_size=3), "Endless cannot be drawn by their index"),
        (DataLoader(data, batch_sampler=BatchSampler(order, 3, False)), "a batch_sampler"),
        (DataLoader(data, batch_size=None), "batch_size=None"),
        (DataLoader(data, 3, sampler=WeightedRandomSampler([1.0] * 12, 12)), "WeightedRandom"),
        (DataLoader(Numbers(11), 3), "has 11 examples, and its sampler draws from 12"),
    ):
        with pytest.raises(UsageError, match=words):
            PrivateLoader(loader, sampler, budget)
    for loader in (DataLoader(data, 3), DataLoader(data, 3, shuffle=True)):
        PrivateLoader(loader, sampler, budget)
    PrivateLoader(DataLoader(data, 3, sampler=DistributedSampler(data, 2, 0)), sampler, budget)
    with pytest.raises(UsageError, match="begins with release 0, and 4 have been spent"):
        PrivateLoader(DataLoader(data, 3), sampler, Spent(9, 4))


def items(rows: int):
    """A structure of that many examples."""
    return {
        "pair": Pair(torch.zeros(rows, 3, dtype=torch.float16), [torch.ones(rows)]),
        "array": np.zeros((rows, 2), np.int32),
        "words": ["a"] * rows,
        "ordered": OrderedDict(z=torch.ones(rows, 1)),
        "default": defaultdict(list, t=torch.ones(rows)),
        "fixed": MappingProxyType({"t": torch.ones(rows)}),
        "name": "train",
        "none": None,
    }


def test_an_empty_structure_has_the_form_of_the_others() -> None:
    empty = empty_batch([0], lambda found: items(len(found)))
    assert examples_in(empty) == 0
    assert type(empty["pair"]) is Pair
    assert (empty["pair"].x.shape, empty["pair"].x.dtype) == ((0, 3), torch.float16)
    assert (empty["array"].shape, empty["array"].dtype) == ((0, 2), np.int32)
    assert empty["words"] == []
    assert {key: type(value) for key, value in empty.items()} == {
        key: type(value) for key, value in items(2).items()
    }
    assert empty["default"].default_factory is list
    assert (empty["name"], empty["none"]) == ("train", None)


@pytest.mark.parametrize(
    ("collate", "words"),
    [
        (lambda found: torch.zeros(4), "1 examples come out of collate_fn as 4"),
        (lambda found: torch.zeros(1), "2 examples come out of collate_fn as 1"),
        (lambda found: torch.zeros(7, len(found)), "as 7"),
        (lambda found: torch.zeros(len(found), len(found)), "besides one row for each example"),
        (lambda found: (torch.zeros(len(found)), len(found)), "besides one row"),
        (lambda found: (torch.zeros(len(found)), torch.tensor(1.0)), "a single number"),
        (lambda found: (torch.zeros(len(found)), torch.zeros(5)), r"first axes of sizes \[1, 5\]"),
        (lambda found: ["a"] * len(found), "no tensor"),
        (lambda found: {"x": object()}, "a object cannot be cut"),
    ],
)
def test_a_structure_that_is_not_understood_is_refused(collate, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        empty_batch([0], collate)
    loader = DataLoader(Numbers(12), batch_size=3, collate_fn=collate)
    with pytest.raises(UsageError, match=words):
        made(loader, 3)
    made(loader, 12, sampling=Sampling.FULL_BATCH)  # never empty


@given(st.integers(0, 12), st.integers(1, 15))
def test_slices_hold_everything_once_and_in_order(rows: int, size: int) -> None:
    batch = {"x": torch.arange(rows), "pair": (np.arange(rows), ["w"] * rows), "name": "train"}
    parts = list(split(batch, size))
    assert [examples_in(part) for part in parts][:-1] == [size] * (len(parts) - 1)
    assert len(parts) == max(1, -(-rows // size))
    assert torch.equal(torch.cat([part["x"] for part in parts]), batch["x"])
    assert np.concatenate([part["pair"][0] for part in parts]).tolist() == list(range(rows))
    assert sum(len(part["pair"][1]) for part in parts) == rows
    assert all(part["name"] == "train" for part in parts)


def test_slices_of_nothing_are_refused() -> None:
    with pytest.raises(UsageError, match="slices of 0 examples"):
        list(split(torch.zeros(3), 0))


def test_releases_are_shown_while_batches_are_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lines, for there is no terminal: one every ten seconds of a clock that turns by eight."""
    ticks = count(0.0, 8.0)
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(ticks))
    budget = Spent(5)
    for _ in made(DataLoader(Numbers(6), 2), budget=budget, progress=ProgressReport(wanted=True)):
        budget.releases += 1
    assert capsys.readouterr().err.splitlines() == [
        "lipcert: 1 of 5 steps: private releases",
        "lipcert: 3 of 5 steps: private releases",
    ]
