"""NumPy files: an .npz with arrays x and y, and folders of .npz files or of pairs of .npy files.

An .npz file is held in memory while it is read; of .npy files a block at a time. Object arrays are
refused: nothing is unpickled.
"""

from __future__ import annotations

import hashlib
import io
import re
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Final, final

import numpy as np
import numpy.typing as npt

from lipcert.data.source import (
    Array,
    Arrays,
    Block,
    Columns,
    Part,
    Shards,
    identity_of_files,
    require_pair,
    rows_of_block,
    side_by_side,
)
from lipcert.errors import NoVerdictError

_LARGEST: Final = 1 << 36
_REMEDY: Final = "write it with numpy.savez(path, x=inputs, y=labels)"


def npz_arrays(raw: bytes, name: str, columns: Columns) -> Arrays:
    """The two arrays of an .npz file, identified by its bytes."""
    x, y = read_npz(io.BytesIO(raw), name, columns)
    return Arrays(x, y, name, hashlib.sha256(raw).hexdigest())


def read_npz(file: IO[bytes], name: str, columns: Columns) -> Block:
    """Inputs and labels of an .npz file."""
    try:
        with zipfile.ZipFile(file) as archive:
            size = sum(member.file_size for member in archive.infolist())
        if size > _LARGEST:
            raise NoVerdictError(
                f"{name} unpacks to {size >> 30} GiB; split it into files of at most "
                f"{_LARGEST >> 30} GiB"
            )
        file.seek(0)
        with np.load(file, allow_pickle=False) as arrays:
            return _pair(arrays, name, columns)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise NoVerdictError(
            f"{name} is not an .npz file of arrays x and y: {_said(error)}; {_REMEDY}"
        ) from error


def _pair(arrays: Any, name: str, columns: Columns) -> Block:
    x = columns.inputs_of(columns.read_x(arrays, name), name, _as_it_is)
    labels = [arrays[label] for label in columns.labels(arrays.files, name)]
    return x, side_by_side(labels, name)


def _as_it_is(array: Array, where: str) -> Array:
    del where
    return array


@final
class NpzShard(Part):
    """An .npz file of which only the number of examples is kept between readings."""

    def __init__(self, path: Path, columns: Columns) -> None:
        self.name = str(path)
        self._path, self._columns = path, columns
        self.count = len(self._arrays()[1])

    def blocks(self, start: int = 0) -> Iterator[Block]:
        """Views of the arrays, which live as long as this reading."""
        yield from Arrays(*self._arrays(), self.name).blocks(start)

    def take(self, index: npt.NDArray[np.int64]) -> Block:
        """Of the arrays, at once."""
        return Arrays(*self._arrays(), self.name).take(index)

    def _arrays(self) -> Block:
        with self._path.open("rb") as file:
            x, y = read_npz(file, self.name, self._columns)
        require_pair(x, y, self.name)
        return x, y


@final
class NpyPair(Part):
    """Two .npy files, of which a block is read at a time."""

    def __init__(self, x: Path, y: Path) -> None:
        self.name = f"{x} and {y.name}"
        self._files = x, y
        mapped = self._mapped()
        require_pair(*mapped, self.name)
        self.count = len(mapped[0])

    def blocks(self, start: int = 0) -> Iterator[Block]:
        """Copies; a map lives no longer than it takes to make one, and holds no memory."""
        rows = rows_of_block(self._mapped()[0])
        for at in range(start, self.count or 0, rows):
            x, y = self._mapped()
            yield np.array(x[at : at + rows]), np.array(y[at : at + rows])

    def take(self, index: npt.NDArray[np.int64]) -> Block:
        """From their places in the files."""
        x, y = self._mapped()
        return np.array(x[index]), np.array(y[index])

    def _mapped(self) -> tuple[Array, Array]:
        found = []
        for path in self._files:
            try:
                found.append(np.load(path, mmap_mode="r", allow_pickle=False))
            except (OSError, ValueError, EOFError) as error:
                raise NoVerdictError(
                    f"{path} is not an .npy file of numbers: {_said(error)}; write it with "
                    "numpy.save(path, array)"
                ) from error
        x, y = found
        return x, y


def shards_of_npz(files: Sequence[Path], folder: Path, columns: Columns) -> Shards:
    """A folder of .npz files."""
    parts = [NpzShard(path, columns) for path in files]
    return Shards(parts, str(folder), identity_of_files(files, folder))


def shards_of_npy(files: Sequence[Path], folder: Path, columns: Columns) -> Shards:
    """A folder of .npy files whose names differ in one word: `x` in one, `y` in the other."""
    named_x, named_y = columns.given_x(str(folder)) or "x", columns.given_y(str(folder)) or "y"
    whole = re.compile(rf"(?<![A-Za-z0-9]){re.escape(named_x)}(?![A-Za-z0-9])")
    there = set(files)
    pairs = []
    for file in files:
        if len(found := list(whole.finditer(file.stem))) == 1:
            stem = file.stem[: found[0].start()] + named_y + file.stem[found[0].end() :]
            other = file.with_name(f"{stem}{file.suffix}")
            if other not in there:
                raise NoVerdictError(f"{file} has no labels: there is no {other.name} beside it")
            pairs.append((file, other))
    odd = there - {file for pair in pairs for file in pair}
    if odd:
        raise NoVerdictError(
            f"{min(odd)}: .npy files come in pairs, {named_x}_000.npy of inputs and "
            f"{named_y}_000.npy of labels; name their words with --data-x and --data-y, or move "
            "it away"
        )
    used = sorted(there)
    return Shards([NpyPair(*p) for p in pairs], str(folder), identity_of_files(used, folder))


def _said(error: Exception) -> str:
    """An error of a library on one line."""
    return " ".join(str(error).split())
