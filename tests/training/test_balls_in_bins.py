"""The batch sampler for loaders of one's own."""

import itertools

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from lipcert.audit.checks.chance import SHARE
from lipcert.audit.checks.draws import Epochs, bin_member_tests, bin_size_tests, repeated_or_missing
from lipcert.errors import UsageError
from lipcert.training import BallsInBinsSampler


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
def test_what_is_refused(examples: int, batch: int) -> None:
    with pytest.raises(UsageError, match="batch-size"):
        BallsInBinsSampler(examples, batch)
