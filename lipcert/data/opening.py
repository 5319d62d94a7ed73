"""Opening: from what a user wrote after --data to a source of examples.

That is the path of an .npz file with arrays x and y, `package.module:function`, or, from Python, an
object. A fault raises NoVerdictError, which says what can be read. Data in any other form are read
by a function that the user writes with a library for that form.
"""

from __future__ import annotations

import hashlib
import io
import os
import zipfile
from pathlib import Path
from typing import Final

import numpy as np

from lipcert.data.objects import is_function, source_of_function, source_of_object
from lipcert.data.source import Array, Arrays, Block, Columns, Source, side_by_side
from lipcert.errors import NoVerdictError

_LARGEST: Final = 1 << 36
_REMEDY: Final = "write it with numpy.savez(path, x=inputs, y=labels)"
_READ: Final = (
    "what is read: .npz files of arrays x and y, and package.module:function, which returns data "
    "kept in another form or place"
)


def is_elsewhere(where: str) -> bool:
    """Whether this is a function, and no path."""
    return is_function(where) and not os.path.exists(where)


def require_readable(where: str) -> None:
    """NoVerdictError for what is not there or cannot be examples, before anything slow begins."""
    if "://" in where:
        raise NoVerdictError(f"{where.partition('?')[0]} is a URL; {_READ}")
    if not os.path.exists(where):
        raise NoVerdictError(f"{where} does not exist; {_READ}")
    if not zipfile.is_zipfile(where):
        raise NoVerdictError(f"{where} is not an .npz file of arrays x and y; {_READ}")


def open_source(where: object, columns: Columns, name: str = "the examples") -> Source:
    """The examples that a word names or an object holds. name: of an object, for messages."""
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
    """Inputs and labels of an .npz file; object arrays are refused, so that none is unpickled."""
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
