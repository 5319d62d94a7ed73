"""Opening: from what a user wrote after --data to a source of examples.

What enters: a path, a URL, `package.module:function`, or an object of Python. What leaves: a
source; NoVerdictError that says what is wrong, what would be read, and what to install. Libraries
are loaded where they are needed and nowhere else.
"""

from __future__ import annotations

import json
import os
import re
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any, Final

from lipcert.data.arrays import npz_arrays, shards_of_npy, shards_of_npz
from lipcert.data.objects import is_function, source_of_function, source_of_object
from lipcert.data.source import (
    Columns,
    Identity,
    Shape,
    Shards,
    Source,
    digest_of,
    identity_of_files,
    required,
)
from lipcert.data.tables import SPLITS, STATE, parquet_parts, saved_data_set, shards_of_parquet
from lipcert.data.tars import TarArchive
from lipcert.errors import LipCertError, NoVerdictError

_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*(://|::)")
_SECRETS: Final = re.compile(r"(?<=://)[^/@\s]*@|[?#]\S*")
"""users, passwords and signatures"""
_PARQUET: Final = (".parquet", ".pq")
_TAR: Final = (".tar",)
_PACKED_TAR: Final = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
_KINDS: Final = {
    ".npz": (".npz",),
    ".npy": (".npy",),
    ".parquet": _PARQUET,
    ".tar": (*_TAR, *_PACKED_TAR),
}
"""files of a folder, and their endings"""
_READ: Final = (
    "what is read: .npz, .parquet and .tar files and URLs of them, folders of such files or of "
    ".npy pairs, folders of datasets.save_to_disk, and package.module:function"
)


def is_elsewhere(where: str) -> bool:
    """Whether this is a URL or a function, and no path."""
    is_url = _URL.match(where) is not None
    return is_url or (is_function(where) and not os.path.exists(where))


def require_readable(where: str) -> None:
    """NoVerdictError for what is not there or cannot be examples, before anything slow begins."""
    path = Path(where)
    name = path.name.lower()
    if path.is_dir():
        _files_in(path)
    elif not path.exists():
        raise NoVerdictError(f"{path} does not exist; {_READ}")
    elif name.endswith(".npy"):
        raise NoVerdictError(
            f"{path} is one array; give the folder that holds x.npy and y.npy, or an .npz file of "
            "both"
        )
    elif not name.endswith((*_PARQUET, *_TAR, *_PACKED_TAR)) and not zipfile.is_zipfile(path):
        raise NoVerdictError(f"{path} is no .npz file of arrays x and y; {_READ}")


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
        if is_function(where):
            return source_of_function(where, columns)
        return _remote(where, shape, columns)
    path = Path(where)
    require_readable(where)
    try:
        return _folder(path, shape, columns) if path.is_dir() else _file(path, shape, columns)
    except OSError as error:
        raise NoVerdictError(f"{path} cannot be read: {error.strerror or error}") from error


def _file(path: Path, shape: Shape, columns: Columns) -> Source:
    name = path.name.lower()
    if name.endswith(_PARQUET):
        identity = identity_of_files([path], path.parent)
        return shards_of_parquet([path], str(path), columns, shape, identity)
    if name.endswith((*_TAR, *_PACKED_TAR)):
        return _tars([path], str(path), columns, path.parent)
    return npz_arrays(path.read_bytes(), str(path), columns)


def _folder(folder: Path, shape: Shape, columns: Columns) -> Source:
    kind, files = _files_in(folder)
    match kind:
        case ".npz":
            return shards_of_npz(files, folder, columns)
        case ".npy":
            return shards_of_npy(files, folder, columns)
        case ".tar":
            return _tars(files, str(folder), columns, folder)
        case ".parquet":
            identity = identity_of_files(files, folder)
            return shards_of_parquet(files, str(folder), columns, shape, identity)
    return saved_data_set(folder, columns, shape)


def _files_in(folder: Path) -> tuple[str, list[Path]]:
    """The kind of the files in a folder, and these in order; of `datasets` itself none."""
    if (folder / STATE).exists() or (folder / SPLITS).exists():
        return STATE, []
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
            f"{folder} holds files of several kinds ({', '.join(found)}); put those of the data "
            "set into a folder of their own"
        )
    return next(iter(found.items()))


def _tars(files: list[Path], name: str, columns: Columns, folder: Path) -> Shards:
    parts = [
        TarArchive(
            partial(_local, path),
            str(path),
            columns,
            seeks=path.name.lower().endswith(_TAR),
        )
        for path in files
    ]
    return Shards(parts, name, identity_of_files(files, folder))


def _local(path: Path) -> IO[bytes]:
    return path.open("rb")


def _natural(path: Path) -> list[tuple[int, str]]:
    """Sorts names with the numbers in them by value: 9 before 10."""
    parts = re.split(r"(\d+)", path.name)
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]


def _remote(url: str, shape: Shape, columns: Columns) -> Source:
    """A single file, wherever fsspec finds it."""
    name = _SECRETS.sub("", url)
    fsspec = required("fsspec", name, "a URL")
    with _told(name):
        system, path = fsspec.core.url_to_fs(url)
    ending = re.sub(r"[?#].*$", "", path).lower()
    if ending.endswith(_PARQUET):
        identity = _remote_identity(system, path, name)
        with _told(name):
            return Shards(
                parquet_parts(lambda: system.open(path, "rb"), name, columns, shape), name, identity
            )
    if ending.endswith((*_TAR, *_PACKED_TAR)):
        identity = _remote_identity(system, path, name)
        archive = TarArchive(lambda: _opened(system, path, name), name, columns, seeks=False)
        return Shards([archive], name, identity)
    if ending.endswith(".npz"):
        with _told(name):
            raw = system.cat_file(path)
        return npz_arrays(raw, name, columns)
    raise NoVerdictError(f"{name}: of URLs, .npz, .parquet and .tar files are read")


def _opened(system: Any, path: str, name: str) -> IO[bytes]:
    with _told(name):
        file: IO[bytes] = system.open(path, "rb")
    return file


def _remote_identity(system: Any, path: str, name: str) -> Identity:
    """Of what the server says of a file."""
    with _told(name):
        info = system.info(path)
        told = [str(system.ukey(path)), str(info.get("size")), str(info.get("ETag"))]
    return Identity(digest_of((), json.dumps(told)), "what its server says of the file")


@contextmanager
def _told(name: str) -> Iterator[None]:
    """Errors of file systems, each of which has its own, name the URL."""
    try:
        yield
    except LipCertError:
        raise
    except ImportError as error:
        raise NoVerdictError(
            f'{name}: {error}; install what is missing, with pip install "lipcert[data]" or by name'
        ) from error
    except Exception as error:  # backends raise what they like
        said = _SECRETS.sub("", " ".join(str(error).split())) or type(error).__name__
        raise NoVerdictError(f"{name} cannot be read: {said}") from error
