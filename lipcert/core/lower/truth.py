"""Lower whole numbers of the data (sums, products, comparisons) and truth values.

A truth value is a step that is 0 or 1, or the opposite of one. Whole numbers are isolated, so a
function of them may jump without harm; every comparison of real numbers is refused.

Sums, products and casts may wrap around in the file, for numbers that are larger than any table.
Such a `row` is used only as a row of a table, a place or a truth value, and bounds hold for any, if
one value of the program is one tensor of the file: so a `row` that is compared gets its own value.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from lipcert.core.kinds import Compare, Concat
from lipcert.core.lower.call import Call, Sink
from lipcert.core.lower.entry_ops import times
from lipcert.core.lower.entrywise import broadcast, combined, expanded, scaled
from lipcert.core.lower.errors import MixingError, Unsupported
from lipcert.core.lower.layout_ops import check_apart, normal_axes
from lipcert.core.lower.operators import JUMPS, REALS
from lipcert.core.lower.spelling import apply, reduced, whole
from lipcert.core.lower.values import UNKNOWN, VARIES, Constant, Data, Kind, Value, only_data
from lipcert.core.program import Move, Operand, Place, operands
from lipcert.core.reader.records import Node
from lipcert.core.token_kinds import Hide, Multiply, Scale, Shift

_BOOL, _INT32, _INT64 = 9, 6, 7
_INTEGERS = frozenset({_INT32, _INT64})
_MOST_EXACT = 1 << 53
_TRUTHS = frozenset({"truth", "untruth"})
_COUNTED = frozenset({"flag", "count", "row"})
_WHOLE = _COUNTED | {"whole"}
_PLACES = _WHOLE | {"own", "pair"}
_CHOICES = frozenset({"Gather", "GatherElements", "GatherND"})
_MOVES = frozenset(
    {"DepthToSpace", "Expand", "Flatten", "Gather", "GatherND", "Identity", "Reshape", "Slice"}
    | {"SpaceToDepth", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze"}
)
"""Operators that move whole numbers without changing them."""
_JUDGED = frozenset(
    {"And", "ArgMax", "ArgMin", "Cast", "CastLike", "Equal", "Greater", "GreaterOrEqual", "Less"}
    | {"LessOrEqual", "Not", "OneHot", "Or"}
)
"""Operators whose rules handle whole numbers and truth values themselves."""


def judged(node: Node, inputs: list[Value | None]) -> tuple[Kind | None, list[Value | None]]:
    """Return the kind of a node's result from values that are not real, and the rule's inputs.

    A kind of None means that the rule decides. Raise Unsupported if no rule does: rules apply to
    real numbers, and so not to a division that drops the remainder. Counts are too small to wrap
    around.
    """
    kinds: list[Kind] = [value.kind if isinstance(value, Data) else "real" for value in inputs]
    if node.op_type in {"Shape", "Size"}:
        return None, inputs
    name, first = "" if node.domain else node.op_type, kinds[0]
    is_table = name in {"Gather", "GatherElements"} and not isinstance(inputs[0], Data)
    is_choice = name in _CHOICES and first == "real" and kinds[1] in _PLACES
    if name in _JUDGED or is_table or is_choice or (name == "Where" and first in _TRUTHS):
        return None, inputs
    if name in _MOVES and first not in {"real", "own", "pair"}:
        return first, inputs
    if name == "Concat" and not _TRUTHS.isdisjoint(kinds):
        return None, inputs
    is_counted = name in {"Add", "Concat"} and any(map(_is_counted, inputs))
    if is_counted or (name == "Add" and sorted(kinds) == ["hiding", "real"]):
        return None, inputs
    if name == "Max" and any(map(_is_counted, inputs)):
        return None, [value and _shape_of(value) for value in inputs]
    if name in {"CumSum", "ReduceSum"} and first == "flag":
        return "count", inputs
    if name == "Mul" and "flag" in kinds and _COUNTED.issuperset(kinds):
        return next((kind for kind in kinds if kind != "flag"), "flag"), inputs
    if name in {"Clip", "Max"} and all(
        value.kind == "count" for value in inputs if isinstance(value, Data)
    ):
        return "count", inputs
    if name in {"Add", "Concat", "Mul", "Sub"}:
        return "row", [value and _as_reals(value) for value in inputs]
    if name in {"CumSum", "ReduceSum"} and first in _WHOLE:
        return "row", inputs
    raise Unsupported("it computes with whole numbers that depend on the data")


def cast_whole(call: Call) -> Value:
    """Lower a Cast of values that are not real numbers, to a type that represents them.

    Proof for int32: larger numbers wrap around, so that the file reads rows of a table where the
    program has none; bounds hold for any row. So it is with numbers that were rounded as reals
    before they become truth values.
    """
    value, target = call.data(), call.integer("to", 0)
    if target == _BOOL:
        value = only_data(_counted(call, value))
    call.integer("saturate", 1), call.text("round_mode", "up")
    match value.kind:
        case "hiding" if target in REALS:
            return value
        case "truth" | "untruth" if target == _BOOL:
            return value
        case "truth" | "untruth" if target in REALS:
            return number_of(call, value)
        case "truth" | "untruth" if target in _INTEGERS:
            return replace(number_of(call, value), kind="flag")
        case "whole" | "count" if target == _INT32:
            return replace(value, kind="row")
        case "row" | "flag" if target in _INTEGERS:
            return value
        case "whole" | "count" if target == _INT64:
            return value
        case "whole" | "flag" | "count" if target in REALS:
            return replace(value, kind="real")
        case "whole" | "flag" | "count" | "row" if target == _BOOL:
            return _opposite(_compared(call, _apart(call, value), np.zeros(()), above=False))
    raise Unsupported("it rounds to whole numbers, or to fewer of them")


def _counted(call: Call, value: Value) -> Value:
    """Return whole numbers for reals that are ids, counts or truth values, cast, moved and joined.

    So is a constant of whole reals, which no parameter is then.
    """
    if isinstance(value, Constant):
        if not value.is_float or not _are_whole(value):
            return value
        call.sink.untracked.update(value.sources)
        return Constant.of(value.lo.astype(np.int64), value.place, value.varies)
    read = read_by_ids(call.sink, value)
    if read is None:
        return value
    call.sink.untracked.update(read)
    return replace(value, kind="row")


def read_by_ids(sink: Sink, value: Data) -> set[str] | None:
    """Return the tensors behind real numbers that are whole ones of the data; None for others."""
    names, made, read = {value.name}, set[str](), set[str]()
    for step in reversed(sink.steps):
        if step.output in names and not isinstance(step.op, Compare):
            numbers = operands(step.op)
            is_kept = isinstance(step.op, Concat | Move | Scale | Shift)
            if not is_kept or not all(map(_are_whole, numbers)):
                return None
            names.update(step.inputs)
            read.update(name for item in numbers for name in item.sources)
        made.add(step.output)
    ids = {item.name for item in sink.model.inputs if "int" in item.dtype}
    return read if value.is_real and names - made <= ids else None


def _are_whole(value: Constant | Operand) -> bool:
    found = (np.abs(value.lo) < _MOST_EXACT) & (value.lo == np.floor(value.lo))
    return value.lo is value.hi and bool(found.all())


def as_other_type(call: Call, value: Value, like: Value) -> Value:
    """Convert whole numbers of the data to some whole-number type, which may wrap them around.

    Constants are passed on if the type is int64: that of moved ids, if no input has another. Where
    the type is not known, neither is what the file computes from them.
    """
    if isinstance(value, Constant) and isinstance(like, Data) and like.kind == "whole":
        if {item.dtype for item in call.sink.model.inputs if "int" in item.dtype} != {"int64"}:
            raise Unsupported("it converts a constant to a type that is not int64")
        return value
    is_whole = like.kind in _WHOLE if isinstance(like, Data) else like.lo.dtype.kind in "iu"
    if not is_whole or not isinstance(value, Data) or value.kind not in _WHOLE:
        raise Unsupported("it computes with whole numbers that depend on the data")
    return value if value.kind == "flag" else replace(value, kind="row")


def _compared(call: Call, value: Data, limits: np.ndarray, *, above: bool) -> Data:
    op = Compare(np.broadcast_to(limits.astype(np.float64), value.shape), above)
    return replace(call.step(op, value, shape=value.shape, place=value.place), kind="truth")


def comparison(call: Call) -> Value:
    """Lower Equal, Greater, GreaterOrEqual, Less, LessOrEqual, of whole numbers."""
    first, second = (_counted(call, item) for item in call.values())
    kind = call.node.op_type
    if not all(item.kind in _WHOLE for item in (first, second) if isinstance(item, Data)):
        raise Unsupported(JUMPS)
    if isinstance(first, Data) and isinstance(second, Data):
        first, second = combined(call, (first, second), (1, -1)), whole(0)
    data, limits = (first, second) if isinstance(first, Data) else (second, first)
    if not isinstance(data, Data) or not isinstance(limits, Constant):
        raise Unsupported(JUMPS)
    if limits.lo.dtype.kind not in "iu" or limits.lo is not limits.hi:
        raise Unsupported("whole numbers are compared with others")
    limits.check_fixed()
    numbers = limits.lo.astype(np.float64)
    if (np.abs(numbers) >= _MOST_EXACT).any():
        raise Unsupported("a whole number is too large")
    shape, place = broadcast((data, limits))
    value = expanded(call, _apart(call, data), shape, place)
    if kind == "Equal":
        return _compared(call, value, numbers, above=False)
    is_above = kind.startswith("Greater") == (data is first)
    is_strict = not kind.endswith("OrEqual")
    # x ≥ c is x > c − 1, and x < c is its opposite
    found = _compared(call, value, numbers - (is_strict != is_above), above=True)
    return found if is_above else _opposite(found)


def _apart(call: Call, value: Data) -> Data:
    """Return a new value for a `row`, as other tensors of the file may share its value here."""
    if value.kind != "row":
        return value
    return combined(call, (value, Constant.of(np.zeros((1,) * len(value.shape)))), (1, 1))


def _opposite(value: Data) -> Data:
    return replace(value, kind="untruth" if value.kind == "truth" else "truth")


def _only_truth(value: Value) -> Data:
    if not isinstance(value, Data) or value.kind not in _TRUTHS:
        raise Unsupported("it computes with truth values and others")
    return value


def opposite(call: Call) -> Value:
    """Lower Not: the opposite of a truth value."""
    return _opposite(_only_truth(call.value(0)))


def both(call: Call) -> Value:
    """Lower And and Or: the product of two truth values, or the opposite of their opposites'."""
    is_and, numbers, known = call.node.op_type == "And", [], None
    for value in call.values():
        if isinstance(value, Constant):
            known = value
        else:
            truth = _only_truth(value)
            numbers.append(number_of(call, truth if is_and else _opposite(truth)))
    shape, place = broadcast(call.values())
    if known is None:
        found = call.step(Multiply(), *numbers, shape=shape, place=place)
    else:
        flags = _truths(known) if is_and else ~_truths(known)
        factor = Constant.of(flags.astype(np.float64), known.place)
        (number,) = numbers
        is_same = bool(flags.all())
        found = expanded(call, number, shape, place) if is_same else times(call, number, factor)
    return replace(found, kind="truth" if is_and else "untruth")


def _truths(known: Constant) -> npt.NDArray[np.bool_]:
    known.check_fixed()
    if known.lo.dtype.kind != "b":
        raise Unsupported("it computes with truth values and others")
    return known.lo


def number_of(call: Call, value: Data) -> Data:
    """Return 1 where the truth value is true, 0 elsewhere."""
    if value.kind == "untruth":
        value = _compared(call, value, np.zeros(()), above=False)
    return replace(value, kind="real")


def numbers_of(call: Call, values: Sequence[Value]) -> list[Value]:
    """Truth values, each 1 where it is true, 0 elsewhere."""
    return [
        Constant.of(_truths(value).astype(np.float64), value.place)
        if isinstance(value, Constant)
        else number_of(call, _only_truth(value))
        for value in values
    ]


def _hidden(call: Call, value: Value, mask: Data) -> Data:
    """Return the value, or −inf where the mask is 1."""
    shape, place = broadcast((value, mask))
    if isinstance(value, Constant):
        if value.uniform() != 0.0:
            raise Unsupported("a constant is not finite")
        call.sink.untracked.update(value.sources)
        return replace(expanded(call, mask, shape, place), kind="hiding")
    if not value.is_real:
        raise Unsupported("it computes with whole numbers that depend on the data")
    return call.step(Hide(), value, mask, shape=shape, place=place)


def other_sum(call: Call) -> Value:
    """Add 0 or −inf, or whole numbers, or count rows of the own example through the batch."""
    first, second = call.value(0), call.value(1)
    for value, other in ((second, first), (first, second)):
        if isinstance(other, Data) and other.kind == "hiding":
            return _hidden(call, value, replace(other, kind="real"))
        if isinstance(other, Data) and isinstance(value, Constant) and _is_counted(value):
            if value.lo.any() or (value.shape, value.place) != (other.shape, other.place):
                raise Unsupported(VARIES)
            (rows,) = set(value.marks.flat)
            if not 0 < other.below <= rows:
                raise MixingError(
                    "a position of the data may be negative, and name a row of another example;"
                    " take the result of an argmax, or export with torch.export"
                )
            return replace(other, kind="own", below=int(rows))
    return combined(call, (first, second), (1, 1))


def _is_counted(value: Value | None) -> bool:
    """Whether a constant depends on the number of the example."""
    return isinstance(value, Constant) and bool(value.marks.any())


def _shape_of(value: Value) -> Constant:
    """Return a constant in place of whole numbers of which only the shape is read."""
    if isinstance(value, Constant):
        return value
    varies = np.full(value.shape, UNKNOWN, np.int64)
    return Constant.of(np.zeros_like(varies), value.place, varies)


def paired(call: Call) -> Value:
    """Join the number of each example with whole numbers of its data behind it."""
    own, chosen = call.value(0), call.data(len(call) - 1)
    is_number = isinstance(own, Constant) and not own.lo.any() and bool((own.marks == 1).all())
    shape, axis = chosen.shape, call.integer("axis", 0)
    fits = len(call) == 2 and (own.shape, own.place) == (shape, chosen.place)
    if not is_number or not fits or chosen.kind not in _WHOLE:
        raise Unsupported(VARIES)
    if axis not in {-1, len(shape) - 1} or shape[-1] != 1 or chosen.place == Place(len(shape) - 1):
        raise Unsupported("it joins along the batch axis")
    return replace(chosen, shape=(*shape[:-1], 2), kind="pair", below=0)


def largest_place(call: Call) -> Value:
    """Lower ArgMax and ArgMin of whole numbers: the first place of the largest one, or the last.

    Proof: at only one place is a number as large as all others, and larger than those before it
    (or behind it, if the last one counts).
    """
    value, sign = call.data(), 1 if call.node.op_type == "ArgMax" else -1
    if value.kind not in _WHOLE:
        raise Unsupported(JUMPS)
    rank, is_last = len(value.shape), call.integer("select_last_index", 0)
    (axis,) = normal_axes([call.integer("axis", 0)], rank)
    check_apart(value, (axis,))
    size = value.shape[axis]
    own = apply(call, "Unsqueeze", value, whole(axis + 1))
    others = apply(call, "Unsqueeze", value, whole(axis))
    away = combined(call, (own, others), (sign, -sign))
    stricter = np.tri(size, k=-1).T if is_last else np.tri(size, k=-1)
    limits = (stricter - 1.0).reshape(size, size, *(1,) * (rank - axis - 1))
    wins = replace(_compared(call, away, limits, above=True), kind="real")
    count = only_data(reduced(call, "ReduceSum", wins, (axis + 1,), keep=False))
    hot = replace(_compared(call, count, np.asarray(size - 1.0), above=True), kind="real")
    numbers = np.arange(float(size)).reshape(size, *(1,) * (rank - axis - 1))
    place = times(call, hot, Constant.of(numbers))
    keep = bool(call.integer("keepdims", 1))
    found = only_data(reduced(call, "ReduceSum", place, (axis,), keep=keep))
    return replace(found, kind="row", below=size)


def _as_reals(value: Value) -> Value:
    """Return whole numbers as real numbers."""
    if isinstance(value, Data):
        if value.is_real:
            raise Unsupported("it computes with whole numbers that depend on the data")
        return value
    real = value.lo.astype(np.float64)
    if value.lo.dtype.kind not in "iu" or (np.abs(real) >= _MOST_EXACT).any():
        raise Unsupported("a whole number is too large, or it is none")
    return Constant.of(real, value.place, value.varies)


def chosen(call: Call) -> Value:
    """Lower Where: m·a + (1 − m)·b for a truth value m, which is always 0 or 1."""
    condition = _only_truth(call.value(0))
    first, second, parts = call.value(1), call.value(2), []
    shape, place = broadcast([condition, first, second])
    cases = (first, second, condition), (second, first, _opposite(condition))
    for value, other, flag in cases:
        if isinstance(value, Constant) and value.is_float and np.isneginf(value.hi).all():
            call.sink.untracked.update(value.sources)
            found = _hidden(call, other, number_of(call, flag))
            return replace(expanded(call, found, shape, place), kind=found.kind)
    for value, _, flag in cases:
        if isinstance(value, Data):
            if not value.is_real:
                raise Unsupported("it computes with whole numbers that depend on the data")
            mask = number_of(call, flag)
            own, where = broadcast((value, mask))
            parts.append(call.step(Multiply(), value, mask, shape=own, place=where))
        elif not value.is_float or not (np.isfinite(value.lo) & np.isfinite(value.hi)).all():
            raise Unsupported("a constant is not finite")
        elif value.uniform() == 0.0:
            call.sink.untracked.update(value.sources)
        else:
            parts.append(times(call, number_of(call, flag), value))
    if not parts:
        return scaled(call, expanded(call, number_of(call, condition), shape, place), 0.0)
    return expanded(call, combined(call, parts, (1,) * len(parts)), shape, place)
