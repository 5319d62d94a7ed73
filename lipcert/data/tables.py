"""Tables: Parquet files, and the Arrow files in a folder that Hugging Face `datasets` saved.

What enters: files whose rows are examples, in columns of numbers or of lists of numbers. What
leaves: sources that hold a few MiB of rows at a time. A flat list of as many numbers as the network
reads is read in its shape, in the order of C; several columns of one number each make an example
together. Nothing is decoded: images must be columns of numbers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from lipcert.data.source import (
    Array,
    Block,
    Columns,
    Identity,
    Part,
    Shape,
    Shards,
    identity_of_files,
    required,
    rows_of_shape,
    side_by_side,
)
from lipcert.errors import NoVerdictError

if TYPE_CHECKING:
    import pyarrow as pa

EVERY_OTHER: Final = "*"
"""as name of x: all columns but those of the labels, in the order of the file"""
STATE: Final = "state.json"
SPLITS: Final = "dataset_dict.json"
"""what `save_to_disk` writes beside the files of a data set, and of several"""
Opener = Callable[[], Any]
"""opens a file anew: its path, or a file object"""


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
        """Some rows as arrays."""
        labels = [_numbers(batch.column(name), f"{where}, column {name!r}") for name in self.y]
        y = side_by_side(labels, where)
        parts = [_numbers(batch.column(name), f"{where}, column {name!r}") for name in self.x]
        if len(parts) > 1 and any(part.ndim > 1 for part in parts):
            raise NoVerdictError(
                f"{where}: columns that make an example together hold one number each; name one "
                "column of lists alone"
            )
        x = parts[0] if len(parts) == 1 else np.stack(parts, axis=1)
        if x.ndim == 1 or (x.ndim == 2 and x.shape[1] == int(np.prod(self.shape))):
            flat = (len(x), *self.shape) if x.size == len(x) * int(np.prod(self.shape)) else x.shape
            x = x.reshape(flat)
        return x, y


@final
class ParquetGroup(Part):
    """One group of rows of a Parquet file."""

    def __init__(
        self, open_file: Opener, group: int, count: int, name: str, layout: _Layout
    ) -> None:
        self.name = name
        self.count = count
        self._open, self._group, self._layout = open_file, group, layout

    def blocks(self, start: int = 0) -> Iterator[Block]:
        """Pages of a group are read in order; what lies before the start is passed over."""
        layout = self._layout
        with _parquet(self._open, self.name) as file:
            batches = file.iter_batches(
                rows_of_shape(layout.shape),
                row_groups=[self._group],
                columns=[*layout.x, *layout.y],
                use_threads=False,
            )
            yield from _blocks(batches, start, layout, self.name)


@final
class ArrowFile(Part):
    """A file of record batches, as `datasets` writes them; one batch is held at a time."""

    def __init__(self, path: Path, columns: Columns, shape: Shape) -> None:
        self.name = str(path)
        self._path = path
        with self._batches(mapped=True) as reader:
            self._layout = _Layout.of(reader.schema.names, columns, shape, self.name)
            self.count = sum(batch.num_rows for batch in reader)

    def blocks(self, start: int = 0) -> Iterator[Block]:
        """A batch, or a part of one, at a time."""
        rows = rows_of_shape(self._layout.shape)
        with self._batches(mapped=False) as reader:
            small = (
                batch.slice(at, rows) for batch in reader for at in range(0, batch.num_rows, rows)
            )
            yield from _blocks(small, start, self._layout, self.name)

    @contextmanager
    def _batches(self, *, mapped: bool) -> Iterator[pa.RecordBatchReader]:
        """mapped: look at the sizes of batches only; what is mapped counts as held once read."""
        pa = required("pyarrow", self.name, "Arrow")
        with _told(self.name, "no Arrow file of `datasets`"):
            file = pa.memory_map(self.name) if mapped else pa.OSFile(self.name)
            with file, pa.ipc.open_stream(file) as reader:
                yield reader


def parquet_parts(open_file: Opener, name: str, columns: Columns, shape: Shape) -> list[Part]:
    """The groups of rows of a Parquet file."""
    with _parquet(open_file, name) as file:
        layout = _Layout.of(file.schema_arrow.names, columns, shape, name)
        counts = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
    return [
        ParquetGroup(open_file, group, count, name, layout) for group, count in enumerate(counts)
    ]


def shards_of_parquet(
    files: Sequence[Path], name: str, columns: Columns, shape: Shape, identity: Identity
) -> Shards:
    """Parquet files."""
    parts = [
        part
        for path in files
        for part in parquet_parts(partial(str, path), str(path), columns, shape)
    ]
    return Shards(parts, name, identity)


def saved_data_set(folder: Path, columns: Columns, shape: Shape) -> Shards:
    """A folder of `datasets.Dataset.save_to_disk`."""
    try:
        if (folder / SPLITS).exists():
            splits = json.loads((folder / SPLITS).read_text(encoding="utf-8"))["splits"]
            shown = ", ".join(str(folder / str(split)) for split in splits)
            raise NoVerdictError(f"{folder} holds several data sets; name one of them: {shown}")
        state = json.loads((folder / STATE).read_text(encoding="utf-8"))
        names = [item["filename"] for item in state["_data_files"]]
        if state.get("_indices_files") or not all(Path(name).name == name for name in names):
            raise NoVerdictError(
                f"{folder} refers to rows or files elsewhere; save it again with "
                "dataset.flatten_indices().save_to_disk(folder)"
            )
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise NoVerdictError(f"{folder} was not saved by `datasets`: {error}") from error
    files = [folder / name for name in names]
    parts = [ArrowFile(path, columns, shape) for path in files]
    return Shards(parts, str(folder), identity_of_files(files, folder))


@contextmanager
def _parquet(open_file: Opener, name: str) -> Iterator[Any]:
    parquet = required("pyarrow.parquet", name, "Parquet")
    with (
        _told(name, "no Parquet file"),
        parquet.ParquetFile(open_file(), pre_buffer=False, buffer_size=1 << 16) as file,
    ):
        yield file


@contextmanager
def _told(name: str, what: str) -> Iterator[None]:
    """pyarrow's errors, which are those of Python or inherit from them, name the file."""
    try:
        yield
    except (OSError, ValueError, LookupError, NotImplementedError) as error:
        raise NoVerdictError(f"{name} is {what}: {' '.join(str(error).split())}") from error


def _blocks(
    batches: Iterator[pa.RecordBatch], start: int, layout: _Layout, name: str
) -> Iterator[Block]:
    for batch in batches:
        passed = min(start, batch.num_rows)
        start -= passed
        if passed < batch.num_rows:
            yield layout.block(batch.slice(passed), name)


def _numbers(column: Any, where: str) -> Array:
    """A column as an array [rows, ...]; NoVerdictError for what is missing, ragged or no number."""
    pa = required("pyarrow", where, "a column")
    kind = column.type
    if column.null_count:
        raise NoVerdictError(f"{where}: {column.null_count} values are missing (null)")
    if isinstance(kind, pa.FixedShapeTensorType):
        return np.asarray(column.to_numpy_ndarray())
    if isinstance(kind, pa.BaseExtensionType):
        return _numbers(column.storage, where)
    if any(test(kind) for test in (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean)):
        return np.asarray(column.to_numpy(zero_copy_only=False))
    if not any(
        test(kind)
        for test in (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    ):
        raise NoVerdictError(
            f"{where} is of type {kind}: numbers, or lists of numbers, are needed; images and "
            "texts are not decoded (convert them, or give package.module:function)"
        )
    lengths = required("pyarrow.compute", where, "a column").list_value_length(column).unique()
    if len(lengths) > 1:
        raise NoVerdictError(
            f"{where} holds lists of {lengths[0]} and of {lengths[1]} values; all examples must be "
            "of one shape"
        )
    inner = _numbers(column.flatten(), where)
    length = lengths[0].as_py() if len(lengths) else 0
    return inner.reshape(len(column), length, *inner.shape[1:])
