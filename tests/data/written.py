"""The same examples in every form that is read, written by numpy, pyarrow and torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

ROWS, SHAPE = 53, (2, 3)
_RANDOM = np.random.default_rng(5)
X = _RANDOM.standard_normal((ROWS, *SHAPE)).astype(np.float32)
Y = _RANDOM.integers(0, 10, ROWS)
CUTS = (0, 7, 7, 30, ROWS)
"""of shards; one of them is empty"""


def cut(x: np.ndarray = X, y: np.ndarray = Y) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    for number, (start, stop) in enumerate(pairwise(CUTS)):
        yield number, x[start:stop], y[start:stop]


def npz(folder: Path) -> Path:
    np.savez(folder / "data.npz", x=X, y=Y)
    return folder / "data.npz"


def npz_shards(folder: Path) -> Path:
    for number, x, y in cut():
        np.savez_compressed(folder / f"part-{number + 8}.npz", x=x, y=y)  # 9 before 10
    return folder


def npy_pairs(folder: Path) -> Path:
    for number, x, y in cut():
        np.save(folder / f"x_{number + 8}.npy", np.asfortranarray(x) if number == 2 else x)
        np.save(folder / f"y_{number + 8}.npy", y)
    return folder


def table(x: np.ndarray = X, y: np.ndarray = Y) -> pa.Table:
    """Inputs as flat lists."""
    return pa.table({"x": list(x.reshape(len(x), int(np.prod(SHAPE)))), "y": y})


def parquet(folder: Path) -> Path:
    pq.write_table(table(), folder / "data.parquet", row_group_size=20)
    return folder / "data.parquet"


def parquet_shards(folder: Path) -> Path:
    kinds = {"other": pa.string(), "label": pa.int64(), "image": pa.list_(pa.list_(pa.float32()))}
    for number, x, y in cut():
        columns = {"other": ["text"] * len(y), "label": y, "image": x.tolist()}
        pq.write_table(pa.table(columns, pa.schema(kinds)), folder / f"{number}.parquet")
    return folder


def tensor_parquet(folder: Path) -> Path:
    """With a type of tensors of one shape."""
    kind = pa.fixed_shape_tensor(pa.float32(), SHAPE)
    storage = pa.array(list(X.reshape(ROWS, 6)), pa.list_(pa.float32(), 6))
    rows = pa.table({"x": pa.ExtensionArray.from_storage(kind, storage), "y": Y})
    pq.write_table(rows, folder / "data.parquet", row_group_size=10)
    return folder / "data.parquet"


class Rows(Dataset[Any]):
    """Examples by number, with labels as numbers of Python."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, number: int) -> dict[str, Any]:
        return {"image": X[number], "label": int(Y[number])}


class OneByOne(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield from zip(X, Y, strict=True)


def tensors() -> TensorDataset:
    return TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))


FILES: dict[str, Callable[[Path], Path]] = {
    made.__name__: made
    for made in (npz, npz_shards, npy_pairs, parquet, parquet_shards, tensor_parquet)
}
OBJECTS: dict[str, Callable[[], object]] = {
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


def generated() -> Iterator[object]:
    """Returns something that can be gone through once."""
    return zip(X, Y, strict=True)


def failing() -> object:
    raise KeyError("no such split")


def failing_on_its_way() -> Iterator[object]:
    yield X[0], Y[0]
    raise RuntimeError("worker died")
