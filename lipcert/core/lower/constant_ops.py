"""Compute with constants: real numbers as intervals, some functions also of whole numbers."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial, reduce
from operator import mul, truediv
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lipcert.core.arithmetic import divide_up, multiply_up, sqrt_up
from lipcert.core.interval import Interval, absolute, clip, down, exact, norm_up, up
from lipcert.core.lower.call import Call
from lipcert.core.lower.casts import EXACT, as_held, halves_in, is_held, or_rounded
from lipcert.core.lower.constant_node import sum_of_sources
from lipcert.core.lower.entrywise import broadcast, interval, negative, quotient
from lipcert.core.lower.errors import Unsupported
from lipcert.core.lower.exact_constants import ARITHMETIC, exactly, held_for_all, within
from lipcert.core.lower.slopes import chained, of_entries, repeated, with_blocks
from lipcert.core.lower.spelling import reduced_axes, without_axes
from lipcert.core.lower.values import (
    FIXED,
    SAME,
    TIMES,
    UNKNOWN,
    VARIES,
    Constant,
    Value,
    check_size,
    is_finite,
)
from lipcert.core.program import PLUS, Acts, Added, Place, Shape, then
from lipcert.core.reader.records import Tensor
from lipcert.core.rules.activations import function

Array = npt.NDArray[Any]
_FEW: Final = 64
_LARGEST: Final = 1 << 900
_MOST_FACTORS: Final = 4096
_MOST_WHOLE: Final = 1 << 22
_MOST_PRODUCTS: Final = 1 << 33
_MOST_TERMS: Final = 8


def _is_finite(known: Interval) -> bool:
    return is_finite(known.lo) and is_finite(known.hi)


def _by_ends(
    constants: Sequence[Constant], act: Callable[..., Array], varies: Array | None = None
) -> Constant:
    """Apply a function that increases in all its arguments to intervals, entry by entry.

    Every entry is one of the arguments' entries there, so that no derivative exceeds 1.
    """
    _, place = broadcast(constants)
    low = np.asarray(act(*(item.lo for item in constants)))
    is_exact = all(item.lo is item.hi for item in constants)
    high = low if is_exact else np.asarray(act(*(item.hi for item in constants)))
    slopes = chained(*((item, repeated(item, low.shape)) for item in constants))
    return Constant(low, high, sum_of_sources(*constants), place, varies, slopes=slopes)


# real numbers ---------------------------------------------------------------------------------


def real_arithmetic(call: Call, found: list[Constant]) -> Value:
    """Lower Add, Sub, Mul, Div of two constants of real numbers, and Sum of any number of them.

    A single number is treated as a plain one, so that a product is linear in the other factor, and
    a sum affine in the other term, unless it is computed from that, as a norm is, or a function of
    a tensor of its own, as an exponential is.
    """
    operation = call.node.op_type
    if operation == "Sum":
        return reduce(partial(_computed, call, "Add"), found)
    for source, single in ((0, 1),) if operation == "Div" else ((0, 1), (1, 0)):
        own, other = found[source].sources, found[single].sources
        is_plain = math.inf not in other.values() and own.keys().isdisjoint(other)
        if is_plain and own and found[single].lo.size == 1 < found[source].lo.size:
            call.sink.untracked.update(found[single].sources)
            found[single] = replace(found[single], sources={}, blocks={})
    first, second = found
    return _computed(call, operation, first, second)


def _repeated(constant: Constant, shape: Shape, place: Place | None) -> Constant:
    """Return the constant, broadcast to a shape."""
    if (constant.shape, constant.place) == (shape, place):
        return constant
    copies = math.prod(shape) // max(math.prod(constant.shape), 1)
    return constant.rearranged(lambda own: np.broadcast_to(own, shape), place, copies)


def _computed(call: Call, operation: str, first: Constant, second: Constant) -> Constant:
    shape, place = broadcast((first, second))
    left, right = interval(first), interval(second)
    for source, other in ((first, second), (second, first)):
        if operation == "Add" and not (other.sources or other.lo.any() or other.hi.any()):
            return _repeated(source, shape, place)
    if operation in {"Mul", "Div"} and not (_is_finite(left) and _is_finite(right)):
        raise Unsupported("a constant is not finite")  # 0·∞ is not a number
    result = _exact_result(operation, left, right, shape)
    is_once = result is not None and not halves_in(call.sink)
    if result is None and operation == "Div":
        result = left * quotient(second)
    elif result is None:
        result = ARITHMETIC[operation](left, right)
    result = as_held(call.sink, result)
    sources, acts = _origin(operation, first, second)
    terms: tuple[Constant, ...] = ()
    if sources and operation in {"Add", "Sub"} and acts is None:
        parts = (first, second if operation == "Add" else negative(second))
        terms = sum_of([_repeated(part, shape, place) for part in parts])
    found = Constant(result.lo, result.hi, sources, place, acts=acts, terms=terms, once=is_once)
    if not any(gain == math.inf for gain in sources.values()):
        return found
    from lipcert.core.lower.blocks import of_pair  # noqa: PLC0415  for such alone

    return of_pair(found, operation, first, second, call.sink.model.initializers)


def _exact_result(
    operation: str, first: Interval, second: Interval, shape: tuple[int, ...]
) -> Interval | None:
    """Return the result for few exact numbers, or whole ones: exact where float64 represents it.

    Only numbers that float32 represents are accepted: the file has the float32 of the result, on
    which jumps depend, and for other numbers it might have a different one.
    """
    if first.lo is not first.hi or second.lo is not second.hi:
        return None
    if not (_is_finite(first) and _is_finite(second)):
        return None
    if operation in ARITHMETIC and all(
        (np.trunc(item.lo) == item.lo).all() and (np.abs(item.lo) <= EXACT).all()
        for item in (first, second)
    ):
        return exact(np.asarray(ARITHMETIC[operation](first.lo, second.lo)))
    if math.prod(shape) > _FEW or not all(is_held(x.lo, halves=False) for x in (first, second)):
        return None
    if operation == "Div" and not second.lo.all():
        return None
    act = truediv if operation == "Div" else ARITHMETIC[operation]
    pairs = np.broadcast(first.lo, second.lo)
    numbers = [act(Fraction(float(a)), Fraction(float(b))) for a, b in pairs]
    if any(abs(number) > _LARGEST for number in numbers):
        return None
    found = np.asarray([float(number) for number in numbers]).reshape(shape)
    off = np.asarray([Fraction(float(a)) != b for a, b in zip(found.flat, numbers, strict=True)])
    if not off.any():
        return exact(found)
    off = off.reshape(shape)
    return Interval(np.where(off, down(found), found), np.where(off, up(found), found))


def _origin(operation: str, first: Constant, second: Constant) -> tuple[Mapping[str, float], Acts]:
    """Return sources and acts: a source times plain numbers is linear, plus one number affine.

    A product multiplies the gain by the largest factor; a sum keeps it.

    Proof: ‖c·w‖ ≤ max|c|·‖w‖ if w is not repeated, that is, if it has the larger shape. A
    quotient w/c is the product by 1/c. The derivative of w + c is that of w, and w − c = w + (−c),
    c − w = c + (−w).
    """
    if operation == "Sub":
        operation, second = "Add", negative(second)
    source, other = (first, second) if first.sources else (second, first)
    is_linear = operation == "Mul" or (operation == "Div" and source is first)
    is_large = np.broadcast_shapes(source.shape, other.shape) == source.shape
    is_one = other.lo is other.hi and other.lo.size == 1 and is_finite(other.lo)
    if operation == "Add" and source.sources and not other.sources and is_large and is_one:
        return {**source.sources, PLUS: 0.0}, then(source.acts, Added(other.lo.item()))
    if not source.sources or other.sources or not (is_linear and is_large):
        return sum_of_sources(first, second), None
    factor = quotient(other) if operation == "Div" else interval(other)
    largest = float(factor.magnitude().max(initial=0.0))
    act = truediv if operation == "Div" else mul
    acts = then(source.acts, lambda entries: act(entries, other.lo))
    return {name: multiply_up(gain, largest) for name, gain in source.sources.items()}, acts


def opposite(call: Call) -> Value:
    """Lower Neg: every number with the opposite sign."""
    constant = call.constant(0)
    constant.check_fixed()
    if constant.lo.dtype.kind in "bu":
        raise Unsupported("a number without a sign")
    return negative(constant)


def root(call: Call) -> Value:
    """The square root of every number."""
    constant = call.constant(0)
    known = interval(constant)
    if (known.lo < 0.0).any():
        raise Unsupported("a root of a negative number")
    found = _square_root(known)
    root = Constant(found.lo, found.hi, sum_of_sources(constant), constant.place)
    slopes = (exact(2.0) * found).reciprocal()
    return of_entries(root, constant, slopes) if constant.sources else root


def image_of_constant(value: Constant, name: str, *numbers: float) -> Constant:
    """Return a function of every entry of a constant, with its slopes."""
    value.check_fixed()
    if not value.is_float:
        raise Unsupported("a function of whole numbers")
    known, rule = Interval(value.lo, value.hi), function(name, numbers)
    image = rule.image(known)
    high = image.lo if np.array_equal(image.lo, image.hi) else image.hi
    sources = dict.fromkeys(value.sources, math.inf)
    found = Constant(image.lo, high, sources, value.place)
    if not sources:
        return found
    try:
        return of_entries(found, value, rule.derivative(known))
    except Unsupported:
        return found


# other ----------------------------------------------------------------------------------------


def choice(call: Call) -> Value:
    """Lower Where: one constant or the other, entry by entry.

    The derivative is that of what is chosen, also where a trained tensor decides.
    """
    condition, first, second = (call.constant(place) for place in range(3))
    condition.check_fixed()
    if condition.lo.dtype.kind != "b" or first.lo.dtype.kind != second.lo.dtype.kind:
        raise Unsupported("constants of different types are combined")
    varies = np.where(condition.lo, first.marks, second.marks)
    found = _by_ends((first, second), lambda *ends: np.where(condition.lo, *ends), varies)
    chosen = [(first, condition.lo.any()), (second, not condition.lo.all())]
    slopes = chained(*((item, repeated(item, found.shape)) for item, is_read in chosen if is_read))
    sources = {**found.sources, **condition.sources}
    place = broadcast((condition, first, second))[1]
    return replace(found, place=place, sources=sources, slopes=slopes)


def power(call: Call) -> Value:
    """Lower Pow: c^n, entry by entry; exact for whole numbers."""
    constant, exponent = call.constant(0), call.constant(1)
    shape, place = broadcast((constant, exponent))
    constant.check_fixed()
    exponent.check_fixed()
    numbers, marks = np.unique(exponent.lo), np.broadcast_to(exponent.lo, check_size(shape))
    if exponent.lo is not exponent.hi or len(numbers) > _MOST_FACTORS:
        raise Unsupported("its exponent is not exact, or of too many numbers")
    constant = _repeated(constant, shape, place)
    if constant.is_float and len(numbers) == 1:
        call.sink.untracked.update(exponent.sources)
        power = image_of_constant(constant, "power", float(numbers[0]))
        if constant.sources and numbers[0] == 2:
            from lipcert.core.lower.blocks import square_blocks  # noqa: PLC0415  for such alone

            squares = square_blocks(constant, call.sink.model.initializers)
            return with_blocks(power, power.slopes, {**power.blocks, **squares})
        return power
    if constant.is_float:
        low, high = np.empty(shape), np.empty(shape)
        for number in numbers:
            here = marks == number
            base = Interval(constant.lo[here], constant.hi[here])
            found = function("power", (float(number),)).image(base)
            low[here], high[here] = found.lo, found.hi
        return Constant(low, high, sum_of_sources(constant, exponent), place)
    if not set(numbers.tolist()) <= set(range(64)) or constant.lo.size > _MOST_FACTORS:
        raise Unsupported("its exponent is not a small whole number")
    powers = np.asarray(constant.lo.astype(object) ** marks.astype(object))
    return Constant.of(within(powers, constant.lo.dtype), place)


def absolute_value(call: Call) -> Value:
    """The magnitude of every number of a tensor."""
    constant = call.constant(0)
    if constant.is_float:
        return replace(image_of_constant(constant, "abs"), once=constant.once)
    return exactly(call, np.abs)


def extremum(call: Call) -> Value:
    """Lower Max and Min of several constants, entry by entry.

    For constants that depend on the batch only the shape is known, which exporters read.
    """
    choose = np.minimum if call.node.op_type == "Min" else np.maximum
    found = [call.constant(place) for place in range(len(call))]
    if len({item.lo.dtype for item in found}) > 1:
        raise Unsupported("constants of different types are combined")
    is_same = reduce(np.logical_and, (item.marks == SAME for item in found))
    varies = np.where(is_same, np.int64(SAME), np.int64(UNKNOWN))
    return _by_ends(found, lambda *ends: reduce(choose, ends), varies)


def product(call: Call) -> Value:
    """A product of matrices, of which the first may hold a part for each example, or both a stack.

    Proof: a row of the product is computed from the row of the first one alone, and a matrix of a
    stack from those of both that lie in its place, which belong to the same example. A factor of
    zeros that nobody trains makes zeros of whatever the other one is, which so has no gradient.
    """
    first, second = call.constant(0), call.constant(1)
    left, right = interval(first), interval(second)
    if not first.shape or not second.shape:
        raise Unsupported(FIXED)
    if not _are_stacked(first, second):
        is_last = first.place is not None and first.place.axis == len(first.shape) - 1
        if second.place is not None or is_last or (first.place and len(second.shape) != 2):
            raise Unsupported(FIXED)
    if not (_is_finite(left) and _is_finite(right)):
        raise Unsupported("a constant is not finite")
    a = left.broadcast((1, *left.shape)) if len(left.shape) == 1 else left
    b = right.moved(lambda end: end[:, np.newaxis]) if len(right.shape) == 1 else right
    stack = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    check_size((*stack, a.shape[-2], b.shape[-1]))
    if math.prod(stack) * a.shape[-2] * a.shape[-1] * b.shape[-1] > _MOST_PRODUCTS:
        raise Unsupported("a product of constants is too large")
    found = a @ b
    shape = (*stack, *left.shape[-2:-1], *(right.shape[-1:] if len(right.shape) > 1 else ()))
    if any(not (item.sources or item.lo.any() or item.hi.any()) for item in (first, second)):
        return Constant.of(np.zeros(shape), first.place)
    low, high = found.lo.reshape(shape), found.hi.reshape(shape)
    slopes = chained((first, _size(b, stack)), (second, _size(a, stack)))
    return Constant(low, high, sum_of_sources(first, second), first.place, slopes=slopes)


def _are_stacked(first: Constant, second: Constant) -> bool:
    """Whether two constants of one place hold a stack of matrices for each example."""
    place, stack = first.place, first.shape[:-2]
    if place is None or place != second.place:
        return False
    return place.axis < len(stack) and stack == second.shape[:-2]


def _size(matrices: Interval, stack: tuple[int, ...]) -> float:
    """≥ the norm of A ↦ A·B or B·A for stacked matrices B, repeated along a stack, of any A.

    Proof: ‖A·B‖ ≤ ‖A‖·‖B‖ for each of them, and the squares of these norms are added up.
    """
    copies = math.prod(stack) // max(math.prod(matrices.shape[:-2]), 1)
    return multiply_up(sqrt_up(float(copies)), norm_up(matrices.magnitude()))


def reduction(call: Call) -> Value:
    """Reduce nodes, of which the product is also known of sizes."""
    constant, kind = call.constant(0), call.node.op_type
    axes, keeps = reduced_axes(call, constant)
    if axes is None:
        raise Unsupported("a reduction over no axis")
    varies = None
    if kind == "ReduceProd" and constant.varies is not None:
        count = np.sum(constant.grown(), axis=axes, keepdims=True)
        if (count > 1).any():
            raise Unsupported(VARIES)
        varies = np.where(count > 0, np.int64(TIMES), np.int64(SAME))
    else:
        constant.check_fixed()
    if constant.lo.dtype.kind in "iu":
        whole_numbers = _reduced_whole(kind, constant.lo, axes)
        reduced = Constant.of(whole_numbers, constant.place, varies)
        reduced = replace(reduced, varies=held_for_all(reduced, whole_numbers.dtype))
    else:
        known = _reduced_reals(kind, interval(constant), axes)
        high = known.lo if np.array_equal(known.lo, known.hi) else known.hi
        reduced = Constant(known.lo, high, sum_of_sources(constant), constant.place)
        if constant.sources:
            from lipcert.core.lower.blocks import sum_blocks  # noqa: PLC0415  for such alone

            slopes = chained((constant, _reduced_slope(kind, known, constant, axes)))
            blocks = sum_blocks(kind, constant, known, axes, call.sink.model.initializers)
            reduced = with_blocks(reduced, slopes, blocks)
    return without_axes(call, reduced, axes, keeps=keeps)


def _reduced_slope(kind: str, found: Interval, constant: Constant, axes: tuple[int, ...]) -> float:
    """Return the slope of a reduction with the result `found`; inf if no bound is known.

    Proof: of a sum of n terms, or of their magnitudes, it is √n at most, of a norm or of one of
    them 1, of a sum of squares twice the norm.
    """
    count = math.prod(constant.shape[axis] for axis in axes)
    match kind:
        case "ReduceSum" | "ReduceL1":
            return sqrt_up(float(count))
        case "ReduceMean":
            return divide_up(sqrt_up(float(count)), float(count))
        case "ReduceL2" | "ReduceMax" | "ReduceMin":
            return 1.0
        case "ReduceSumSquare":
            return 2.0 * sqrt_up(float(np.max(found.hi, initial=0.0)))
    return math.inf


_CHOICES: Final[Mapping[str, Callable[..., Any]]] = {"ReduceMax": np.max, "ReduceMin": np.min}
_OF_WHOLE: Final[Mapping[str, Callable[..., Any]]] = {
    **_CHOICES,
    "ReduceProd": np.prod,
    "ReduceSum": np.sum,
}


def _reduced_whole(kind: str, array: Array, axes: tuple[int, ...]) -> Array:
    if array.size > _MOST_WHOLE:
        raise Unsupported(f"it reduces more than {_MOST_WHOLE} whole numbers")
    if kind not in _OF_WHOLE:
        raise Unsupported("of whole numbers")
    found = _OF_WHOLE[kind](array.astype(object), axis=axes, keepdims=True)
    return within(np.asarray(found), array.dtype)


def _reduced_reals(kind: str, known: Interval, axes: tuple[int, ...]) -> Interval:
    """Enclosures of sums of terms, of their roots, or of the largest one."""
    if kind in _CHOICES:
        return known.moved(lambda end: np.asarray(_CHOICES[kind](end, axis=axes, keepdims=True)))
    if not _is_finite(known):
        raise Unsupported("a constant is not finite")
    count = math.prod(known.shape[axis] for axis in axes)
    if kind == "ReduceProd":
        return _factors_multiplied(known, axes, count)
    if kind in {"ReduceL1", "ReduceL2", "ReduceSumSquare"}:
        size = absolute(known)
        known = clip(size if kind == "ReduceL1" else size * size, 0.0, math.inf)
        total = clip(known.sum(axes), 0.0, math.inf)
        return _square_root(total) if kind == "ReduceL2" else total
    total = known.sum(axes)
    if kind == "ReduceMean":
        return total * quotient(Constant.of(np.full((1,) * len(known.shape), float(count))))
    return total


def _square_root(known: Interval) -> Interval:
    """√c, and what float32 arithmetic has in its place: a width's root is rarely a number of it."""
    return or_rounded(known.root())


def _factors_multiplied(known: Interval, axes: tuple[int, ...], count: int) -> Interval:
    if count > _MOST_FACTORS:
        raise Unsupported("a product of too many constants")
    kept = [axis for axis in range(len(known.shape)) if axis not in axes]
    rows = [math.prod(known.shape[axis] for axis in kept)]
    flat = known.moved(lambda end: np.transpose(end, (*axes, *kept)).reshape(count, *rows))
    factors = (Interval(low, high) for low, high in zip(flat.lo, flat.hi, strict=True))
    result = reduce(mul, factors, exact(np.ones(rows)))
    shape = tuple(1 if axis in axes else size for axis, size in enumerate(known.shape))
    return result.moved(lambda end: end.reshape(shape))


def sum_of(parts: Sequence[Constant]) -> tuple[Constant, ...]:
    """Return the terms of a sum of parts of one shape, some of which come from tensors."""
    terms = [term for part in parts for term in part.terms or (part,)]
    terms = [item for item in terms if item.sources or item.lo.any() or item.hi.any()]
    is_plain = all(
        item.is_float and not item.marks.any() and is_finite(item.lo) and is_finite(item.hi)
        for item in terms
    )
    is_sum = len(terms) <= _MOST_TERMS and any(item.sources for item in terms)
    return tuple(terms) if is_plain and is_sum else ()


def beside(
    found: Constant, parts: Sequence[Constant], axis: int, stored: Mapping[str, Tensor]
) -> Constant:
    """`found`, parts one after another, with what it has of tensors.

    Of one tensor, each of whose entries stands there once at most, it is no longer than that.
    Proof: acts move entries, put a 0 in places, or change signs, and all others make whole numbers
    real ones.
    """
    acts = [part.acts for part in parts if part.acts is not None]
    name, *others = {name for part in parts for name in part.sources}
    if len(acts) == len(parts) and not others and name in stored:

        def act(entries: Array) -> Array:
            shown = (reduce(lambda own, then: then(own), each, entries) for each in acts)
            pairs = zip(shown, parts, strict=True)
            return np.concatenate([own.reshape(part.shape) for own, part in pairs], axis)

        places = act(np.arange(1, stored[name].size + 1).reshape(stored[name].dims))
        counts = np.unique(np.abs(places[places != 0]), return_counts=True)[1]
        if places.dtype.kind == "i" and counts.max(initial=0) <= 1:
            return replace(found, sources={name: 1.0}, acts=(act,))
    slopes = chained(*((part, 1.0) for part in parts))
    return replace(found, terms=_terms_beside(parts, axis), slopes=slopes)


def _terms_beside(parts: Sequence[Constant], axis: int) -> tuple[Constant, ...]:
    """Return the terms of parts put one after another: each part with zeros around it."""
    if len(parts) > _MOST_TERMS:
        return ()
    ends = np.cumsum([part.shape[axis] for part in parts])
    padded = []
    for part, end in zip(parts, ends, strict=True):
        widths = [(0, 0)] * len(part.shape)
        widths[axis] = (end - part.shape[axis], ends[-1] - end)
        padded.append(part.rearranged(partial(np.pad, pad_width=widths), part.place))
    return sum_of(padded)
