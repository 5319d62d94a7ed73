"""Lower operators that select, repeat or pad entries along axes other than the batch axis.

torch's exporter writes `chunk` and `split` as sequences of the parts of one value, from which later
nodes take one by its position, unless its optimiser runs.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

import numpy as np

from lipcert.core.kinds import Compare, Embedding, MaskedMean, Sort
from lipcert.core.lower.call import Call, Sink
from lipcert.core.lower.entrywise import broadcast, expanded
from lipcert.core.lower.errors import Unsupported
from lipcert.core.lower.layout_ops import check_apart, check_kept, normal_axes, same_order
from lipcert.core.lower.moves import arrange, indices, move
from lipcert.core.lower.spelling import apply, reduced, whole
from lipcert.core.lower.values import FIXED, Arrange, Constant, Data, Value, check_size, only_data
from lipcert.core.program import IndexArray, Move, Operand, Place
from lipcert.core.token_kinds import Shift

CHOSEN = "it selects by numbers that are computed from the data"

_ENDLESS = 2**31 - 1
"""A slice that ends here or later reaches to the end of the axis."""


def names_own(value: Value, axis: int, places: Constant) -> bool:
    """Whether all places along the batch axis lie in the part of their own example.

    Proof: with S entries for each example side by side, those of example i begin at S·i.
    """
    if value.place != Place(axis) or places.place is None or places.varies is None:
        return False
    size, first = value.shape[axis], places.lo
    return bool((places.varies == size).all() and (first >= 0).all() and (first < size).all())


def select(call: Call, value: Value, axis: int, places: Sequence[int]) -> Value:
    """Select entries along one axis, which is not the batch axis."""
    check_kept(value, (axis,))
    if isinstance(places, range):
        return arrange(call, value, _ranged(axis, places), value.place)
    return _taken(call, value, axis, np.asarray(places, dtype=np.int64), value.place)


def _ranged(axis: int, places: range) -> Arrange:
    """Return the arrangement that selects a range of places within the axis."""
    stop = places.stop if places.stop >= 0 else None
    chosen = (*[slice(None)] * axis, slice(places.start, stop, places.step))
    return lambda entries: entries[chosen if len(places) else (*chosen[:-1], slice(0, 0))]


def _taken(call: Call, value: Value, axis: int, places: IndexArray, place: Place | None) -> Value:
    """Select entries at places within the axis; the axes of the places replace it."""
    check_size((*value.shape[:axis], places.size, *value.shape[axis + 1 :]))
    copies = int(np.bincount(places.reshape(-1)).max()) if places.size else 0
    return arrange(call, value, lambda entries: np.take(entries, places, axis), place, copies)


def slice_(call: Call) -> Value:
    """Lower Slice: ranges of entries; along the batch axis only all of them, in order."""
    value = call.value(0)
    rank = len(value.shape)
    if call.version < 10:
        starts, ends = call.integers("starts") or [], call.integers("ends") or []
        axes, steps, grows = call.integers("axes"), None, [False] * len(ends)
    else:
        starts, (ends, grows) = call.whole(1), call.constant(2).sizes()
        axes = call.whole(3) if call.has(3) else None
        steps = call.whole(4) if call.has(4) else None
    named = list(range(len(starts))) if axes is None else [axis % rank for axis in axes]
    normal_axes(named, rank)
    steps = steps or [1] * len(starts)
    for axis, start, stop, step, grown in zip(named, starts, ends, steps, grows, strict=True):
        size = value.shape[axis]
        if value.place is not None and axis == value.place.axis:
            is_whole = stop == size if grown else stop >= _ENDLESS
            is_first = (start, stop, step, size, grown) == (0, 1, 1, 1, False)
            if is_first and isinstance(value, Constant) and not value.marks.any():
                value = replace(value, place=None)  # every example has the entries of the first
                continue
            if start != 0 or step != 1 or not is_whole:
                raise Unsupported(f"it selects along the batch axis {axis}")
            continue
        if grown or step == 0:
            raise Unsupported("a slice depends on the size of the batch, or has no step")
        if step < 0 and start < -size:
            raise Unsupported("a slice begins outside of its axis")
        places = range(size)[start:stop:step]
        value = select(call, value, axis, places)
    return value


def split(call: Call) -> list[Value]:
    """Lower Split: return the parts along an axis."""
    value = call.value(0)
    (axis,) = normal_axes([call.integer("axis", 0)], len(value.shape))
    check_kept(value, (axis,))
    count, size = len(call.node.outputs), value.shape[axis]
    given = call.whole(1) if call.has(1) and call.version >= 13 else None
    sizes = call.integers("split") if call.version < 13 else given
    if call.integer("num_outputs", count) != count:
        raise Unsupported("it has another number of outputs than it says")
    if sizes is None:
        part = -(-size // count)
        if call.version < 18 and size % count:
            raise Unsupported("its parts are not equal")
        sizes = [min(part, size - part * k) for k in range(count)]
    if len(sizes) != count:
        raise Unsupported("its parts do not make up the whole")
    return _parts(call, value, axis, sizes)


def _parts(call: Call, value: Value, axis: int, sizes: Sequence[int]) -> list[Value]:
    """Return parts of these lengths along an axis."""
    if sum(sizes) != value.shape[axis] or min(sizes, default=0) < 0:
        raise Unsupported("its parts do not make up the whole")
    ends = pairwise(accumulate(sizes, initial=0))
    return [select(call, value, axis, range(*between)) for between in ends]


def cut(call: Call) -> list[Value]:
    """Lower SplitToSequence: parts of given lengths, of one length, or of length 1 each."""
    value = call.value(0)
    (axis,) = normal_axes([call.integer("axis", 0)], len(value.shape))
    size, keeps = value.shape[axis], call.integer("keepdims", 1)
    if not call.has(1):
        if not keeps:
            raise Unsupported("keepdims=0 is not supported; squeeze the parts instead")
        lengths = [1] * size
    elif call.constant(1).shape:
        lengths = call.whole(1)
    else:
        (chunk,) = call.whole(1)
        starts = range(0, size, chunk) if chunk > 0 else ()
        lengths = [min(chunk, size - start) for start in starts]
    call.sink.sequences[call.node.outputs[0]] = _parts(call, value, axis, lengths)
    return []


def part(call: Call) -> Value:
    """Lower SequenceAt: return the part at a constant position."""
    parts, (place,) = call.sink.sequences.get(call.node.inputs[0]), call.whole(1)
    if parts is None:
        raise Unsupported("only the parts of a value cut by SplitToSequence are followed")
    if not -len(parts) <= place < len(parts):
        raise Unsupported("its position is out of range")
    return parts[place]


def counted(constant: Constant, sizes: IndexArray | int) -> IndexArray:
    """Return places counted from the front, of each example or of all; refuse any out of range."""
    entries = replace(constant, place=None).whole()
    places = np.asarray(entries, dtype=np.int64).reshape(constant.shape)
    if (places < -sizes).any() or (places >= sizes).any():
        raise Unsupported("an index is out of range")
    return np.asarray(places % sizes)


def gather(call: Call) -> Value:
    """Lower Gather: entries of an axis at constant places, whose axes replace it; or table rows.

    Places that depend on the data must name rows of their own example; see `picked`.

    Proof for places that are repeated for every example, or name entries of their own: each entry
    of the result lies where its place lay, behind the axes in front of the one that is read.
    """
    value, chosen = call.value(0), call.value(1)
    if isinstance(value, Constant) and isinstance(chosen, Data):
        return _embedded(call, value, chosen)
    if isinstance(value, Data) and isinstance(chosen, Data):
        rows, *rest = value.shape
        if call.integer("axis", 0) or chosen.kind != "own" or chosen.below != rows:
            raise Unsupported(CHOSEN)
        own = same_order(call, value, (1, *value.shape), [True, False, *[False] * len(rest)])
        return picked(call, only_data(own), chosen)
    places = call.constant(1)
    (axis,) = normal_axes([call.integer("axis", 0)], len(value.shape))
    is_own = names_own(value, axis, places)
    if is_own:
        value, places = replace(value, place=None), replace(places, varies=None)
    check_kept(value, (axis,))
    wanted, place = counted(places, value.shape[axis]), value.place
    if places.place is not None:
        if place is not None:
            raise Unsupported(FIXED)
        place = Place(axis + places.place.axis, places.place.before)
    elif place is not None and place.axis > axis:
        place = Place(place.axis + wanted.ndim - 1, place.before)
    return _taken(call, value, axis, wanted, place)


def picked(call: Call, value: Data, places: Data) -> Value:
    """Select entries of [1, T, ...] along axis 1, one for each whole number in [1, ...]."""
    count, size, rest = math.prod(places.shape), value.shape[1], value.shape[2:]
    batch = [True, False, False, False]
    flat = same_order(call, value, (1, 1, size, math.prod(rest)), batch)
    given = same_order(call, places, (1, count, 1, 1), batch)
    found = picked_along(call, only_data(flat), only_data(given), 2)
    shape = (*places.shape, *rest)
    return same_order(call, found, shape, [axis == 0 for axis in range(len(shape))])


def named(call: Call, places: Data, axis: int, size: int) -> Data:
    """Return 1 at the place along an axis of this size that a whole number names, 0 elsewhere."""
    shape = (*places.shape[:axis], size, *places.shape[axis + 1 :])
    wide = only_data(apply(call, "Unsqueeze", places, whole(len(shape))))
    wide = expanded(call, wide, (*shape, 2), places.place)
    ends = np.stack([np.arange(size), np.arange(-size, 0)], axis=1).astype(np.float64)
    limits = np.broadcast_to(ends.reshape(size, *(1,) * (len(shape) - axis - 1), 2), wide.shape)
    equal = call.step(Compare(limits, above=False), wide, shape=wide.shape, place=wide.place)
    return only_data(reduced(call, "ReduceMax", equal, (len(shape),), keep=False))


def one_hot(call: Call) -> Value:
    """Lower OneHot of whole numbers of the data, by `named` along a new axis."""
    places, depth, ends = call.data(), int(call.number(1)), call.constant(2)
    (axis,) = normal_axes([call.integer("axis", -1)], len(places.shape) + 1)
    if places.is_real or ends.lo is not ends.hi or ends.lo.tolist() != [0, 1] or depth < 1:
        raise Unsupported("it jumps, or has other values than 0 and 1")
    _note_rows(call.sink, places.name, depth)
    hot = named(call, only_data(apply(call, "Unsqueeze", places, whole(axis))), axis, depth)
    return replace(hot, kind="real" if ends.is_float else "flag")


def picked_along(call: Call, value: Data, places: Data, axis: int) -> Data:
    """Select the entries along an axis that whole numbers, of length 1 along it, name.

    A mask shows only the entry that k, or k − T from the end of T entries, names; for all other
    numbers, which name nothing in the file, it shows none. Proof that examples stay apart: an entry
    of the mask lies where its number lay, and it meets entries of its example.
    """
    mask = named(call, places, axis, value.shape[axis])
    full, place = broadcast((value, mask))
    shown = expanded(call, value, full, place)
    kept = (*full[:axis], 1, *full[axis + 1 :])
    return call.step(MaskedMean((axis,), 1.0), shown, mask, shape=kept, place=place)


def _note_rows(sink: Sink, name: str, rows: int) -> None:
    """Record that whole numbers choose among this many rows of a table.

    This is followed back through steps that only move the numbers, or add the first row of their
    part; other steps change the numbers.
    """
    makers = {step.output: step for step in sink.steps}
    while name in makers:
        op = makers[name].op
        if isinstance(op, Shift) and (op.offset.lo >= 0.0).all():
            rows -= int(op.offset.hi.max())
        elif not isinstance(op, Move):
            return
        (name,) = makers[name].inputs
    if rows < 1:
        return
    sink.ids[name] = min(rows, sink.ids.get(name, rows))


def _embedded(call: Call, table: Constant, chosen: Data) -> Value:
    """Select rows of a constant table by whole numbers of the data; each lies where its number lay.

    Proof that examples stay apart: a row replaces each entry, behind all existing axes.
    """
    is_table = len(table.shape) > 1 and table.place is None and call.integer("axis", 0) == 0
    if chosen.kind not in {"whole", "row", "flag", "count"} or not is_table:
        raise Unsupported(CHOSEN)
    width = table.shape[1:]
    rows = table.rearranged(lambda entries: entries.reshape(len(entries), -1), None)
    shape, place = (*chosen.shape, math.prod(width)), chosen.place
    _note_rows(call.sink, chosen.name, len(rows.lo))
    found = call.step(Embedding(rows.operand(2)), chosen, shape=shape, place=place)
    if len(width) == 1:
        return found
    return arrange(call, found, lambda entries: entries.reshape(*chosen.shape, *width), place)


def pad(call: Call) -> Value:
    """Lower Pad: surround a value by a number, or by its own entries; negative pads cut."""
    value = call.value(0)
    rank = len(value.shape)
    mode = call.text("mode", "constant")
    if mode not in {"constant", "reflect", "edge", "wrap"}:
        raise Unsupported("its mode is not known")
    if call.version < 11:
        pads, number, axes = call.integers("pads") or [], call.real("value", 0.0), None
    else:
        pads, number = call.whole(1), call.number(2) if call.has(2) else 0.0
        axes = call.whole(3) if call.has(3) else None
    named = list(range(rank)) if axes is None else [axis % rank for axis in axes]
    normal_axes(named, rank)
    if len(pads) != 2 * len(named):
        raise Unsupported("its pads do not fit")
    index = indices(value.shape)
    for axis, begin, end in zip(named, pads[: len(named)], pads[len(named) :], strict=True):
        if begin or end:
            check_kept(value, (axis,))
            index = _padded(index, axis, begin, end, mode)
    result = move(call, value, index, value.place)
    if mode != "constant" or number == 0.0 or not (index < 0).any():
        return result
    if isinstance(result, Constant):
        raise Unsupported("a constant is padded with another number than 0")
    offset = np.where(index < 0, number, 0.0)
    return call.step(Shift(Operand(offset, offset)), result, shape=result.shape, place=result.place)


def _padded(index: IndexArray, axis: int, begin: int, end: int, mode: str) -> IndexArray:
    size = index.shape[axis]
    start, stop = max(0, -begin), size - max(0, -end)
    if start > stop or (mode != "constant" and (begin < 0 or end < 0)):
        raise Unsupported("its pads cut more than there is")
    if mode in {"reflect", "wrap"} and max(begin, end) > size - (mode == "reflect"):
        raise Unsupported("its pads repeat more than there is")
    kept = np.take(index, range(start, stop), axis=axis)
    widths = [(0, 0)] * index.ndim
    widths[axis] = (max(0, begin), max(0, end))
    check_size((*index.shape[:axis], size + sum(widths[axis]), *index.shape[axis + 1 :]))
    padded: IndexArray = (
        np.pad(kept, widths, constant_values=-1)
        if mode == "constant"
        else np.pad(kept, widths, mode=mode)  # type: ignore[call-overload]
    )
    return padded


def top(call: Call) -> list[Value]:
    """Lower TopK: sort along an axis, and keep the largest or smallest entries."""
    value = call.data()
    (axis,) = normal_axes([call.integer("axis", -1)], len(value.shape))
    count = call.integer("k", 0) if call.version < 10 else call.whole(1)[0]
    size = value.shape[axis]
    largest, ordered = call.integer("largest", 1), call.integer("sorted", 1)
    if not 1 <= count <= size or (not ordered and count > 1):
        raise Unsupported("the entries are in no known order, or too many")
    check_apart(value, (axis,))
    rising = call.step(Sort(axis), value, shape=value.shape, place=value.place)
    places = range(size - 1, size - 1 - count, -1) if largest else range(count)
    return [select(call, rising, axis, places)]
