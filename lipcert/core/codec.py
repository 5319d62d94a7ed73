"""Codec: records as values of JSON and back, by the type hints of their dataclasses.

    dataclass         an object with a member for every field
    tuple[T, ...]     an array; tuple[A, B] is one of exactly two items
    Mapping[K, T]     an object whose names are data; K is str, int or an Enum
    T | None          left out where there is none, or null (`nulls`)
    Enum, Literal     one of its words; a Literal of one word is a constant of the object
    Annotated[T, …]   T within a `Limit`, or `Inside` an object
    object            any value, as it is

How a number is spelt, and every further type, is for the dialect to say (`forms`). What a field
says of its member beyond its type stands in its metadata (`member`), or with the dialect.

The reader takes an untrusted value, and returns the record or raises an error of the dialect with
the path of the fault. Invariant: types are strict (true is not a number, an integer field never
takes a float), a member is missing, unknown (unless `extra`) or read, and a written record reads
back as that record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum
from functools import partial, reduce
from itertools import repeat
from math import isfinite
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    TypeVar,
    Union,
    cast,
    final,
    get_args,
    get_origin,
    get_type_hints,
)

_T = TypeVar("_T")


@final
class CodecError(ValueError):
    """A value that is not what its type says; path: from the value that was to be read."""

    def __init__(self, reason: str, path: str = "") -> None:
        super().__init__(f"{path} {reason}")
        self.reason = reason
        self.path = path

    def within(self, step: str) -> CodecError:
        """The same, seen from one step further outside."""
        return CodecError(self.reason, f"{step}{self.path}")


@final
@dataclass(frozen=True, slots=True)
class Form:
    """How values of a type are written, and read: `CodecError` for what is not one of them."""

    write: Callable[[Any], Any]
    read: Callable[[Any], Any]


@final
@dataclass(frozen=True, slots=True)
class Limit:
    """What holds of values beyond their type. what: they are, as the error says."""

    what: str
    holds: Callable[[Any], bool]


@final
@dataclass(frozen=True, slots=True)
class Inside:
    """The value stands in an object of its own, as its one member of this name."""

    name: str


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


def exactly(kind: type[_T], what: str) -> Form:
    """Values that stand for themselves."""

    def read(value: Any) -> _T:
        if type(value) is not kind:
            raise CodecError(f"is not {what}")
        return value

    return Form(lambda value: value, read)


def _decimal(value: Any) -> float:
    if type(value) not in {int, float} or not abs(value) <= 1.7976931348623157e308:
        raise CodecError("is not a finite number")
    return float(value)


DECIMAL: Final = Form(float, _decimal)
"""finite numbers as JSON has them"""


@final
class Codec:
    """A dialect: the forms of its types, and what is made of None and of unknown members.

    error: what readers raise. members: metadata by "Class.field", for records that know nothing of
    JSON. nulls: None is written as null; else it is left out. extra: unknown members are passed
    over. largest: whole number. longest: string.
    """

    def __init__(
        self,
        error: type[ValueError],
        forms: Mapping[object, Form],
        *,
        members: Mapping[str, Mapping[str, Any]] | None = None,
        nulls: bool = False,
        extra: bool = False,
        largest: int = 1 << 53,
        longest: int = 1 << 16,
    ) -> None:
        self._error = error
        self._members = members or {}
        self._nulls, self._extra = nulls, extra
        whole = Limit("a whole number that is not negative", lambda value: 0 <= value <= largest)
        text = Limit(f"a string of at most {longest} characters", lambda x: len(x) <= longest)
        self._forms: dict[object, Form] = {
            object: Form(lambda value: value, lambda value: value),
            bool: exactly(bool, "true or false"),
            str: _limited(exactly(str, "a string"), text),
            int: _limited(exactly(int, "a whole number"), whole),
            **forms,
        }
        self._plans: dict[object, list[_Member]] = {}

    def write(self, record: object) -> Any:
        """A record as a value of JSON."""
        return self.form(type(record)).write(record)

    def read(self, kind: type[_T], value: object, where: str, **apart: object) -> _T:
        """The record that was written so; where: what the paths of errors begin with. apart: the
        fields of the record that are not in JSON."""
        read = partial(self._record, kind, apart) if apart else self.form(kind).read
        return cast("_T", self._read(read, value, where))

    def _read(self, read: Callable[[Any], Any], value: object, where: str) -> Any:
        try:
            return read(value)
        except CodecError as error:
            raise self._error(str(error.within(where))) from None

    def chosen(self, choices: Mapping[str, _T], value: object, where: str) -> _T:
        """What a word names among choices."""
        return cast("_T", self._read(_words(choices).read, value, where))

    def read_any(self, kind: object, value: object, where: str) -> Any:
        """The same for a type that is not a class: a tuple, a mapping."""
        return self.read(cast("type[Any]", kind), value, where)

    def form(self, hint: object) -> Form:
        """How values of a type are written and read."""
        if hint not in self._forms:
            self._forms[hint] = self._made(hint)
        return self._forms[hint]

    def _made(self, hint: Any) -> Form:
        origin, inner = get_origin(hint), get_args(hint)
        if origin is Annotated:
            return reduce(_limited, inner[1:], self.form(inner[0]))
        if origin in {Union, UnionType} and len(inner) == 2 and inner[1] is NoneType:
            return self._optional(inner[0])
        if origin is tuple:
            if inner[1:] == (...,):
                return _array(self.form(inner[0]))
            return _row([self.form(item) for item in inner])
        if origin is Literal:
            return _words(dict(zip(inner, inner, strict=True)))
        if isinstance(origin, type) and issubclass(origin, Mapping):
            return _mapping(_key(inner[0]), self.form(inner[1]))
        if is_dataclass(hint):
            return Form(partial(self._written, hint), partial(self._record, hint, {}))
        if isinstance(hint, type) and issubclass(hint, Enum):
            return _words({item.value: item for item in hint})
        raise TypeError(f"{hint!r} has no form")

    def _optional(self, hint: Any) -> Form:
        form = self.form(hint)
        return Form(
            lambda value: None if value is None else form.write(value),
            lambda value: None if value is None and self._nulls else form.read(value),
        )

    def _plan(self, kind: Any) -> list[_Member]:
        """The members of a record; its constants first, so that another schema is named as such."""
        if kind not in self._plans:
            hints = get_type_hints(kind, include_extras=True)
            said = {
                item: {
                    **member(),
                    **self._members.get(f"{kind.__name__}.{item.name}", item.metadata),
                }
                for item in fields(kind)
            }
            self._plans[kind] = [
                _Member(
                    item.name,
                    tuple((more["name"] or item.name).split(".")),
                    hints[item.name],
                    _default(item),
                    more["optional"],
                )
                for item, more in said.items()
                if not more["apart"]
            ]
            self._plans[kind].sort(key=lambda item: not item.is_constant)
        return self._plans[kind]

    def _written(self, kind: Any, record: object) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for item in self._plan(kind):
            *outer, name = item.path
            place = found.setdefault(outer[0], {}) if outer else found
            value = getattr(record, item.field)
            if item.optional and (not value or value == item.default):
                continue
            if value is None and not self._nulls:
                continue
            place[name] = self.form(item.hint).write(value)
        return found

    def _record(self, kind: Any, apart: Mapping[str, object], value: Any) -> Any:
        plan = self._plan(kind)
        outer = {item.path[0] for item in plan if len(item.path) > 1}
        rest: dict[tuple[str, ...], Any] = {}
        for name, inside in _object(value).items():
            if name in outer:
                try:
                    rest |= {(name, inner): found for inner, found in _object(inside).items()}
                except CodecError as error:
                    raise error.within(_step(name)) from None
            else:
                rest[name,] = inside
        for name in outer - value.keys():
            raise CodecError("is missing", _step(name))
        found: dict[str, Any] = {}
        for item in plan:
            if item.path in rest:
                try:
                    found[item.field] = self.form(item.hint).read(rest.pop(item.path))
                except CodecError as error:
                    raise error.within("".join(map(_step, item.path))) from None
            elif not item.optional and (self._nulls or NoneType not in get_args(item.hint)):
                raise CodecError("is missing", "".join(map(_step, item.path)))
            elif not item.optional:
                found[item.field] = None
        if rest and not self._extra:
            *around, name = min(rest)
            raise CodecError(f"has the unknown member {name[:80]!r}", "".join(map(_step, around)))
        try:
            return kind(**found, **apart)
        except ValueError as error:
            raise CodecError(f"is not possible: {error}") from None


@final
@dataclass(frozen=True, slots=True)
class _Member:
    """A field of a record, and its place in the object."""

    field: str
    path: tuple[str, ...]
    hint: Any
    default: Any
    optional: bool

    @property
    def is_constant(self) -> bool:
        """Whether its type admits one word."""
        return get_origin(self.hint) is Literal and len(get_args(self.hint)) == 1


def _step(name: str) -> str:
    return f".{name}"


def _default(item: Any) -> Any:
    """Of a field; None where there is none."""
    if item.default_factory is not MISSING:
        return item.default_factory()
    return None if item.default is MISSING else item.default


def _object(value: Any) -> dict[str, Any]:
    if type(value) is not dict:
        raise CodecError("is not an object")
    return value


def _items(value: Any) -> list[Any]:
    if type(value) is not list:
        raise CodecError("is not a list")
    return value


def _limited(form: Form, mark: Limit | Inside) -> Form:
    if isinstance(mark, Inside):
        name = mark.name

        def inner(value: Any) -> Any:
            if unknown := _object(value).keys() - {name}:
                raise CodecError(f"has the unknown member {min(unknown)[:80]!r}")
            if not value:
                raise CodecError("is missing", _step(name))
            try:
                return form.read(value[name])
            except CodecError as error:
                raise error.within(_step(name)) from None

        return Form(lambda value: {name: form.write(value)}, inner)

    def read(value: Any) -> Any:
        found = form.read(value)
        if not mark.holds(found):
            raise CodecError(f"is not {mark.what}")
        return found

    return Form(form.write, read)


def _array(form: Form) -> Form:
    return Form(
        lambda value: [form.write(item) for item in value],
        lambda value: _all(repeat(form), _items(value)),
    )


def _row(forms: list[Form]) -> Form:
    def read(value: Any) -> tuple[Any, ...]:
        if len(_items(value)) != len(forms):
            raise CodecError(f"is not a list of {len(forms)}")
        return _all(forms, value)

    return Form(
        lambda value: [form.write(item) for form, item in zip(forms, value, strict=True)], read
    )


def _all(forms: Iterable[Form], items: list[Any]) -> tuple[Any, ...]:
    found: list[Any] = []
    try:
        for form, item in zip(forms, items, strict=False):
            found.append(form.read(item))
    except CodecError as error:
        raise error.within(f"[{len(found)}]") from None
    return tuple(found)


def _mapping(key: Form, form: Form) -> Form:
    def read(value: Any) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        for name, item in _object(value).items():
            try:
                found[key.read(name)] = form.read(item)
            except CodecError as error:
                raise error.within(f"[{name[:80]!r}]") from None
        return found

    return Form(
        lambda value: {key.write(name): form.write(item) for name, item in value.items()}, read
    )


def _key(hint: Any) -> Form:
    """The names of an object: words, or whole numbers in their one decimal spelling."""
    if hint is str:
        return Form(str, str)
    if hint is not int:
        return _words({item.value: item for item in hint})

    def read(name: str) -> int:
        if len(name) > 18 or not name.isascii() or not name.removeprefix("-").isdigit():
            raise CodecError("is not named by a whole number")
        if str(int(name)) != name:
            raise CodecError("is not named by a whole number")
        return int(name)

    return Form(str, read)


def _words(choices: Mapping[str, Any]) -> Form:
    words = {choice: word for word, choice in choices.items()}

    def read(value: Any) -> Any:
        if type(value) is not str or value not in choices:
            raise CodecError(f"is not {' or '.join(map(repr, choices))}")
        return choices[value]

    return Form(words.__getitem__, read)
