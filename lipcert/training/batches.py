"""Batches: what a collate function gives, cut along the axis of examples.

What enters: tensors and arrays with the examples along their first axis, in any nesting of tuples,
lists and mappings. What leaves: the same structure with some of the examples, or with none.
Invariant: all tensors of a structure hold equally many examples; anything else is refused, because
it cannot be known which axis is that of the examples.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any, Final

import numpy as np
from torch import Tensor

from lipcert.errors import UsageError

_CONSTANTS: Final = (str, bytes, bool, int, float, type(None))


def examples_in(batch: Any) -> int:
    """How many examples a structure holds; UsageError where its tensors do not agree on it."""
    sizes = {_length(leaf) for leaf in _tensors(batch)}
    if len(sizes) != 1:
        found = "no tensor" if not sizes else f"first axes of sizes {sorted(sizes)}"
        raise UsageError(
            f"batch: {found}, so that the number of examples is unknown; let collate_fn put the "
            "examples along the first axis of every tensor"
        )
    return sizes.pop()


def split(batch: Any, size: int) -> Iterator[Any]:
    """The structure in slices of at most `size` examples; an empty one is a slice of its own."""
    if size < 1:
        raise UsageError(f"batch: slices of {size} examples; give 1 or more")
    total = examples_in(batch)
    for start in range(0, max(total, 1), size):
        yield _sliced(batch, total, slice(start, start + size))


def empty_batch(dataset: Any, collate: Callable[[list[Any]], Any]) -> Any:
    """What `collate` would give for no example, which it is never asked for.

    Learnt from example 0 alone and from two copies of it: where both, cut to no example, do not
    come out the same, what is left depends on the examples, and the answer is a UsageError.
    """
    bare = []
    for count in (1, 2):
        batch = collate([dataset[0] for _ in range(count)])
        if examples_in(batch) != count:
            raise _unknown(f"{count} examples come out of collate_fn as {examples_in(batch)}")
        bare.append(_sliced(batch, count, slice(0)))
    if not _alike(*bare):
        raise _unknown("what collate_fn gives besides one row for each example depends on them")
    return bare[0]


def _tensors(value: Any) -> Iterator[Tensor | np.ndarray[Any, Any]]:
    if isinstance(value, Tensor | np.ndarray):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _tensors(item)
    elif not isinstance(value, _CONSTANTS):
        raise _unknown(f"a {type(value).__name__} cannot be cut")


def _length(leaf: Tensor | np.ndarray[Any, Any]) -> int:
    if leaf.ndim == 0:
        raise _unknown("a single number stands for all examples together")
    return len(leaf)


def _sliced(value: Any, total: int, part: slice) -> Any:
    """The part of a structure of `total` examples; lists of words of that length are cut too."""
    if isinstance(value, Tensor):
        return value[part] if part.stop else value.new_empty((0, *value.shape[1:]))
    if isinstance(value, np.ndarray):
        return value[part] if part.stop else np.empty((0, *value.shape[1:]), value.dtype)
    if isinstance(value, Mapping):
        return _mapped(value, {key: _sliced(item, total, part) for key, item in value.items()})
    if isinstance(value, tuple | list):
        if value and len(value) == total and all(isinstance(item, _CONSTANTS) for item in value):
            return value[part]
        return _sequence(value, [_sliced(item, total, part) for item in value])
    return value


def _mapped(like: Mapping[Any, Any], items: dict[Any, Any]) -> Any:
    if isinstance(like, MutableMapping):  # one of another class may take other arguments
        clone = copy.copy(like)
        clone.update(items)
        return clone
    return type(like)(items)  # type: ignore[call-arg]


def _sequence(like: tuple[Any, ...] | list[Any], items: list[Any]) -> Any:
    if isinstance(like, tuple) and hasattr(like, "_fields"):
        return type(like)(*items)
    return type(like)(items)


def _alike(first: Any, second: Any) -> bool:
    """Whether two structures without examples are the same."""
    if type(first) is not type(second):
        return False
    if isinstance(first, Tensor | np.ndarray):
        return bool(first.dtype == second.dtype and first.shape == second.shape)
    if isinstance(first, Mapping):
        return first.keys() == second.keys() and all(_alike(first[k], second[k]) for k in first)
    if isinstance(first, tuple | list):
        return len(first) == len(second) and all(map(_alike, first, second))
    return bool(first == second)


def _unknown(reason: str) -> UsageError:
    return UsageError(
        f"batch: {reason}; a batch that happens to be empty must have the form of the others, so "
        "collate_fn has to give tensors (in tuples, lists, mappings) with one row for each example"
    )
