"""Opening: turn the argument of --data, or a Python object, into a source of examples.

It is the path of an .npz file with arrays x and y, `package.module:function`, or, from Python,
arrays, a torch data set or a loader. A fault raises NoVerdictError, which says what can be read.
Data in any other form are read by a function that the user writes with a library for that form.

A function is called without arguments. A data set of known length is read by index; a loader of one
is read through its data set and `collate_fn`, even if it shuffles; anything else is iterated in
order, again for each reading. This module does not import torch: the author of a torch object has
imported it.
"""

import hashlib
import importlib
import importlib.util
import io
import os
import re
import sys
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, ValuesView
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from lipcert.data.source import (
    Array,
    Arrays,
    Block,
    Columns,
    Identity,
    Source,
    array_of,
    digest_of,
    joined,
    rows_of_block,
    side_by_side,
    stacked,
)
from lipcert.errors import LipCertError, NoVerdictError, UsageError

_Found = TypeVar("_Found")
_FUNCTION: Final = re.compile(r"([A-Za-z_][\w.]*|.*\.py):[A-Za-z_][\w.]*")
_PROBED: Final = 64
_AT_ONCE: Final = 32


def is_function(where: str) -> bool:
    """Whether this is spelt like `package.module:function` or `folder/file.py:function`."""
    return _FUNCTION.fullmatch(where) is not None


def function_named(where: str) -> Callable[..., Any]:
    """Return the function `package.module:function`, or `folder/file.py:function`.

    Modules are also searched in the working folder, and imports of a file next to it.
    """
    module_name, _, path = where.rpartition(":")
    file = Path(module_name) if module_name.endswith(".py") else None
    here = os.getcwd() if file is None else str(file.resolve().parent)
    sys.path.insert(0, here)
    try:
        found = _call(where, "cannot be imported", _module, module_name, file)
    finally:
        sys.path.remove(here)
    for part in path.split("."):
        if not hasattr(found, part):
            raise NoVerdictError(f"{where}: {module_name} has no {part!r}")
        found = getattr(found, part)
    if not callable(found):
        raise NoVerdictError(f"{where} is not a function")
    function: Callable[..., Any] = found
    return function


def _module(name: str, file: Path | None) -> Any:
    if file is None:
        return importlib.import_module(name)
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise NoVerdictError(f"{file} is not a module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module  # dataclasses and worker processes look it up
    spec.loader.exec_module(module)
    return module


def source_of_function(where: str, columns: Columns) -> Source:
    """Return the examples that the function returns."""
    found = function_named(where)
    return source_of_object(_call(where, "failed", found), where, columns, again=found)


def source_of_object(
    found: Any, name: str, columns: Columns, again: Callable[[], Any] | None = None
) -> Source:
    """Return the examples of an object. again: makes it again if it can be iterated only once."""
    if isinstance(found, Source):
        return found
    if isinstance(found, tuple) and all(map(_is_array, found)):
        found = _nested(found, columns)
    if _is_arrays(found, columns):
        return Arrays(*_pair(found, name, columns, batched=True), name)
    if (loader := _torch("DataLoader")) is not None and isinstance(found, loader):
        if not _is_stream(found.dataset):
            return Indexed(found.dataset, name, columns, found.collate_fn)
        return Stream(found, name, columns, again, batched=found.batch_sampler is not None)
    if not _is_stream(found) and hasattr(found, "__getitem__") and hasattr(found, "__len__"):
        return Indexed(found, name, columns)
    if hasattr(found, "__iter__") and not isinstance(found, str | bytes | Mapping):
        return Stream(found, name, columns, again)
    raise UsageError(
        f"{name} is a {type(found).__name__}; give arrays (x, y), a torch Dataset, IterableDataset "
        "or DataLoader, or the path of a file"
    )


class Indexed(Source):
    """A data set with `__getitem__` and `__len__`. collate: that of a loader, makes batches."""

    def __init__(
        self,
        found: Any,
        name: str,
        columns: Columns,
        collate: Callable[[list[Any]], Any] | None = None,
    ) -> None:
        self.name = name
        self._found, self._columns, self._collate = found, columns, collate
        self.count = int(_call(name, "has no length", len, found))

    def blocks(self, start: int = 0) -> Iterator[Block]:
        """Yield the examples by number, in order."""
        if start >= (self.count or 0):
            return
        rows = rows_of_block(self._some(range(start, start + 1))[0])
        for at in range(start, self.count or 0, rows):
            yield self._some(range(at, min(at + rows, self.count or 0)))

    def take(self, index: npt.NDArray[np.int64]) -> Block:
        """Return the examples with these numbers, in this order."""
        return self._some(map(int, index))

    def identity(self) -> Identity:
        """Return a digest of the length and of evenly spaced examples."""
        index = np.unique(np.linspace(0, (self.count or 1) - 1, _PROBED).astype(np.int64))
        probed = [self.take(index)] if self.count else []
        return Identity(
            digest_of(probed, self.count),
            f"the number of examples, and {len(index) if self.count else 0} of them",
        )

    def _some(self, numbers: Iterable[int]) -> Block:
        examples = (
            _call(self.name, f"failed at example {i}", self._found.__getitem__, i) for i in numbers
        )
        if self._collate is None:
            pairs = (_pair(item, self.name, self._columns) for item in examples)
            return joined(list(stacked(pairs, self.name)))
        blocks = []
        while some := list(islice(examples, _AT_ONCE)):
            batch = _call(self.name, "failed in its collate_fn", self._collate, some)
            blocks.append(_pair(batch, self.name, self._columns, batched=True))
        return joined(blocks)


class Stream(Source):
    """Data that can only be iterated; their number is unknown before the end.

    batched: whether it yields batches instead of examples.
    """

    def __init__(
        self,
        found: Any,
        name: str,
        columns: Columns,
        again: Callable[[], Any] | None,
        *,
        batched: bool = False,
    ) -> None:
        self.name = name
        self.count = None
        self._found, self._columns, self._again, self._batched = found, columns, again, batched
        if again is None and isinstance(found, Iterator):
            raise UsageError(
                f"{name} can be iterated only once; give a data set, or a list of examples"
            )

    def blocks(self, start: int = 0) -> Iterator[Block]:
        """Iterate from the beginning, and skip what comes before the start."""
        batched = self._batched
        pairs = (_pair(i, self.name, self._columns, batched=batched) for i in self._items())
        for x, y in pairs if self._batched else stacked(pairs, self.name):
            passed = min(start, len(x))
            start -= passed
            if passed < len(x):
                yield x[passed:], y[passed:]

    def identity(self) -> Identity:
        """Return the identity of the first examples."""
        probed: list[Block] = []
        for x, y in self.blocks():
            left = _PROBED - sum(len(held) for held, _ in probed)
            probed.append((x[:left], y[:left]))
            if left <= len(x):
                break
        whole = [joined(probed)] if probed else []
        return Identity(digest_of(whole, "stream"), f"the first {_PROBED} examples")

    def _items(self) -> Iterator[Any]:
        found = self._found
        if isinstance(found, Iterator) and self._again is not None:
            found = _call(self.name, "failed", self._again)
        items = _call(self.name, "failed", iter, found)
        end = object()
        while (item := _call(self.name, "failed on its way", next, items, end)) is not end:
            yield item


def _pair(item: Any, name: str, columns: Columns, *, batched: bool = False) -> Block:
    """Return inputs and labels of an example, or of a batch."""
    item = _nested(item, columns)
    if isinstance(item, Mapping):
        x, y = columns.pair(item, name)
    elif isinstance(item, tuple | list) and len(item) == 2:
        x, y = item
    else:
        parts = f"{len(item)} parts" if isinstance(item, tuple | list) else type(item).__name__
        raise NoVerdictError(
            f"{name} gives {parts} as an example; a pair (x, y) of inputs and label is needed, or "
            "a mapping with both"
        )
    inputs = columns.inputs_of(x, name, _array)
    return inputs, _labels(y, name, columns, len(inputs) if batched else None)


def _nested(item: Any, columns: Columns) -> Any:
    """Turn (a, b, y) of a network with several inputs into ((a, b), y).

    The labels of several outputs are kept together; anything else is unchanged.
    """
    count = len(columns.inputs)
    if not (count and isinstance(item, tuple | list) and len(item) > max(2, count)):
        return item
    labels = item[count:]
    return item[:count], labels[0] if len(labels) == 1 else labels


def _labels(item: Any, name: str, columns: Columns, count: int | None) -> Array:
    """Return the label of an example, or `count` labels; those of several outputs as one row.

    Several outputs are recognised by a mapping, or by parts that make no single array; in a batch,
    by arrays whose first axis counts the examples.
    """
    if isinstance(item, Mapping):
        if columns.y is None and not columns.own_labels(item):
            raise NoVerdictError(
                f"{name} gives the labels {', '.join(map(repr, item))} by name: list them with "
                "--data-y in the order of the outputs that have a loss"
            )
        item = tuple(item[label] for label in columns.labels(item, name))
    if not isinstance(item, tuple | list):
        return _array(item, name)
    parts = [_array(part, name) for part in item]
    if count is not None:
        is_each = bool(parts) and all(part.ndim and len(part) == count for part in parts)
        return side_by_side(parts, name) if is_each else _array(item, name)
    if len({part.shape for part in parts}) == 1:
        return _array(parts, name)
    return np.concatenate([part.reshape(-1) for part in parts])


def _array(item: Any, name: str) -> Array:
    """Return an array for a tensor, an array, a number, or a list of these."""
    if hasattr(item, "detach"):
        return array_of(item)
    if isinstance(item, list | tuple):
        item = [_array(part, name) for part in item]
    elif not isinstance(item, np.ndarray | np.generic | bool | int | float):
        raise NoVerdictError(
            f"{name} gives a {type(item).__name__}, and an array, tensor or number is needed: "
            "convert it as training does, in the transforms of the data set say"
        )
    try:
        return np.asarray(item)
    except ValueError as error:
        raise NoVerdictError(f"{name} gives lists of several lengths: {error}") from error


def _is_arrays(found: Any, columns: Columns) -> bool:
    """Whether this is a pair of whole arrays instead of two examples.

    The pair has inputs (several: as many arrays, or a mapping) and labels (several: as many
    arrays).
    """
    if not (isinstance(found, tuple | list) and len(found) == 2 and _is_whole(found[0], columns)):
        return False
    labels = found[1].values() if isinstance(found[1], Mapping) else found[1]
    if isinstance(labels, tuple | list | ValuesView):
        return len(labels) > 1 and all(map(_is_array, labels))
    return _is_array(labels)


def _is_whole(x: Any, columns: Columns) -> bool:
    """Whether this is an array of all inputs, or one for each of several."""
    parts = [x]
    if columns.inputs and isinstance(x, tuple | list | Mapping):
        parts = list(x.values() if isinstance(x, Mapping) else x)
    return bool(parts) and all(map(_is_array, parts))


def _is_array(part: Any) -> bool:
    return len(getattr(part, "shape", ())) > 0


def _torch(name: str) -> Any:
    """Return a class of torch.utils.data; None if it is not imported and has no instances."""
    return getattr(sys.modules.get("torch.utils.data"), name, None)


def _is_stream(found: object) -> bool:
    iterable = _torch("IterableDataset")
    return iterable is not None and isinstance(found, iterable)


def _call(name: str, what: str, function: Callable[..., _Found], *words: Any) -> _Found:
    """Call a function of the user's; NoVerdictError says what it raises."""
    try:
        return function(*words)
    except LipCertError:
        raise
    except Exception as error:  # code of the user
        told = " ".join(str(error).split())
        raise NoVerdictError(f"{name} {what}: {type(error).__name__}: {told}") from error


_LARGEST: Final = 1 << 36
_REMEDY: Final = "write it with numpy.savez(path, x=inputs, y=labels)"
_READ: Final = (
    "what is read: .npz files of arrays x and y, and package.module:function, which returns data "
    "kept in another form or place"
)


def is_elsewhere(where: str) -> bool:
    """Whether this is a function instead of a path."""
    return is_function(where) and not os.path.exists(where)


def require_readable(where: str) -> None:
    """Raise NoVerdictError for what cannot be examples, before any slow work."""
    if "://" in where:
        raise NoVerdictError(f"{where.partition('?')[0]} is a URL; {_READ}")
    if not os.path.exists(where):
        raise NoVerdictError(f"{where} does not exist; {_READ}")
    if not zipfile.is_zipfile(where):
        raise NoVerdictError(f"{where} is not an .npz file of arrays x and y; {_READ}")


def open_source(where: object, columns: Columns, name: str = "the examples") -> Source:
    """Open the examples that a word names or an object holds. name: of an object, for messages."""
    if isinstance(where, Path):
        where = str(where)
    if not isinstance(where, str):
        return source_of_object(where, name, columns)
    if is_elsewhere(where):
        return source_of_function(where, columns)
    require_readable(where)
    try:
        raw = Path(where).read_bytes()
    except OSError as error:
        raise NoVerdictError(f"{where} cannot be read: {error.strerror or error}") from error
    return Arrays(*_arrays(raw, where, columns), where, hashlib.sha256(raw).hexdigest())


def _arrays(raw: bytes, name: str, columns: Columns) -> Block:
    """Read inputs and labels of an .npz file; object arrays are refused, to unpickle nothing."""
    try:
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            size = sum(member.file_size for member in archive.infolist())
        if size > _LARGEST:
            raise NoVerdictError(
                f"{name} unpacks to {size >> 30} GiB; give a function that returns what is larger "
                f"than {_LARGEST >> 30} GiB"
            )
        with np.load(io.BytesIO(raw), allow_pickle=False) as arrays:
            x = columns.inputs_of(columns.read_x(arrays, name), name, _as_it_is)
            labels = [arrays[label] for label in columns.labels(arrays.files, name)]
            return x, side_by_side(labels, name)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        said = " ".join(str(error).split())
        raise NoVerdictError(
            f"{name} is not an .npz file of arrays x and y: {said}; {_REMEDY}"
        ) from error


def _as_it_is(array: Array, where: str) -> Array:
    del where
    return array
