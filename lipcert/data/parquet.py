"""Parquet files whose rows are examples, in columns of numbers or of lists of numbers.

A flat list of as many numbers as the network reads is read in its shape, in the order of C; several
columns of one number each make an example together. Nothing is decoded: images must be columns of
numbers. A few MiB of rows are held at a time.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from lipcert.data.source import (
    Array,
    Block,
    Columns,
    Part,
    Shape,
    Shards,
    identity_of_files,
    rows_of_shape,
    side_by_side,
)
from lipcert.errors import NoVerdictError

if TYPE_CHECKING:
    import pyarrow as pa

EVERY_OTHER: Final = "*"
"""as name of x: all columns but those of the labels, in the order of the file"""


def shards_of_parquet(
    files: Sequence[Path], folder: Path, name: str, columns: Columns, shape: Shape
) -> Shards:
    """Files of one folder, each in its groups of rows. shape: of one example."""
    parts: list[Part] = []
    for path in files:
        with _opened(path) as file:
            layout = _Layout.of(file.schema_arrow.names, columns, shape, str(path))
            counts = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
        parts += [ParquetGroup(path, group, count, layout) for group, count in enumerate(counts)]
    return Shards(parts, name, identity_of_files(files, folder))


@final
class ParquetGroup(Part):
    """One group of rows of a Parquet file."""

    def __init__(self, path: Path, group: int, count: int, layout: _Layout) -> None:
        self.name = str(path)
        self.count = count
        self._path, self._group, self._layout = path, group, layout

    def blocks(self, start: int = 0) -> Iterator[Block]:
        """Pages of a group are read in order; what lies before the start is passed over."""
        layout = self._layout
        with _opened(self._path) as file:
            for batch in file.iter_batches(
                rows_of_shape(layout.shape),
                row_groups=[self._group],
                columns=[*layout.x, *layout.y],
                use_threads=False,
            ):
                passed = min(start, batch.num_rows)
                start -= passed
                if passed < batch.num_rows:
                    yield layout.block(batch.slice(passed), self.name)


@final
@dataclass(frozen=True, slots=True)
class _Layout:
    """Which columns hold what. shape: of one example, as the network reads it."""

    x: tuple[str, ...]
    y: tuple[str, ...]
    shape: Shape

    @classmethod
    def of(cls, there: Sequence[str], columns: Columns, shape: Shape, where: str) -> _Layout:
        y = columns.labels(there, where)
        if columns.inputs:
            columns.given_x(where)
        if columns.x == (EVERY_OTHER,):
            return cls(tuple(name for name in there if name not in y), y, shape)
        if columns.x is None or len(columns.x) == 1:
            return cls((columns.one_x(there, where),), y, shape)
        one = (Columns((name,)).one_x(there, where) for name in columns.x)
        return cls(tuple(one), y, shape)

    def block(self, batch: pa.RecordBatch, where: str) -> Block:
        """Inputs and labels of some rows."""
        labels = [_numbers(batch.column(name), f"{where}, column {name!r}") for name in self.y]
        y = side_by_side(labels, where)
        parts = [_numbers(batch.column(name), f"{where}, column {name!r}") for name in self.x]
        if len(parts) > 1 and any(part.ndim > 1 for part in parts):
            raise NoVerdictError(
                f"{where}: columns that together make an example hold one number each; name a "
                "single column of lists"
            )
        x = parts[0] if len(parts) == 1 else np.stack(parts, axis=1)
        if x.ndim == 1 or (x.ndim == 2 and x.shape[1] == int(np.prod(self.shape))):
            flat = (len(x), *self.shape) if x.size == len(x) * int(np.prod(self.shape)) else x.shape
            x = x.reshape(flat)
        return x, y


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """The file as pyarrow reads it, whose errors name it."""
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ModuleNotFoundError as error:
        raise NoVerdictError(
            f"{path}: Parquet is read by pyarrow, which is not installed; install it with: "
            'pip install "lipcert[data]"'
        ) from error
    try:
        with parquet.ParquetFile(str(path), pre_buffer=False, buffer_size=1 << 16) as file:
            yield file
    except (OSError, ValueError, LookupError, NotImplementedError) as error:
        # pyarrow's errors are those of Python or inherit from them
        raise NoVerdictError(
            f"{path} is not a Parquet file: {' '.join(str(error).split())}"
        ) from error


def _numbers(column: Any, where: str) -> Array:
    """A column as an array [rows, ...]; NoVerdictError for what is missing, ragged or no number."""
    import pyarrow as pa  # noqa: PLC0415  an extra
    import pyarrow.compute as pc  # noqa: PLC0415

    kind = column.type
    if column.null_count:
        raise NoVerdictError(f"{where}: {column.null_count} values are missing (null)")
    if isinstance(kind, pa.FixedShapeTensorType):
        return np.asarray(column.to_numpy_ndarray())
    if isinstance(kind, pa.BaseExtensionType):
        return _numbers(column.storage, where)
    types = pa.types
    if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind):
        return np.asarray(column.to_numpy(zero_copy_only=False))
    if not (types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)):
        raise NoVerdictError(
            f"{where} is of type {kind}: numbers, or lists of numbers, are needed; images and "
            "texts are not decoded (convert them, or give package.module:function)"
        )
    lengths = pc.list_value_length(column).unique()
    if len(lengths) > 1:
        raise NoVerdictError(
            f"{where} holds lists of {lengths[0]} and of {lengths[1]} values; all examples must be "
            "of one shape"
        )
    inner = _numbers(column.flatten(), where)
    length = lengths[0].as_py() if len(lengths) else 0
    return inner.reshape(len(column), length, *inner.shape[1:])
