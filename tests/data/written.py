"""The same examples in every form that is read, made by numpy and torch."""

from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

ROWS, SHAPE = 53, (2, 3)
_RANDOM = np.random.default_rng(5)
X = _RANDOM.standard_normal((ROWS, *SHAPE)).astype(np.float32)
Y = _RANDOM.integers(0, 10, ROWS)


def npz(folder):
    np.savez(folder / "data.npz", x=X, y=Y)
    return folder / "data.npz"


class Rows(Dataset[Any]):
    """Examples by number, with labels as numbers of Python."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, number: int) -> dict[str, Any]:
        return {"image": X[number], "label": int(Y[number])}


class OneByOne(IterableDataset[Any]):
    def __iter__(self):
        yield from zip(X, Y, strict=True)


def tensors() -> TensorDataset:
    return TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))


OBJECTS = {
    "arrays": lambda: (X, Y),
    "tensors": lambda: tensors().tensors,
    "dataset": Rows,
    "tensor dataset": tensors,
    "list": lambda: list(zip(X, Y, strict=True)),
    "shuffled loader": lambda: DataLoader(Rows(), batch_size=8, shuffle=True, drop_last=True),
    "iterable": OneByOne,
    "loader of an iterable": lambda: DataLoader(OneByOne(), batch_size=8),
    "loader without batches": lambda: DataLoader(OneByOne(), batch_size=None),
}
STREAMS = {"iterable", "loader of an iterable", "loader without batches"}
"""those of which only the end tells how many examples there are"""


def made() -> object:
    """As a function of the user's: `tests.data.written:made`."""
    return tensors()


def generated():
    """Returns something that can be gone through once."""
    return zip(X, Y, strict=True)


def failing() -> object:
    raise KeyError("no such split")


def failing_on_its_way():
    yield X[0], Y[0]
    raise RuntimeError("worker died")
