"""WebDataset archives: tar files in which members of one key make an example.

What enters: an archive, on disk or as a stream. What leaves: its examples in order, one block at a
time. The key of a member is its name up to the first dot of its last part; of an example are read

    KEY.npz                 arrays x and y, or
    KEY.x.npy or KEY.npy    the inputs, and
    KEY.y.npy or KEY.cls    the labels: an array, or a whole number as text

and other members are passed over. Nothing is extracted, decoded or unpickled; a name that leads out
of the archive, and a link, is refused.
"""

from __future__ import annotations

import io
import re
import tarfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from lzma import LZMAError
from pathlib import PurePosixPath
from typing import IO, Final, Literal, final

import numpy as np

from lipcert.data.arrays import read_npz
from lipcert.data.source import Array, Block, Columns, Part, stacked
from lipcert.errors import NoVerdictError

_LARGEST: Final = 1 << 30
_X: Final = ("x.npy", "npy")
_Y: Final = ("y.npy", "cls")
_NUMBER: Final = re.compile(rb"\s*[+-]?[0-9]{1,18}\s*")
Opener = Callable[[], IO[bytes]]
_Example = dict[str, bytes]
"""the members of an example by their endings; those that are not read are empty"""


@final
class TarArchive(Part):
    """The examples of one archive.

    seeks: whether it is uncompressed and on disk, so that its examples are counted, and those
    before a start passed over, by their headers alone.
    """

    def __init__(self, open_file: Opener, name: str, columns: Columns, *, seeks: bool) -> None:
        given, label = columns.given_x(name), columns.given_y(name)
        self.name = name
        self._open, self._seeks, self._columns = open_file, seeks, columns
        self._x = (given,) if given else _X
        self._y = (label,) if label else _Y
        self._wanted = frozenset({"npz", *self._x, *self._y})
        self.count = sum(1 for _ in self._examples(0, frozenset())) if seeks else None

    def blocks(self, start: int = 0) -> Iterator[Block]:
        """In the order of the archive."""
        found = self._examples(start, self._wanted)
        yield from stacked((self._example(key, parts) for key, parts in found), self.name)

    def _examples(self, start: int, wanted: frozenset[str]) -> Iterator[tuple[str, _Example]]:
        """Key and members of the examples from the start on; of the wanted ones what they hold."""
        number, current, parts = -1, "", _Example()
        for member, read in self._members():
            path = PurePosixPath(member.name)
            first, _, ending = path.name.partition(".")
            key = str(path.parent / first)
            if key != current:
                if number >= start:
                    yield current, parts
                number, current, parts = number + 1, key, _Example()
            if ending in parts:
                raise NoVerdictError(f"{self.name}: the member {member.name!r} occurs twice")
            parts[ending] = read() if number >= start and ending in wanted else b""
        if number >= start and current:
            yield current, parts

    def _members(self) -> Iterator[tuple[tarfile.TarInfo, Callable[[], bytes]]]:
        """Every file of the archive, to be read before the next one."""
        mode: Literal["r:", "r|*"] = "r:" if self._seeks else "r|*"
        with self._told(), self._open() as file, tarfile.open(fileobj=file, mode=mode) as archive:
            while (member := archive.next()) is not None:
                archive.members = []  # type: ignore[attr-defined]  # which would grow
                if not member.isdir():
                    self._require_plain(member)
                    yield member, partial(self._content, archive, member)

    def _content(self, archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
        with self._told():
            file = archive.extractfile(member)
            return b"" if file is None else file.read()

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except (tarfile.TarError, OSError, EOFError, zlib.error, LZMAError) as error:
            raise NoVerdictError(f"{self.name} is no whole tar archive: {error}") from error

    def _require_plain(self, member: tarfile.TarInfo) -> None:
        path = PurePosixPath(member.name)
        if path.is_absolute() or ".." in path.parts:
            raise NoVerdictError(
                f"{self.name}: the member {member.name!r} leads out of the archive; no data set "
                "needs that"
            )
        if not member.isreg():
            raise NoVerdictError(f"{self.name}: the member {member.name!r} is no regular file")
        if member.size > _LARGEST:
            raise NoVerdictError(
                f"{self.name}: the member {member.name!r} has {member.size >> 20} MiB; an example "
                f"has at most {_LARGEST >> 20}"
            )

    def _example(self, key: str, parts: _Example) -> Block:
        """Inputs and label of one example."""
        where = f"{self.name}, example {key!r}"
        x = next((ending for ending in self._x if ending in parts), None)
        y = next((ending for ending in self._y if ending in parts), None)
        if "npz" in parts and x is None:
            return read_npz(io.BytesIO(parts["npz"]), where, self._columns)
        if x is None or y is None:
            what, option = ("inputs", "--data-x") if x is None else ("label", "--data-y")
            known = " or ".join(f".{ending}" for ending in (self._x if x is None else self._y))
            shown = ", ".join(f".{ending}" for ending in sorted(parts))
            raise NoVerdictError(
                f"{where} has no {what} ({known}; or both in .npz): it has {shown}; name an ending "
                f"of .npy or .cls with {option} (images are not decoded), or give "
                "package.module:function"
            )
        return _value(parts[x], x, where), _value(parts[y], y, where)


def _value(content: bytes, ending: str, where: str) -> Array:
    """An array, or a whole number as text."""
    if ending.rpartition(".")[2] == "cls":
        if not _NUMBER.fullmatch(content):
            raise NoVerdictError(f"{where}, .{ending}: {content[:20]!r} is no number of a class")
        return np.asarray(int(content))
    try:
        return np.asarray(np.lib.format.read_array(io.BytesIO(content), allow_pickle=False))
    except (OSError, ValueError, EOFError) as error:
        raise NoVerdictError(
            f"{where}, .{ending} is no .npy file of numbers: {' '.join(str(error).split())}"
        ) from error
