"""Examples: arrays x and y of an .npz file, checked against the model, or admissible random ones.

What enters: a file and the shape of one example, or what is known of inputs and labels. What
leaves: `Examples`, or a NoVerdictError that names what is wrong and where. Nothing is unpickled,
and nothing is skipped silently.
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

from lipcert.core.losses.base import Loss, Targets, class_axis
from lipcert.core.program import Shape
from lipcert.core.rules.facts import Fact
from lipcert.errors import NoVerdictError
from lipcert.upper import FloatArray

RANDOM: Final = "random admissible inputs"
_FLOATS: Final = frozenset({"f"})
_LARGEST: Final = 1 << 36
_TINY: Final = float(np.finfo(np.float64).tiny)
_INWARD: Final = 1e-12


@final
@dataclass(frozen=True, slots=True, eq=False)
class Examples:
    """Inputs [examples, *shape] of a float or integer type, and their labels [examples, ...].

    source: where they come from, for messages. sha256: of the bytes they were read from.
    is_private: whether what is learned from them costs privacy, as it does of all but drawn ones.
    """

    x: npt.NDArray[Any]
    y: npt.NDArray[Any]
    source: str
    sha256: str = ""
    is_private: bool = True

    def __len__(self) -> int:
        return len(self.x)


def load_examples(path: Path, shape: Shape) -> Examples:
    """The arrays x and y of an .npz file, as examples of the given shape."""
    try:
        raw = path.read_bytes()
        _check_size(path)
        with np.load(io.BytesIO(raw), allow_pickle=False) as archive:
            _check_members(path, archive)
            x, y = archive["x"], archive["y"]
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise NoVerdictError(
            f"{path} is no .npz file of arrays x and y: {error}; write it with "
            "numpy.savez(path, x=inputs, y=labels)"
        ) from error
    return checked_examples(x, y, shape, str(path), hashlib.sha256(raw).hexdigest())


def checked_examples(
    x: npt.NDArray[Any], y: npt.NDArray[Any], shape: Shape, source: str, sha256: str
) -> Examples:
    """The arrays as examples of the given shape; values must be finite numbers."""
    if x.dtype.kind not in "fiu" or y.dtype.kind not in "fiub":
        raise NoVerdictError(
            f"{source} holds x of type {x.dtype} and y of type {y.dtype}; numbers are needed"
        )
    if x.ndim == 0 or y.ndim == 0 or len(x) != len(y):
        raise NoVerdictError(
            f"{source} holds x of shape {list(x.shape)} and y of shape {list(y.shape)}; "
            "their first axes must count the same examples"
        )
    if x.shape[1:] != tuple(shape):
        raise NoVerdictError(
            f"{source} holds examples of shape {list(x.shape[1:])}, but the model reads "
            f"{list(shape)}; reshape x to [examples, {', '.join(map(str, shape))}]"
        )
    bad = _first_bad(x)
    if bad is not None:
        raise NoVerdictError(
            f"{source}, x: example {bad} holds NaN or infinity; no bound speaks of it, so "
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
            f"{path} has no array {missing[0]!r}; write it with "
            "numpy.savez(path, x=inputs, y=labels)"
        )


def _check_size(path: Path) -> None:
    """Refuse an archive that unpacks to more than is sensible to hold."""
    with zipfile.ZipFile(path) as archive:
        size = sum(member.file_size for member in archive.infolist())
    if size > _LARGEST:
        raise NoVerdictError(
            f"{path} unpacks to {size >> 30} GiB; split it into files of at most "
            f"{_LARGEST >> 30} GiB"
        )


@np.errstate(all="ignore")
def random_examples(
    shape: Shape, at_input: Fact, loss: Loss, output_shape: Shape, count: int
) -> Examples | None:
    """So many examples of this shape, the same at every call; None: admissible labels are unknown.

    Entries are uniform in the box, drawn in to the ball; where every input is admitted, of the
    standard normal distribution, as in standardised data.
    """
    random = np.random.default_rng(0)
    labels = _random_labels(loss, output_shape, count, random)
    if labels is None:
        return None
    return Examples(_random_inputs(shape, at_input, count, random), labels, RANDOM, "", False)


def _random_inputs(
    shape: Shape, at_input: Fact, count: int, random: np.random.Generator
) -> FloatArray:
    whole = (1, *shape)
    low, high = (np.broadcast_to(end, whole) for end in (at_input.box.lo, at_input.box.hi))
    bell: FloatArray = random.standard_normal((count, *shape))
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        return bell
    x: FloatArray = low + (high - low) * random.random((count, *shape))
    nearest = np.clip(0.0, low, high)
    axes = tuple(range(1, x.ndim))
    least = np.sqrt(np.sum(nearest**2))
    lengths = np.sqrt(np.sum(x**2, axis=axes, keepdims=True))
    room = max(at_input.norm - float(least), 0.0)
    # the norm is convex: on the way to the nearest point of the box it falls at least linearly
    share = np.where(lengths > at_input.norm, room / np.maximum(lengths - least, _TINY), 1.0)
    drawn: FloatArray = nearest + share * (x - nearest)
    return drawn


def _random_labels(
    loss: Loss, output_shape: Shape, count: int, random: np.random.Generator
) -> npt.NDArray[Any] | None:
    """Classes, ends of the range of targets, or directions; of unlimited targets normal ones."""
    axis = class_axis(output_shape)
    if loss.of_classes and axis is not None and axis.classes > 1:
        return random.integers(axis.classes, size=count)
    targets = None if loss.of_classes and axis is None else loss.targets
    bell = random.standard_normal((count, *output_shape))
    match targets:
        case Targets(norm=radius) if radius < np.inf:
            lengths = np.sqrt(np.sum(bell**2, axis=tuple(range(1, bell.ndim)), keepdims=True))
            return np.asarray((1.0 - _INWARD) * radius * bell / np.maximum(lengths, _TINY))
        case Targets(low=low, high=high) if low > -np.inf:
            return np.where(bell < 0.0, low, high)
        case Targets():
            return bell
    return None
