"""What a training script hands over is looked at before anything is done with it."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lipcert.errors import UsageError
from lipcert.training.intake import (
    FirstExamples,
    batch_size_of,
    numbers_of,
    options_of,
    require_full_precision,
)


def loader(*tensors: torch.Tensor, batch_size: int | None = 4) -> DataLoader:
    return DataLoader(TensorDataset(*tensors), batch_size=batch_size)


def test_the_batch_size_is_the_loaders() -> None:
    assert batch_size_of(loader(torch.zeros(8, 2))) == 4
    with pytest.raises(UsageError, match="no batch_size"):
        batch_size_of(loader(torch.zeros(8, 2), batch_size=None))


def test_the_first_examples_are_those_that_the_loader_would_give() -> None:
    x = torch.arange(16.0).reshape(8, 2)
    found = FirstExamples.of(loader(x, torch.ones(8)), nn.Linear(2, 1))
    assert torch.equal(found.x, x)
    assert torch.equal(found.labels, torch.ones(8))
    halves = DataLoader(
        TensorDataset(x, torch.ones(8)),
        batch_size=4,
        collate_fn=lambda rows: (torch.stack([x for x, _ in rows]) / 2, [y for _, y in rows]),
    )
    found = FirstExamples.of(halves, nn.Linear(2, 1))
    assert torch.equal(found.x, x / 2)
    assert isinstance(found.labels, list)


@pytest.mark.parametrize("rows", [[1, 2, 3], [{"x": torch.zeros(2)}]], ids=["numbers", "dicts"])
def test_a_data_set_without_pairs_is_refused(rows: list[object]) -> None:
    with pytest.raises(UsageError, match=r"read in these forms: \(x, y\)"):
        FirstExamples.of(DataLoader(rows, batch_size=1), nn.Linear(2, 1))


def test_a_model_without_parameters_is_refused() -> None:
    with pytest.raises(UsageError, match="no parameters"):
        FirstExamples.of(loader(torch.zeros(8, 2), torch.zeros(8)), nn.ReLU())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_parameters_of_16_bits_are_refused(dtype: torch.dtype) -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    require_full_precision(model)
    require_full_precision(model.double())
    model[1].to(dtype)
    with pytest.raises(UsageError, match=r"1\.weight is of type b?float16"):
        require_full_precision(model)


def test_what_an_optimizer_was_told_is_all_but_its_parameters() -> None:
    first, second = nn.Linear(2, 1), nn.Linear(2, 1)
    told = options_of(torch.optim.SGD(first.parameters(), lr=0.1))
    assert told == options_of(torch.optim.SGD(second.parameters(), lr=0.1))
    assert told != options_of(torch.optim.SGD(first.parameters(), lr=0.2))
    assert told != options_of(torch.optim.Adam(first.parameters(), lr=0.1))


def test_the_numbers_of_a_module_include_its_buffers() -> None:
    assert len(numbers_of(nn.BatchNorm1d(3))) == 5
