"""Conversion: values as people write them in Python, as the types that records declare.

Integers become floats, scalars of numpy or torch plain numbers, lists tuples, texts constraints; a
value of another type is a `UsageError` that names the key and says what to give. Invariant: nothing
is rounded, and nothing is guessed: a bool or a text is not a number, a float with a fraction is not
a count.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias, TypeVar

from lipcert.errors import UsageError

Kind: TypeAlias = Callable[[str, object], object]
"""makes of a key and a value the value of its type"""

_T = TypeVar("_T")
_PAIR = 2


def convert(record: object, kinds: Mapping[str, Kind]) -> None:
    """Convert fields of a frozen record in place, while it is made; None stays "not given"."""
    for field, kind in kinds.items():
        value = getattr(record, field)
        if value is not None:
            object.__setattr__(record, field, kind(field.replace("_", "-"), value))


def number(key: str, value: object) -> float:
    """A float64 of the same value; NaN and infinities are numbers here."""
    plain = _plain(value)
    if not isinstance(plain, int | float) or isinstance(plain, bool):
        raise UsageError(f"{key}: {_shown(value)} is not a number; give one, such as 1.0")
    try:
        found = float(plain)
    except OverflowError:
        found = math.inf
    if found != plain and not math.isnan(found):
        raise UsageError(f"{key}: {plain} is not a float64; give a number that is one")
    return found


def whole(key: str, value: object) -> int:
    """An int; a float only where it has no fraction."""
    plain = _plain(value)
    if isinstance(plain, float) and plain.is_integer():
        return int(plain)
    if not isinstance(plain, int) or isinstance(plain, bool):
        raise UsageError(f"{key}: {_shown(value)} is not a whole number; give one, such as 1")
    return int(plain)


def switch(key: str, value: object) -> bool:
    """True or False, and nothing else."""
    plain = _plain(value)
    if not isinstance(plain, bool):
        raise UsageError(f"{key}: {_shown(value)} is neither true nor false")
    return plain


def word(key: str, value: object) -> str:
    """A text as it is given."""
    if not isinstance(value, str):
        raise UsageError(f"{key}: {_shown(value)} is not a name; give a text")
    return value


def pair(key: str, value: object) -> tuple[float, float]:
    """Two numbers, such as two ends."""
    items = _items(value)
    if items is None or len(items) != _PAIR:
        raise UsageError(f"{key}: {_shown(value)} is not a pair; give (LO, HI), such as (0.0, 1.0)")
    return number(key, items[0]), number(key, items[1])


def names(key: str, value: object) -> tuple[str, ...]:
    """Texts; one alone is a list of one."""
    items = [value] if isinstance(value, str) else _items(value)
    if items is None:
        raise UsageError(f"{key}: {_shown(value)} is not a list of names; give ('NAME', 'GLOB*')")
    return tuple(word(key, item) for item in items)


def table(key: str, value: object, kind: Callable[[str, object], _T]) -> tuple[tuple[str, _T], ...]:
    """Names with a value each, from a mapping or from pairs."""
    items = list(value.items()) if isinstance(value, Mapping) else _items(value)
    pairs = [] if items is None else [_items(item) for item in items]
    if items is None or any(item is None or len(item) != _PAIR for item in pairs):
        raise UsageError(f"{key}: {_shown(value)} is not a table; give {{'NAME or GLOB': value}}")
    return tuple((word(key, item[0]), kind(f"{key}, {item[0]}", item[1])) for item in pairs if item)


def _plain(value: Any) -> object:
    """What a scalar of numpy or torch holds; anything else is itself."""
    is_scalar = getattr(value, "shape", None) == () and callable(getattr(value, "item", None))
    return value.item() if is_scalar else value


def _items(value: object) -> list[object] | None:
    """What a list, a tuple or a one-dimensional array holds; None for anything else."""
    if isinstance(value, list | tuple):
        return list(value)
    is_array = len(getattr(value, "shape", ())) == 1 and isinstance(value, Iterable)
    return list(value) if is_array and isinstance(value, Iterable) else None


def _shown(value: object) -> str:
    """A value as a message has it, in a line."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}…"
