"""Codec: read records from JSON values, by the type hints of their dataclasses.

    dataclass         an object with a member for every field
    tuple[T, ...]     an array; tuple[A, B] is one of exactly two items
    Mapping[str, T]   an object whose names are data
    T | None          left out if None
    Literal           one of its words; a single word is a constant of the object
    Annotated[T, …]   T within a `Limit`
    object            any value, unchanged

The dialect (`readers`, or a subclass) defines how numbers are spelt, and every further type. The
metadata of a field (`member`) state what its type does not.

The reader takes an untrusted value, and returns the record or raises an error of the dialect with
the path of the fault. Invariant: types are strict (true is not a number, an integer field never
takes a float), and every member is read or refused: the value says no more than the record.
`text.codec` writes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, fields, is_dataclass
from functools import partial, reduce
from math import isfinite
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    TypeAlias,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

_T = TypeVar("_T")
Reader: TypeAlias = Callable[[Any], Any]
"""Returns what it reads; raises `CodecError` for a value of another type."""


class CodecError(ValueError):
    """A value does not have its type. path: its place within the value that is read."""

    def __init__(self, reason: str, path: str = "") -> None:
        super().__init__(f"{path} {reason}")
        self.reason = reason
        self.path = path


@dataclass(frozen=True, slots=True)
class Limit:
    """A condition on values beyond their type. what: completes "is not …" in the error."""

    what: str
    holds: Callable[[Any], bool]


def is_sha256(text: str) -> bool:
    """Whether a text is spelt as a SHA-256 digest; such a text is a harmless file name."""
    return len(text) == 64 and not set(text) - set("0123456789abcdef")


Bound = Annotated[
    float, Limit("a finite number that is not negative", lambda x: x >= 0.0 and isfinite(x))
]
Sha256 = Annotated[str, Limit("a SHA-256 digest", is_sha256)]


def member(
    name: str | None = None, *, optional: bool = False, apart: bool = False
) -> Mapping[str, Any]:
    """Return the metadata of a field.

    name: its name in JSON, if different; "outer.inner" for a member of an inner object "outer".
    optional: left out if the value is the default or empty. apart: not in JSON; the caller that
    reads the record supplies the value.
    """
    return {"name": name, "optional": optional, "apart": apart}


def same(value: Any) -> Any:
    """Read a value by returning it unchanged."""
    return value


def exactly(kind: type[Any], what: str) -> Reader:
    """Return a reader that accepts values of exactly this type, unchanged."""
    return _limited(same, Limit(what, lambda value: type(value) is kind))


class Codec:
    """A dialect: the readers of its types.

    error: the class that `read` raises. largest: of whole numbers. longest: of strings.
    """

    nulls = False
    """Whether None is written as null instead of left out."""
    extra = False
    """Whether unknown members are ignored instead of refused."""

    def __init__(
        self,
        error: type[ValueError],
        readers: Mapping[object, Reader],
        *,
        largest: int = 1 << 53,
        longest: int = 1 << 16,
    ) -> None:
        self._error = error
        whole = Limit("a whole number that is not negative", lambda value: 0 <= value <= largest)
        text = Limit(f"a string of at most {longest} characters", lambda x: len(x) <= longest)
        self._readers: dict[object, Reader] = {
            object: same,
            str: _limited(exactly(str, "a string"), text),
            int: _limited(exactly(int, "a whole number"), whole),
            **readers,
        }
        self._plans: dict[object, list[Member]] = {}

    def read(self, kind: type[_T], value: object, where: str, **apart: object) -> _T:
        """Return the record in a value.

        where: the start of the paths in errors. apart: the fields of the record that are not in
        JSON.
        """
        read = partial(self._record, kind, apart) if apart else self.reader(kind)
        try:
            return cast("_T", inside(where, read, value))
        except CodecError as error:
            raise self._error(str(error)) from None

    def reader(self, hint: object) -> Reader:
        """Return the reader of a type."""
        if hint not in self._readers:
            self._readers[hint] = self.made(hint, get_origin(hint), get_args(hint))
        return self._readers[hint]

    def made(self, hint: Any, origin: Any, inner: tuple[Any, ...]) -> Reader:
        """Build the reader of a type from the readers of its parts."""
        if origin is Annotated:
            return reduce(_limited, inner[1:], self.reader(inner[0]))
        if origin in {Union, UnionType} and inner[1:] == (NoneType,):
            return self.reader(inner[0])
        if origin is tuple:
            return _row([self.reader(item) for item in inner if item is not ...], inner[-1] is ...)
        if origin is Literal:
            return words(dict(zip(inner, inner, strict=True)))
        if isinstance(origin, type) and issubclass(origin, Mapping):
            return mapping(str, self.reader(inner[1]))
        if is_dataclass(hint):
            return partial(self._record, hint, {})
        raise TypeError(f"{hint!r} has no reader")

    def said(self, kind: Any, item: Field[Any]) -> Mapping[str, Any]:
        """Return the metadata of a field, as from `member`; a dialect may override this."""
        del kind
        return item.metadata

    def plan(self, kind: Any) -> list[Member]:
        """Return the members of a record's JSON object."""
        if kind not in self._plans:
            hints = get_type_hints(kind, include_extras=True)
            rows = [(item, {**member(), **self.said(kind, item)}) for item in fields(kind)]
            self._plans[kind] = [
                Member(item, hints[item.name], f".{more['name'] or item.name}", more["optional"])
                for item, more in rows
                if not more["apart"]
            ]
        return self._plans[kind]

    def _record(self, kind: Any, apart: Mapping[str, object], value: Any) -> Any:
        plan = self.plan(kind)
        rest: dict[tuple[str, ...], Any] = {(name,): x for name, x in _only(dict, value).items()}
        for outer in {item.path[0] for item in plan if len(item.path) > 1} & value.keys():
            members = inside(f".{outer}", partial(_only, dict), rest.pop((outer,)))
            rest |= {(outer, name): x for name, x in members.items()}
        found: dict[str, Any] = {}
        for item in plan:
            if item.path in rest:
                read = self.reader(item.hint)
                found[item.field.name] = inside(item.place, read, rest.pop(item.path))
                if item.optional and not found[item.field.name]:
                    raise CodecError("says nothing, and is to be left out", item.place)
            elif not item.optional:
                if self.nulls or NoneType not in get_args(item.hint):
                    raise CodecError("is missing", item.place)
                found[item.field.name] = None
        if rest and not self.extra:
            path = min(rest)
            around = "".join(f".{name}" for name in path[:-1])
            raise CodecError(f"has the unknown member {path[-1][:80]!r}", around)
        try:
            return kind(**found, **apart)
        except ValueError as error:
            raise CodecError(f"is not possible: {error}") from None


@dataclass(frozen=True, slots=True)
class Member:
    """A field of a record, its type, and its place in the object."""

    field: Field[Any]
    hint: Any
    place: str
    optional: bool

    @property
    def path(self) -> tuple[str, ...]:
        """The name of the member, preceded by that of the inner object if there is one."""
        return tuple(self.place.split(".")[1:])


def inside(step: str, read: Reader, value: Any) -> Any:
    """Read a value, and prefix the path of an error with this step."""
    try:
        return read(value)
    except CodecError as error:
        raise CodecError(error.reason, f"{step}{error.path}") from None


def _only(kind: type[_T], value: Any) -> _T:
    if type(value) is not kind:
        raise CodecError(f"is not {'an object' if kind is dict else 'a list'}")
    return value


def _limited(reader: Reader, mark: Limit) -> Reader:
    def read(value: Any) -> Any:
        found = reader(value)
        if not mark.holds(found):
            raise CodecError(f"is not {mark.what}")
        return found

    return read


def _row(readers: list[Reader], repeated: bool) -> Reader:
    """Return a reader of lists: one item for each reader, or any number of items for one."""

    def read(value: Any) -> tuple[Any, ...]:
        count = len(_only(list, value))
        each = readers * count if repeated else readers
        if count != len(each):
            raise CodecError(f"is not a list of {len(each)}")
        pairs = enumerate(zip(each, value, strict=True))
        return tuple(inside(f"[{place}]", reader, item) for place, (reader, item) in pairs)

    return read


def mapping(key: Reader, reader: Reader) -> Reader:
    """Return a reader of objects whose names are data."""

    def read(value: Any) -> dict[Any, Any]:
        named = _only(dict, value).items()
        return {
            inside(f"[{name[:80]!r}]", key, name): inside(f"[{name[:80]!r}]", reader, item)
            for name, item in named
        }

    return read


def words(choices: Mapping[str, Any]) -> Reader:
    """Return a reader that maps a word to the choice that it names."""

    def read(value: Any) -> Any:
        if type(value) is not str or value not in choices:
            raise CodecError(f"is not {' or '.join(map(repr, choices))}")
        return choices[value]

    return read
