"""Examples: read from data and checked against model and loss, or drawn at random.

`DataSet` reads a source; `random_examples` draws admissible inputs and labels. Both give
`Examples`; a NoVerdictError says what is wrong and where. Nothing is skipped or rescaled silently.

Bounds cover admissible labels only. `checked_labels` turns an array of labels, one for each
example, into class numbers [examples] for a loss over several classes, or else into float64 targets
[examples, *output shape]; for several outputs into a float64 matrix, with the class number or the
targets of one output beside those of the next. Labels are only reshaped; one-hot rows are read as
their class, and targets that exceed their limit by rounding are shortened to it.

`outside` compares inputs, as they were fed to the network, with the declared domain, to which alone
the bounds apply. Numbers are compared exactly: every float type embeds in float64, and a norm
counts as too large only if rounding cannot be the reason. `settled` moves into the domain what only
rounding left outside.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from lipcert.core.losses.base import NO_LABEL, ClassLoss, Loss
from lipcert.core.losses.joint import Joint
from lipcert.core.losses.joint import Part as LossPart
from lipcert.core.losses.tokens import Scores, scores_of
from lipcert.core.program import FloatArray, Part, Shape
from lipcert.data.opening import open_source
from lipcert.data.source import Block, Columns, Identity, Source, joined, require_pair
from lipcert.errors import NoVerdictError
from lipcert.gradient_stats.labels import label_set
from lipcert.graph.domain import Domain
from lipcert.graph.ir import example, places_of
from lipcert.losses import parameters, targets_of
from lipcert.settings.settings import Settings

RANDOM: Final = "random admissible inputs"
_FLOATS: Final = frozenset({"f"})
_MOST_BYTES: Final = 1 << 28
"""Most bytes of examples that a measurement holds at once."""


@dataclass(frozen=True, slots=True, eq=False)
class Examples:
    """Inputs [examples, *shape] of a float or integer type, and their labels [examples, ...].

    source: where they come from, for messages.
    is_private: whether what is learned from them costs privacy; true for all that are read.
    is_drawn: whether they were drawn instead of read, with random labels.
    """

    x: npt.NDArray[Any]
    y: npt.NDArray[Any]
    source: str
    is_private: bool = True
    is_drawn: bool = False

    def __len__(self) -> int:
        return len(self.x)

    @property
    def count(self) -> int:
        """The number of examples read."""
        return len(self.x)

    def read(self, start: int, stop: int) -> Examples:
        """Return examples start to stop − 1."""
        return replace(self, x=self.x[start:stop], y=self.y[start:stop])

    def take(self, index: npt.NDArray[np.int64]) -> Examples:
        """Return the examples with these numbers, in this order."""
        return replace(self, x=self.x[index], y=self.y[index])


class DataSet:
    """The examples of a source, checked as they are read; only requested ones are held in memory.

    source: its name, for messages. count: how many there are; None if unknown before the end.
    """

    def __init__(self, source: Source, shape: Shape) -> None:
        self.source = source.name
        self.count = source.count
        self._source, self._shape = source, shape
        self._blocks: Iterator[Block] = iter(())
        self._rest: list[Block] = []
        self._at = -1

    @property
    def identity(self) -> Identity:
        """A digest that changes when the data do."""
        return self._source.identity()

    def read(self, start: int, stop: int) -> Examples:
        """Return examples start to stop − 1, or to the end of the data.

        If each call begins where the last one ended, the source is read once.
        """
        if start != self._at:
            self._blocks, self._rest, self._at = self._source.blocks(start), [], start
        wanted = stop - start
        while sum(len(x) for x, _ in self._rest) < wanted:
            block = next(self._blocks, None)
            if block is None:
                break
            self._rest.append(block)
        if not self._rest:
            return self._nothing()
        x, y = joined(self._rest)
        self._rest = [(x[wanted:], y[wanted:])] if len(x) > wanted else []
        self._at = start + min(len(x), wanted)
        return self._checked((x[:wanted], y[:wanted]), start)

    def take(self, index: npt.NDArray[np.int64]) -> Examples:
        """Return the examples with these numbers, in this order; the count must be known."""
        return self._checked(self._source.take(index)) if len(index) else self._nothing()

    def some(self) -> Examples:
        """Return as many as a measurement can hold: evenly spaced, or the first without a count."""
        most = max(_MOST_BYTES // (8 * math.prod(self._shape)), 1)
        if not self.count and not len(self.read(0, 1)):
            raise NoVerdictError(f"{self.source} holds no examples; give one or more")
        if self.count is None or self.count <= most:
            return self.read(0, most)
        return self.take(np.linspace(0, self.count - 1, most).astype(np.int64))

    def _checked(self, block: Block, first: int = 0) -> Examples:
        return checked_examples(*block, self._shape, self.source, first)

    def _nothing(self) -> Examples:
        return Examples(np.zeros((0, *self._shape)), np.zeros(0, np.int64), self.source)


Readable: TypeAlias = Examples | DataSet
"""Anything that is read by example numbers."""


def open_data(
    where: object, shape: Shape, columns: Columns | None = None, name: str = "the examples"
) -> DataSet:
    """Open the data that a path or word names or an object holds, as examples of this shape."""
    return DataSet(open_source(where, columns or Columns(), name), shape)


def checked_examples(
    x: npt.NDArray[Any], y: npt.NDArray[Any], shape: Shape, source: str, first: int = 0
) -> Examples:
    """Return the arrays as examples of the given shape.

    first: the number of the first example, for messages.

    Raises:
        NoVerdictError: if shapes or types do not fit, or a value of x is not finite.
    """
    if x.dtype.kind not in "fiu" or y.dtype.kind not in "fiub":
        raise NoVerdictError(
            f"{source} holds x of type {x.dtype} and y of type {y.dtype}; numbers are needed"
        )
    require_pair(x, y, source)
    if x.shape[1:] != tuple(shape):
        raise NoVerdictError(
            f"{source} holds examples of shape {list(x.shape[1:])}, but the model reads "
            f"{list(shape)}; reshape x to [examples, {', '.join(map(str, shape))}]"
        )
    bad = _first_bad(x)
    if bad is not None:
        raise NoVerdictError(
            f"{source}, x: example {first + bad} holds NaN or infinity; no bound covers it, so "
            "remove it, or find out how it got into the data"
        )
    return Examples(x, y, source)


def _first_bad(x: npt.NDArray[Any]) -> int | None:
    """Return the index of the first example with an entry that is not finite."""
    if x.dtype.kind not in _FLOATS:
        return None
    finite = np.isfinite(x).all(axis=tuple(range(1, x.ndim)))
    return None if finite.all() else int(np.argmin(finite))


@np.errstate(all="ignore")
def random_examples(
    shape: Shape,
    domain: Domain,
    loss: Loss,
    output_shape: Shape,
    count: int,
    *,
    seed: int = 0,
) -> Examples | None:
    """Draw examples of this shape by `Domain.uniform`; the same seed gives the same ones.

    The result is None if the admissible labels are unknown.
    """
    random = np.random.default_rng(seed)
    try:
        labels = label_set(loss, output_shape).drawn(count, random)
    except NoVerdictError:
        return None
    x = domain.uniform(count, random)
    return Examples(x.reshape(count, *shape), labels, RANDOM, is_private=False, is_drawn=True)


_Labels = npt.NDArray[Any]
_ROUNDINGS: Final = 8.0
"""Labels scaled to the limit in their own dtype may exceed it by this many of its roundings."""


def checked_labels(
    loss: Loss, labels: _Labels, output_shape: Shape, first: int = 0
) -> npt.NDArray[Any]:
    """Return the labels as `per_example_loss` takes them.

    first: the number of the first example, for messages.

    Raises:
        NoVerdictError: if labels do not fit the loss or the output, or are not admissible.
    """
    array = np.asarray(labels)
    if array.dtype.kind not in "biuf":
        raise NoVerdictError(
            f"labels of type {array.dtype} are not numbers: give class numbers or targets as "
            "integers or floats"
        )
    if array.ndim == 0:
        raise NoVerdictError(
            "labels: one number is not a list of labels; give one for each example"
        )
    if isinstance(loss, Joint):
        return _of_parts(loss, array, first)
    if not isinstance(loss, ClassLoss):
        return _targets(loss, array, output_shape, first)
    scores = scores_of(loss, output_shape)
    if scores is None:
        raise NoVerdictError(
            f"labels: the output of an example has shape {output_shape}, and it is not stated "
            f"which of its axes holds the classes of the loss {loss.kind!r}; end the network in "
            "one vector of class scores, or state a loss per token"
        )
    if loss.per_token is not None:
        return _of_tokens(loss, array, scores, first)
    if scores.classes > 1:
        return _class_numbers(loss, array, scores.classes, first)
    if not loss.of_one_score:
        raise NoVerdictError(
            f"labels: the loss {loss.kind!r} needs several class scores, the network has one; "
            "use the loss bce"
        )
    return _targets(loss, array, output_shape, first)


def _of_parts(loss: Joint, array: _Labels, first: int) -> FloatArray:
    """Return labels of several outputs as one row of numbers for each example."""
    columns = loss.label_slices
    rows = array.reshape(len(array), -1) if array.size else np.zeros((0, columns[-1].stop))
    if rows.shape[1] != columns[-1].stop:
        widths = [at.stop - at.start for at in columns]
        said = (f"{part.output}: {n}" for part, n in zip(loss.parts, widths, strict=True))
        raise NoVerdictError(
            f"labels of shape {array.shape}: {columns[-1].stop} numbers are needed for each "
            f"example, those of one output beside those of the next ({', '.join(said)})"
        )
    found = [
        _of_part(part, rows[:, at], first) for part, at in zip(loss.parts, columns, strict=True)
    ]
    return np.concatenate(found, axis=1)


def _of_part(part: LossPart, own: _Labels, first: int) -> FloatArray:
    """Return labels of one of several outputs: a column of classes, or one for each entry."""
    shape, width = example(part.shape), own.shape[1]
    try:
        if not part.is_of_classes:
            own = own.reshape(len(own), *shape)
        elif own.dtype.kind == "f":  # class numbers beside float targets must be whole
            whole = np.all(own == np.round(own), axis=1)
            _require(whole, own, first, "is not a whole number, and so not a class")
            own = own.astype(np.int64)
        found = checked_labels(part.loss, own, shape, first)
    except NoVerdictError as error:
        raise NoVerdictError(f"output {part.output!r}: {error}") from None
    return np.asarray(found.reshape(len(own), width), np.float64)


def _class_numbers(loss: Loss, array: _Labels, classes: int, first: int) -> npt.NDArray[np.int64]:
    """Return class numbers [examples] from class numbers or one-hot rows."""
    numbers = array.reshape(len(array), -1) if array.size else array.reshape(len(array), 0)
    if numbers.shape[1] == classes and classes > 1:
        return _from_one_hot(loss, numbers, first)
    if len(array) == 0:
        return np.zeros(0, dtype=np.int64)
    if numbers.shape[1] != 1:
        raise NoVerdictError(
            f"labels of shape {array.shape}: the loss {loss.kind!r} needs one class number, or "
            f"one one-hot row of {classes}, for each example"
        )
    if array.dtype.kind not in "iu":
        raise NoVerdictError(
            f"labels of type {array.dtype}: class numbers are integers; convert them with "
            "y.astype(int) if they are whole numbers"
        )
    column = numbers[:, 0]
    _require(
        (column >= 0) & (column < classes), column, first, f"is not a class from 0 to {classes - 1}"
    )
    found: npt.NDArray[np.int64] = column.astype(np.int64)
    return found


def _of_tokens(loss: Loss, array: _Labels, scores: Scores, first: int) -> npt.NDArray[np.int64]:
    """Return a class number, or `NO_LABEL`, for each token: [examples, tokens]."""
    given = _without_ones(array.shape[1:])
    if given not in {_without_ones(scores.token_shape), _without_ones((scores.tokens,))}:
        raise NoVerdictError(
            f"labels of shape {array.shape}: the loss {loss.kind!r} per token needs one class "
            f"number for each token, that is shape [examples, "
            f"{', '.join(map(str, _without_ones(scores.token_shape) or (1,)))}]"
        )
    if array.dtype.kind not in "iu":
        raise NoVerdictError(
            f"labels of type {array.dtype}: class numbers are integers; convert them with "
            "y.astype(int) if they are whole numbers"
        )
    rows = array.reshape(len(array), scores.tokens).astype(np.int64)
    known = (rows == NO_LABEL) | ((rows >= 0) & (rows < scores.classes))
    what = f"has a token whose label is not a class from 0 to {scores.classes - 1}, nor {NO_LABEL}"
    _require(np.all(known, axis=1), rows, first, what)
    return rows


def _from_one_hot(loss: Loss, rows: _Labels, first: int) -> npt.NDArray[np.int64]:
    is_one_hot = np.all((rows == 0) | (rows == 1), axis=1) & (np.sum(rows == 1, axis=1) == 1)
    _require(
        is_one_hot,
        rows,
        first,
        f"is not one-hot; the bounds of the loss {loss.kind!r} hold for one class per example",
    )
    return np.asarray(np.argmax(rows, axis=1), dtype=np.int64)


def _targets(loss: Loss, array: _Labels, output_shape: Shape, first: int) -> FloatArray:
    """Return float64 targets in the shape of the output; only axes of length 1 may differ."""
    if _without_ones(array.shape[1:]) != _without_ones(output_shape):
        raise NoVerdictError(
            f"labels of shape {array.shape}: the loss {loss.kind!r} needs one target for each "
            f"output, that is shape [examples, {', '.join(map(str, output_shape))}]"
        )
    targets = np.asarray(array, dtype=np.float64).reshape(len(array), *output_shape)
    rows = targets.reshape(len(array), int(np.prod(output_shape, dtype=np.int64)))
    _require(np.all(np.isfinite(rows), axis=1), rows, first, "is not finite")
    admissible = targets_of(loss)
    if admissible is None:
        raise NoVerdictError(f"labels: which the loss {loss.kind!r} admits is not known")
    low, high = admissible.low, admissible.high
    if admissible.only_ends:
        ok = np.all((rows == low) | (rows == high), axis=1)
        what = f"is neither {low:g} nor {high:g}, the classes of a single output"
        _require(ok, rows, first, what)
    elif low > -np.inf:
        ok = np.all((rows >= low) & (rows <= high), axis=1)
        _require(ok, rows, first, f"is outside [{low:g}, {high:g}]")
    if admissible.norm < np.inf:
        stated = (
            "the stated --label-norm"
            if "label_norm" in parameters(loss)
            else "1; divide each target by its norm"
        )
        rows = _shortened(array, rows, admissible.norm, first, stated)
    return rows.reshape(targets.shape)


def _shortened(array: _Labels, rows: FloatArray, limit: float, first: int, why: str) -> FloatArray:
    """Return rows of norm at most the limit; those above it by their own rounding are shortened.

    Proof: a computed norm of n entries is off by less than n·2^-52 of itself, and the factor by a
    few units more.
    """
    own = float(np.finfo(array.dtype).eps) if array.dtype.kind == "f" else 0.0
    spacing = max(own, float(np.finfo(np.float64).eps))
    largest = np.max(np.abs(rows), axis=1, initial=0.0)  # no square overflows or vanishes
    scaled = rows / np.where(largest > 0.0, largest, 1.0)[:, np.newaxis]
    norms = largest * np.linalg.norm(scaled, axis=1)
    allowed = limit * (1.0 + _ROUNDINGS * spacing)
    _require(norms <= allowed, norms, first, f"is the norm of its target, larger than {why}")
    if limit == 0.0:
        return rows
    longest = limit * (1.0 - (rows.shape[1] + 8) * float(np.finfo(np.float64).eps))
    drawn: FloatArray = rows * (longest / np.maximum(norms, longest))[:, np.newaxis]
    return drawn


def _require(ok: npt.NDArray[np.bool_], shown: _Labels, first: int, what: str) -> None:
    if np.all(ok):
        return
    index = int(np.argmin(ok))
    value = np.array2string(np.asarray(shown[index]), threshold=6, edgeitems=2, separator=", ")
    value = " ".join(value.split())
    raise NoVerdictError(
        f"labels: example {first + index}: {value} {what} "
        f"({int(np.sum(~ok))} of {len(ok)} labels are not admissible)"
    )


def _without_ones(shape: Shape) -> Shape:
    return tuple(length for length in shape if length != 1)


DRAWN_IN: Final = 1.0 - 2.0**-20
"""Share of the radius to which training scales examples; rounding the result adds less than the
rest."""
_ROUNDING: Final = 2.0**-52


@np.errstate(over="ignore")
def outside(
    x: npt.NDArray[Any], settings: Settings, inputs: Sequence[Part] = ()
) -> list[tuple[int, str]]:
    """Return each inadmissible example of x [examples, ...] with the reason, in order.

    inputs: those of the file; inputs of ids admit only whole numbers.

    An example that was scaled to the radius R and then stored may have a norm of (1 + u)·R, u the
    largest relative error of rounding an entry to its type: it counts as admissible. So does the
    possible error n·2^-52 of the sum of n squares, and an entry that is an end of the box as
    rounded to the type of x.
    """
    flat, dtype = _flat(x), _type(x, settings)
    found: dict[int, str] = {}
    for entries in _whole(inputs):
        found |= _fractions(flat[:, entries])
    for domain in settings.domains:
        numbers = flat[:, domain.entries]
        found |= _of(domain.input, _beyond_box(numbers, domain.box, dtype))
        found |= _of(domain.input, _beyond_norm(numbers, domain.norm, dtype))
    return sorted(found.items())


def _type(x: npt.NDArray[Any], settings: Settings) -> np.dtype[Any]:
    """Return the type in which the examples were stored.

    Several inputs, ids among them, are joined in float64, whatever type each had.
    """
    if settings.input_parts and x.dtype == np.float64:
        single = x.astype(np.float32)
        return single.dtype if np.array_equal(single, x) else x.dtype
    return x.dtype


def _of(name: str, found: dict[int, str]) -> dict[int, str]:
    """Add the name of the input to each reason, if there are several inputs."""
    return {i: f"in its input {name!r} {why}" for i, why in found.items()} if name else found


def _beyond_box(
    flat: FloatArray, box: tuple[float, float] | None, dtype: np.dtype[Any]
) -> dict[int, str]:
    if box is None:
        return {}
    low, high = _stored_ends(box, dtype)
    least, most = flat.min(axis=1, initial=low), flat.max(axis=1, initial=high)
    found = {}
    for index in np.flatnonzero((least < low) | (most > high)):
        worst = least[index] if least[index] < low else most[index]
        found[int(index)] = f"has the entry {worst:.6g} outside [{low:.6g}, {high:.6g}]"
    return found


def _fractions(flat: FloatArray) -> dict[int, str]:
    found = {}
    for index in np.flatnonzero((flat != np.rint(flat)).any(axis=1)):
        worst = flat[index][flat[index] != np.rint(flat[index])][0]
        found[int(index)] = f"has the entry {worst:.6g}, which is not a whole number"
    return found


def _beyond_norm(flat: FloatArray, radius: float | None, dtype: np.dtype[Any]) -> dict[int, str]:
    if radius is None:
        return {}
    norms = np.sqrt(np.sum(flat * flat, axis=1))
    rounding = flat.shape[1] * _ROUNDING + _unit(dtype)
    return {
        int(index): f"has the norm {norms[index]:.9g}, above the radius {radius:.9g}"
        for index in np.flatnonzero(norms > radius * (1.0 + rounding))
    }


def settled(
    x: npt.NDArray[Any],
    radius: float,
    settings: Settings,
    inputs: Sequence[Part] = (),
    share: float = 1.0,
) -> FloatArray:
    """Return admissible examples in float64: what rounding left outside of box or ball is moved
    inside.

    radius: bound of the norm of an admissible example. inputs: those of the file; ids are not
    changed. share: the share of each radius within which the results must lie.

    Proof: the computed norm of n entries is off by less than a factor of 1 + n·2^-52, and as much
    is left free. The box holds the segment from x to its point c nearest to 0, on which the norm is
    convex: at c + t(x − c) it is at most ‖c‖ + t(‖x‖ − ‖c‖). So moving several inputs together
    leaves none of them longer than it was, or than its own point c.
    """
    given = _flat(x)
    low, high = np.full(given.shape[1], -math.inf), np.full(given.shape[1], math.inf)
    for domain in settings.domains:
        if domain.box is not None:
            low[domain.entries], high[domain.entries] = domain.box
    flat, centre = np.clip(given, low, high), np.clip(0.0, low, high)
    balls = [(item.entries, item.norm) for item in settings.domains if item.input]
    for entries, norm in (*balls, (slice(None), radius)):
        if norm is not None:
            flat[:, entries] = _drawn_in(flat[:, entries], centre[entries], norm * share)
    flat = np.clip(flat, low, high)
    for entries in _whole(inputs):
        flat[:, entries] = given[:, entries]
    return flat.reshape(x.shape)


def _whole(inputs: Sequence[Part]) -> Iterator[slice]:
    """Yield the entries of an example that are ids."""
    return (where for part, where in places_of(inputs) if part.ids is not None)


def _drawn_in(flat: FloatArray, centre: FloatArray, radius: float) -> FloatArray:
    """Move examples that are longer than the radius towards the centre until they are short
    enough."""
    least = float(np.sqrt(np.sum(centre * centre)))
    wanted = radius * (1.0 - flat.shape[1] * _ROUNDING)
    norms = np.sqrt(np.sum(flat * flat, axis=1))[:, None]
    far = norms > wanted
    if not (least < wanted and np.any(far)):
        return flat
    part = (wanted - least) / (np.where(far, norms, wanted) - least)
    return np.where(far, centre + part * (flat - centre), flat)


def _stored_ends(box: tuple[float, float], dtype: np.dtype[Any]) -> tuple[float, float]:
    """Return the box with its ends rounded to a type, where that is further out."""
    if dtype.kind != "f":
        return box
    low, high = np.asarray(box).astype(dtype).astype(np.float64).tolist()
    return min(box[0], low), max(box[1], high)


def _flat(x: npt.NDArray[Any]) -> FloatArray:
    """Return one row for each example, in float64, exactly."""
    return np.asarray(x, dtype=np.float64).reshape(len(x), math.prod(x.shape[1:]))


def _unit(dtype: np.dtype[Any]) -> float:
    """Return the relative error of one rounding to a type; 0 for integers, which are exact."""
    return float(np.finfo(dtype).eps) if dtype.kind == "f" else 0.0
