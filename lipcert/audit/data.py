"""Examples to replay: arrays x and y of an .npz file, checked against the model.

What enters: a file, the shape of one example. What leaves: `Examples`, or a NoVerdictError that
names what is wrong and where. Nothing is unpickled, and nothing is skipped silently.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt

from lipcert.core.program import Shape
from lipcert.errors import NoVerdictError

_FLOATS: Final = frozenset({"f"})
_LARGEST: Final = 1 << 36


@final
@dataclass(frozen=True, slots=True, eq=False)
class Examples:
    """Inputs [examples, *shape] of a float or integer type, and their labels [examples, ...].

    source: where they come from, for messages. sha256: of the bytes they were read from.
    """

    x: npt.NDArray[Any]
    y: npt.NDArray[Any]
    source: str
    sha256: str

    def __len__(self) -> int:
        return len(self.x)


def read_examples(path: Path, shape: Shape) -> Examples:
    """The arrays x and y of an .npz file, as examples of the given shape."""
    try:
        raw = path.read_bytes()
        _check_size(path)
        with np.load(io.BytesIO(raw), allow_pickle=False) as archive:
            _check_members(path, archive)
            x, y = archive["x"], archive["y"]
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise NoVerdictError(
            f"audit: {path} is no .npz file of arrays x and y: {error}; write it with "
            "numpy.savez(path, x=inputs, y=labels)"
        ) from error
    return checked_examples(x, y, shape, str(path), hashlib.sha256(raw).hexdigest())


def checked_examples(
    x: npt.NDArray[Any], y: npt.NDArray[Any], shape: Shape, source: str, sha256: str
) -> Examples:
    """The arrays as examples of the given shape; values must be finite numbers."""
    if x.dtype.kind not in "fiu" or y.dtype.kind not in "fiub":
        raise NoVerdictError(
            f"audit: {source} holds x of type {x.dtype} and y of type {y.dtype}; numbers are needed"
        )
    if x.ndim == 0 or y.ndim == 0 or len(x) != len(y):
        raise NoVerdictError(
            f"audit: {source} holds x of shape {list(x.shape)} and y of shape {list(y.shape)}; "
            "their first axes must count the same examples"
        )
    if x.shape[1:] != tuple(shape):
        raise NoVerdictError(
            f"audit: {source} holds examples of shape {list(x.shape[1:])}, but the model reads "
            f"{list(shape)}; reshape x to [examples, {', '.join(map(str, shape))}]"
        )
    bad = _first_bad(x)
    if bad is not None:
        raise NoVerdictError(
            f"audit: {source}, x: example {bad} holds NaN or infinity; no bound speaks of it, so "
            "remove it, or find out where training got it from"
        )
    return Examples(x, y, source, sha256)


def _first_bad(x: npt.NDArray[Any]) -> int | None:
    """Index of the first example with an entry that is not finite."""
    if x.dtype.kind not in _FLOATS:
        return None
    finite = np.isfinite(x).all(axis=tuple(range(1, x.ndim)))
    return None if finite.all() else int(np.argmin(finite))


def _check_members(path: Path, archive: Any) -> None:
    missing = [name for name in ("x", "y") if name not in getattr(archive, "files", ())]
    if missing:
        raise NoVerdictError(
            f"audit: {path} has no array {missing[0]!r}; write it with "
            "numpy.savez(path, x=inputs, y=labels)"
        )


def _check_size(path: Path) -> None:
    """Refuse an archive that unpacks to more than is sensible to hold."""
    with zipfile.ZipFile(path) as archive:
        size = sum(member.file_size for member in archive.infolist())
    if size > _LARGEST:
        raise NoVerdictError(
            f"audit: {path} unpacks to {size >> 30} GiB; split it into files of at most "
            f"{_LARGEST >> 30} GiB"
        )
