"""Codec: records as values of JSON and back, by the type hints of their dataclasses.

    dataclass         an object with a member for every field
    tuple[T, ...]     an array; tuple[A, B] is one of exactly two items
    Mapping[K, T]     an object whose names are data; K is str, int or an Enum
    T | None          left out where there is none, or null (`nulls`)
    Enum, Literal     one of its words; a Literal of one word is a constant of the object
    A | B             of dataclasses, told apart by their constants
    Annotated[T, …]   T within a `Limit`, or `Inside` an object
    object            any value, as it is

How a number is spelt, and every further type, is for the dialect to say (`forms`). What a field
says of its member beyond its type stands in its metadata (`member`).

What enters the reader: a value that anybody may have written. What leaves: the record, or an error
of the dialect with the path of what is wrong. Invariant: a type is what it is (true is no number, a
whole number of a field of that type is never a float), a member is missing, unknown (unless
`extra`) or read, and what a record is written as reads as that record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum
from functools import reduce
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
    final,
    get_args,
    get_origin,
    get_type_hints,
)

_T = TypeVar("_T")
_MAX_TEXT: Final = 1 << 16


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


Bound = Annotated[
    float, Limit("a finite number that is not negative", lambda x: x >= 0.0 and isfinite(x))
]
Sha256 = Annotated[
    str, Limit("a SHA-256 digest", lambda x: len(x) == 64 and not set(x) - set("0123456789abcdef"))
]


def member(name: str | None = None, *, optional: bool = False) -> Mapping[str, object]:
    """Metadata of a field. name: in JSON where it is another, "outer.inner" for one of an object
    around it. optional: left out where the value is the default."""
    return {"json": name, "optional": optional}


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

    error: what readers raise. nulls: None is written as null, and only fields with a default may be
    missing; else it is left out. extra: unknown members are passed over. largest: whole number.
    """

    def __init__(
        self,
        error: type[ValueError],
        forms: Mapping[object, Form],
        *,
        nulls: bool = False,
        extra: bool = False,
        largest: int = 1 << 53,
    ) -> None:
        self._error = error
        self._nulls, self._extra = nulls, extra
        whole = Limit("a whole number that is not negative", lambda value: 0 <= value <= largest)
        text = Limit("a string of at most 2^16 characters", lambda value: len(value) <= _MAX_TEXT)
        self._forms: dict[object, Form] = {
            object: Form(lambda value: value, lambda value: value),
            bool: exactly(bool, "true or false"),
            str: _limited(exactly(str, "a string"), text),
            int: _limited(exactly(int, "a whole number"), whole),
            **forms,
        }

    def write(self, record: object, kind: object = None) -> Any:
        """A record as a value of JSON; kind: its type, where it is no dataclass."""
        return self._form(type(record) if kind is None else kind).write(record)

    def read(self, kind: type[_T], value: object, where: str) -> _T:
        """The record that was written so; where: what the paths of errors begin with."""
        found: _T = self.read_any(kind, value, where)
        return found

    def read_any(self, kind: object, value: object, where: str) -> Any:
        """The same for what is no class: a union, a tuple, a mapping."""
        try:
            return self._form(kind).read(value)
        except CodecError as error:
            raise self._error(str(error.within(where))) from None

    def _form(self, hint: object) -> Form:
        if hint not in self._forms:
            self._forms[hint] = self._made(hint)
        return self._forms[hint]

    def _made(self, hint: Any) -> Form:
        origin, inner = get_origin(hint), get_args(hint)
        if origin is Annotated:
            return reduce(_limited, inner[1:], self._form(inner[0]))
        if origin in {Union, UnionType}:
            return self._union(inner)
        if origin is tuple:
            if inner[1:] == (...,):
                return _array(self._form(inner[0]))
            return _row([self._form(item) for item in inner])
        if origin is Literal:
            return _words(dict(zip(inner, inner, strict=True)))
        if isinstance(origin, type) and issubclass(origin, Mapping):
            return _mapping(_key(inner[0]), self._form(inner[1]))
        if is_dataclass(hint):
            return self._record(hint)
        if isinstance(hint, type) and issubclass(hint, Enum):
            return _words({item.value: item for item in hint})
        raise TypeError(f"{hint!r} has no form")

    def _union(self, kinds: tuple[Any, ...]) -> Form:
        some = [kind for kind in kinds if kind is not NoneType]
        if len(some) > 1:
            return _tagged({kind: (self._form(kind), _constants(kind)) for kind in some})
        form = self._form(some[0])
        return Form(
            lambda value: None if value is None else form.write(value),
            lambda value: None if value is None and self._nulls else form.read(value),
        )

    def _record(self, kind: Any) -> Form:
        hints = get_type_hints(kind, include_extras=True)
        constants = _constants(kind)
        plan = [
            _Member(
                field.name,
                tuple((field.metadata.get("json") or field.name).split(".")),
                self._form(hints[field.name]),
                has_default=field.default is not MISSING or field.default_factory is not MISSING,
                default=_default(field),
                is_constant=field.name in constants,
                nullable=NoneType in get_args(hints[field.name]),
                optional=field.metadata.get("optional", False),
            )
            for field in fields(kind)
        ]
        plan.sort(key=lambda item: not item.is_constant)
        return Form(
            lambda record: self._members(plan, record),
            lambda value: kind(**self._values(plan, value)),
        )

    def _members(self, plan: list[_Member], record: object) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for item in plan:
            *outer, name = item.path
            place = found.setdefault(outer[0], {}) if outer else found
            value = getattr(record, item.field)
            if (item.optional and value == item.default) or (value is None and not self._nulls):
                continue
            place[name] = item.form.write(value)
        return found

    def _values(self, plan: list[_Member], value: Any) -> dict[str, Any]:
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
                    found[item.field] = item.form.read(rest.pop(item.path))
                except CodecError as error:
                    raise error.within("".join(map(_step, item.path))) from None
            elif not (item.optional or (item.has_default if self._nulls else item.nullable)):
                raise CodecError("is missing", "".join(map(_step, item.path)))
            else:
                found[item.field] = item.default
        if rest and not self._extra:
            *around, name = min(rest)
            raise CodecError(f"has the unknown member {name[:80]!r}", "".join(map(_step, around)))
        return found


@final
@dataclass(frozen=True, slots=True)
class _Member:
    """A field of a record, and its place in the object."""

    field: str
    path: tuple[str, ...]
    form: Form
    has_default: bool
    default: Any
    is_constant: bool
    nullable: bool
    optional: bool


def _step(name: str) -> str:
    return f".{name}"


def _default(field: Any) -> Any:
    """Of a field; None where there is none."""
    if field.default_factory is not MISSING:
        return field.default_factory()
    return None if field.default is MISSING else field.default


def _constants(kind: Any) -> dict[str, str]:
    """The fields of a record whose type admits one word."""
    found = get_type_hints(kind)
    words = {name: get_args(hint) for name, hint in found.items() if get_origin(hint) is Literal}
    return {name: inner[0] for name, inner in words.items() if len(inner) == 1}


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


def _tagged(kinds: Mapping[Any, tuple[Form, dict[str, str]]]) -> Form:
    def read(value: Any) -> Any:
        for form, constants in kinds.values():
            if constants.items() <= _object(value).items():
                return form.read(value)
        raise CodecError("is of no known kind")

    return Form(lambda record: kinds[type(record)][0].write(record), read)
