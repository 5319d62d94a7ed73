"""Values of any type that the codec knows, drawn from its type hint."""

import dataclasses
import enum
import types
import typing
from collections.abc import Mapping
from fractions import Fraction
from typing import Annotated, Any, Literal

from hypothesis import strategies as st

from lipcert.core.codec import Limit, Sha256

WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
SCALARS: dict[object, st.SearchStrategy[Any]] = {
    str: WORDS,
    int: st.integers(0, 1 << 53),
    bool: st.booleans(),
    float: NUMBERS.map(lambda x: x + 0.0),  # no -0.0
    Fraction: st.fractions(0, max_denominator=10**9),
    types.NoneType: st.none(),
    Sha256: st.text("0123456789abcdef", min_size=64, max_size=64),
    object: WORDS | st.integers(0, 9) | st.lists(WORDS, max_size=2),
}


def values_of(
    hint: Any, given: Mapping[object, st.SearchStrategy[Any]] = SCALARS
) -> st.SearchStrategy[Any]:
    """Everything of a type. given: of types that are drawn otherwise."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)

    def of(part: Any) -> st.SearchStrategy[Any]:
        return values_of(part, given)

    if hint in given:
        return given[hint]
    if origin is Annotated:
        found = of(inner[0])
        for mark in inner[1:]:
            found = found.filter(mark.holds) if isinstance(mark, Limit) else found
        return found
    if origin in {typing.Union, types.UnionType}:
        return st.one_of([of(part) for part in inner])
    if origin is Literal:
        return st.sampled_from(inner)
    if origin is tuple and inner[1:] == (...,):
        return st.lists(of(inner[0]), max_size=2).map(tuple)
    if origin is tuple:
        return st.tuples(*[of(part) for part in inner])
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return st.dictionaries(of(inner[0]), of(inner[1]), max_size=2)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return st.sampled_from(hint)
    hints = typing.get_type_hints(hint, include_extras=True)
    members = {item.name: of(hints[item.name]) for item in dataclasses.fields(hint)}
    return st.builds(hint, **members)
