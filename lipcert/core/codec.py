"""Codec: records from values of JSON, by the type hints of their dataclasses.

    dataclass         an object with a member for every field
    tuple[T, ...]     an array; tuple[A, B] is one of exactly two items
    Mapping[str, T]   an object whose names are data
    T | None          left out where there is none
    Literal           one of its words; one word is a constant of the object
    Annotated[T, …]   T within a `Limit`
    object            any value, as it is

How a number is spelt, and every further type, is for the dialect to say (`readers`, or a subclass).
What a field says of its member beyond its type stands in its metadata (`member`).

The reader takes an untrusted value, and returns the record or raises an error of the dialect with
the path of the fault. Invariant: types are strict (true is not a number, an integer field never
takes a float), and a member is missing, unknown or read: what is read says no more than the record.
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
"""`CodecError` for what is not a value of its type"""


class CodecError(ValueError):
    """A value that is not what its type says; path: from the value that was to be read."""

    def __init__(self, reason: str, path: str = "") -> None:
        super().__init__(f"{path} {reason}")
        self.reason = reason
        self.path = path


@dataclass(frozen=True, slots=True)
class Limit:
    """What holds of values beyond their type. what: they are, as the error says."""

    what: str
    holds: Callable[[Any], bool]


def is_sha256(text: str) -> bool:
    """Whether a digest is spelt so; such a text is a harmless file name."""
    return len(text) == 64 and not set(text) - set("0123456789abcdef")


Bound = Annotated[
    float, Limit("a finite number that is not negative", lambda x: x >= 0.0 and isfinite(x))
]
Sha256 = Annotated[str, Limit("a SHA-256 digest", is_sha256)]


def member(
    name: str | None = None, *, optional: bool = False, apart: bool = False
) -> Mapping[str, Any]:
    """Metadata of a field. name: in JSON where it is another, "outer.inner" for one of an object
    around it. optional: left out where the value is the default or empty. apart: not in JSON at
    all; the caller that reads the record gives the value."""
    return {"name": name, "optional": optional, "apart": apart}


def same(value: Any) -> Any:
    """A value that stands for itself."""
    return value


def exactly(kind: type[Any], what: str) -> Reader:
    """Values of a type that stand for themselves."""
    return _limited(same, Limit(what, lambda value: type(value) is kind))


class Codec:
    """A dialect: the readers of its types. error: what `read` raises. largest: whole number.
    longest: string."""

    nulls = False
    """whether None is null, and not left out"""
    extra = False
    """whether unknown members are passed over"""

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
        """The record that stands there; where: what the paths of errors begin with. apart: the
        fields of the record that are not in JSON."""
        read = partial(self._record, kind, apart) if apart else self.reader(kind)
        try:
            return cast("_T", inside(where, read, value))
        except CodecError as error:
            raise self._error(str(error)) from None

    def reader(self, hint: object) -> Reader:
        """How values of a type are read."""
        if hint not in self._readers:
            self._readers[hint] = self.made(hint, get_origin(hint), get_args(hint))
        return self._readers[hint]

    def made(self, hint: Any, origin: Any, inner: tuple[Any, ...]) -> Reader:
        """The reader of a type that has none yet, from those of its parts."""
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
        """What is said of the member of a field, as by `member`."""
        del kind
        return item.metadata

    def plan(self, kind: Any) -> list[Member]:
        """The members of a record."""
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
        """Its name, behind that of the object around it if there is one."""
        return tuple(self.place.split(".")[1:])


def inside(step: str, read: Reader, value: Any) -> Any:
    """What is read at a place, which the path of an error names."""
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
    """Of as many items as readers, or of any number of one kind."""

    def read(value: Any) -> tuple[Any, ...]:
        count = len(_only(list, value))
        each = readers * count if repeated else readers
        if count != len(each):
            raise CodecError(f"is not a list of {len(each)}")
        pairs = enumerate(zip(each, value, strict=True))
        return tuple(inside(f"[{place}]", reader, item) for place, (reader, item) in pairs)

    return read


def mapping(key: Reader, reader: Reader) -> Reader:
    """An object whose names are data."""

    def read(value: Any) -> dict[Any, Any]:
        named = _only(dict, value).items()
        return {
            inside(f"[{name[:80]!r}]", key, name): inside(f"[{name[:80]!r}]", reader, item)
            for name, item in named
        }

    return read


def words(choices: Mapping[str, Any]) -> Reader:
    """One of several things, by the word that names it."""

    def read(value: Any) -> Any:
        if type(value) is not str or value not in choices:
            raise CodecError(f"is not {' or '.join(map(repr, choices))}")
        return choices[value]

    return read
