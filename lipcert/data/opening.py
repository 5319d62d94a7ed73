"""Opening: from what a user wrote after --data to a source of examples.

That is a path, `package.module:function`, or, from Python, an object. A fault raises
NoVerdictError, which says what can be read and what to install. Data in any other form are read by
a function that the user writes with a library for that form.
"""

from __future__ import annotations

import os
import re
import zipfile
from pathlib import Path
from typing import Final

from lipcert.data.arrays import npz_arrays, shards_of_npy, shards_of_npz
from lipcert.data.objects import is_function, source_of_function, source_of_object
from lipcert.data.source import Columns, Shape, Source
from lipcert.errors import NoVerdictError

_KINDS: Final = {".npz": (".npz",), ".npy": (".npy",), ".parquet": (".parquet", ".pq")}
"""files of a folder, and their endings"""
_READ: Final = (
    "what is read: .npz and .parquet files, folders of such files or of .npy pairs, and "
    "package.module:function, which returns data kept in another form or place"
)


def is_elsewhere(where: str) -> bool:
    """Whether this is a function, and no path."""
    return is_function(where) and not os.path.exists(where)


def require_readable(where: str) -> None:
    """NoVerdictError for what is not there or cannot be examples, before anything slow begins."""
    path = Path(where)
    name = path.name.lower()
    if "://" in where:
        raise NoVerdictError(f"{where.partition('?')[0]} is a URL; {_READ}")
    if path.is_dir():
        _files_in(path)
    elif not path.exists():
        raise NoVerdictError(f"{path} does not exist; {_READ}")
    elif name.endswith(".npy"):
        raise NoVerdictError(
            f"{path} is one array; give the folder that holds x.npy and y.npy, or an .npz file of "
            "both"
        )
    elif not name.endswith(_KINDS[".parquet"]) and not zipfile.is_zipfile(path):
        raise NoVerdictError(f"{path} is not an .npz file of arrays x and y; {_READ}")


def open_source(
    where: object, shape: Shape, columns: Columns, name: str = "the examples"
) -> Source:
    """The examples that a word names or an object holds, for a network that reads this shape.

    name: of an object, for messages.
    """
    if isinstance(where, Path):
        where = str(where)
    if not isinstance(where, str):
        return source_of_object(where, name, columns)
    if is_elsewhere(where):
        return source_of_function(where, columns)
    path = Path(where)
    require_readable(where)
    try:
        return _of_path(path, shape, columns)
    except OSError as error:
        raise NoVerdictError(f"{path} cannot be read: {error.strerror or error}") from error


def _of_path(path: Path, shape: Shape, columns: Columns) -> Source:
    if path.is_dir():
        folder, (kind, files) = path, _files_in(path)
        if kind == ".npz":
            return shards_of_npz(files, folder, columns)
        if kind == ".npy":
            return shards_of_npy(files, folder, columns)
    elif path.name.lower().endswith(_KINDS[".parquet"]):
        folder, files = path.parent, [path]
    else:
        return npz_arrays(path.read_bytes(), str(path), columns)
    from lipcert.data.parquet import shards_of_parquet  # noqa: PLC0415  pyarrow where it is needed

    return shards_of_parquet(files, folder, str(path), columns, shape)


def _files_in(folder: Path) -> tuple[str, list[Path]]:
    """The kind of the files in a folder, and these in order."""
    there = sorted((path for path in folder.iterdir() if path.is_file()), key=_natural)
    found = {
        kind: files
        for kind, known in _KINDS.items()
        if (files := [path for path in there if path.name.lower().endswith(known)])
    }
    if not found:
        raise NoVerdictError(f"{folder} holds no examples; {_READ}")
    if len(found) > 1:
        raise NoVerdictError(
            f"{folder} holds files of several kinds ({', '.join(found)}); put the files of "
            "the data set into a folder of their own"
        )
    return next(iter(found.items()))


def _natural(path: Path) -> list[tuple[int, str]]:
    """Sorts names with the numbers in them by value: 9 before 10."""
    parts = re.split(r"(\d+)", path.name)
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]
