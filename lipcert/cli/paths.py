"""Paths: check that what a command line names exists and has the right kind, before slow work.

A word that cannot be the name of a file is a usage error; a path that does not exist is an error
that names it; a document that LipCert wrote is read within limits. Other files are checked by their
readers. Every option and argument that names a file, a folder or the place of data is declared with
`FILE` or `WHERE`.
"""

import difflib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import click

from lipcert.diagnostics import EXPORT
from lipcert.errors import ModelFileError, NoVerdictError, UsageError

_SIMILAR: Final = 0.8
_KINDS: Final = (
    (b"PK\x03\x04", f"a zip archive, as torch.save writes; write ONNX: {EXPORT}"),
    (b"\x89HDF", "an HDF5 file; export the network to ONNX"),
    (b"{", "a text of JSON"),
)
_LARGEST: Final = 256 * 1024 * 1024
_LONGEST_PATH: Final = 4095
_LONGEST_NAME: Final = 255
"""Limits in bytes on Linux; other systems allow no more."""
_SHOWN: Final = 60


class PathWord(click.Path):
    """A path on the command line; of_text: or another word, such as the address of data."""

    def __init__(self, *, of_text: bool = False) -> None:
        super().__init__(path_type=str if of_text else Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path; fail if a file cannot have this name."""
        fault = fault_of(os.fspath(value))
        if fault:
            self.fail(fault, param, ctx)
        return super().convert(value, param, ctx)


FILE: Final = PathWord()
WHERE: Final = PathWord(of_text=True)


def path_of(word: str, what: str) -> Path:
    """Return the path that a part of a word names; UsageError says what it is for."""
    fault = fault_of(word)
    if fault:
        raise UsageError(f"{what}: {fault}")
    return Path(word)


def fault_of(name: str) -> str:
    """Return why no file can have this name; "" if one can."""
    shown = ascii(name if len(name) <= _SHOWN else f"{name[:_SHOWN]}…")
    if not name:
        return "the name of a file is empty"
    if "\0" in name:
        return f"{shown} contains a zero byte, which no file name may"
    try:
        data = name.encode("utf-8")
    except UnicodeEncodeError:
        return f"{shown} is not UTF-8; rename the file"
    longest = max(map(len, data.split(b"/")))
    if len(data) > _LONGEST_PATH or longest > _LONGEST_NAME:
        return f"{shown} of {len(data)} bytes is longer than the name of a file can be"
    return ""


def require_model(path: Path) -> None:
    """Raise ModelFileError unless the path may be an ONNX file."""
    why = unreadable(path)
    if not why:
        with path.open("rb") as file:
            head = file.read(4)
        found = next((kind for mark, kind in _KINDS if head.startswith(mark)), "")
        why = found and f"is not an ONNX model, but {found}"
        why = why if head else "is empty"
    if why:
        raise ModelFileError(f"{str(path)!r} {why}")


def require_file(path: Path) -> None:
    """Raise NoVerdictError unless the path is a file that can be read."""
    why = unreadable(path)
    if why:
        raise NoVerdictError(f"{str(path)!r} {why}")


def require_folder(path: Path) -> None:
    """Raise NoVerdictError unless the path is a folder."""
    try:
        if path.is_dir():
            return
        why = "is not a folder" if os.path.lexists(path) else f"does not exist{_hint(path)}"
    except OSError as error:
        why = f"cannot be read: {error.strerror or error}"
    raise NoVerdictError(f"{str(path)!r} {why}")


def require_own_folder(path: Path, mark: str) -> None:
    """Raise NoVerdictError unless the path is new, or a folder that is empty or has this file."""
    if not os.path.lexists(path):
        return
    require_folder(path)
    try:
        names = os.listdir(path)
    except OSError as error:
        raise NoVerdictError(f"{str(path)!r} cannot be read: {error.strerror or error}") from error
    if names and mark not in names:
        raise NoVerdictError(f"{str(path)!r} holds other files; name a new or an empty folder")


def require_writable(files: Iterable[Path | None], sources: Iterable[Path | None] = ()) -> None:
    """Raise NoVerdictError unless results can be put into these files; None: standard output.

    sources: files that are read, which no result may replace.
    """
    read = [source for source in sources if source is not None and source.is_file()]
    for file in files:
        if file is None:
            continue
        if file.is_file() and any(file.samefile(source) for source in read):
            raise UsageError(
                f"cannot write {file}: it is an input of this command; name another file"
            )
        if file.is_dir():
            raise NoVerdictError(f"cannot write {file}: it is a folder; name a file in it")
        if file.exists() and not file.is_file():
            continue  # a pipe or a device
        if not file.parent.is_dir():
            raise NoVerdictError(f"cannot write {file}: there is no folder {file.parent}")
        if not os.access(file.parent, os.W_OK | os.X_OK):
            raise NoVerdictError(f"cannot write {file}: you may not write to {file.parent}")


def unreadable(path: Path) -> str:
    """Return why the path is not a readable file; "" if it is one."""
    try:
        if path.is_dir():
            return "is a folder; name a file in it"
        if path.is_symlink() and not path.exists():
            return "is a link to nothing"
        if not path.exists():
            return f"does not exist{_hint(path)}"
        if not path.is_file():
            return "is not a regular file"
        path.open("rb").close()
    except (OSError, ValueError) as error:
        return f"cannot be read: {getattr(error, 'strerror', None) or error}"
    return ""


def _hint(path: Path) -> str:
    """Suggest a similar name in the same folder, or this one with an ending."""
    try:
        names = [item.name for item in path.parent.iterdir()]
    except OSError:
        return ""
    found = [name for name in names if Path(name).stem == path.name]
    found += difflib.get_close_matches(path.name, names, n=1, cutoff=_SIMILAR)
    return f"; did you mean {found[0]!r}?" if found else ""


def read_json(path: Path) -> tuple[bytes, dict[str, object]]:
    """Return the content of the file, as bytes and as an object."""
    require_file(path)
    try:
        if path.stat().st_size > _LARGEST:
            raise NoVerdictError(f"{path}: a document of more than 256 MiB is not read")
        data = path.read_bytes()
        document = json.loads(data.decode("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise NoVerdictError(
            f"{path} is not JSON, as `certify` and --format json write it: {error}"
        ) from error
    if not isinstance(document, dict):
        raise NoVerdictError(f"{path}: not an object of JSON")
    return data, document
