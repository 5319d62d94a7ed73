"""Codecs of documents, traces and jobs: the core's codec, extended to write and to omit members.

It also has these types:

bool              true or false
Enum              one of its words
Mapping[K, T]     K is str, int or an Enum
T | None          null, if the dialect writes absent values

Invariant: a written record reads back as that record.
"""

from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, is_dataclass
from enum import Enum
from functools import partial
from operator import attrgetter
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
)

from lipcert.core import codec
from lipcert.core.codec import CodecError, Reader, exactly, mapping, same, words

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Form:
    """How values of a type are written and read; reading raises `CodecError` for other values."""

    write: Callable[[Any], Any]
    read: Reader


def _decimal(value: Any) -> float:
    if type(value) not in {int, float} or not abs(value) <= 1.7976931348623157e308:
        raise CodecError("is not a finite number")
    return float(value)


DECIMAL: Final = Form(float, _decimal)
"""Finite numbers as in JSON."""


def _whole(name: str) -> int:
    """Read a whole number in its one decimal spelling."""
    digits = name.removeprefix("-")
    if len(name) > 18 or not (digits.isascii() and digits.isdigit()) or str(int(name)) != name:
        raise CodecError("is not named by a whole number")
    return int(name)


class Codec(codec.Codec):
    """A codec of one dialect.

    members: metadata by "Class.field", for records that do not know about JSON. nulls: None is
    written as null; otherwise it is left out. extra: unknown members are ignored.
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
        readers = {hint: form.read for hint, form in forms.items()}
        known = {bool: exactly(bool, "true or false"), **readers}
        super().__init__(error, known, largest=largest, longest=longest)
        self._members = members or {}
        self._writers = {hint: form.write for hint, form in forms.items()}
        self.nulls, self.extra = nulls, extra

    def read_any(self, kind: object, value: object, where: str) -> Any:
        """Read a type that is not a class, such as a tuple or a mapping, as `read` does."""
        return self.read(cast("type[Any]", kind), value, where)

    def write(self, record: object, kind: type[Any] | None = None) -> Any:
        """Return a record as a JSON value. kind: write only the members of this class."""
        return self._writer(kind or type(record))(record)

    def made(self, hint: Any, origin: Any, inner: tuple[Any, ...]) -> Reader:
        """Return readers of the additional types, and of null."""
        if origin in {Union, UnionType} and inner[1:] == (NoneType,):
            read = self.reader(inner[0])
            return lambda value: None if value is None and self.nulls else read(value)
        if isinstance(origin, type) and issubclass(origin, Mapping) and inner[0] is not str:
            key = _whole if inner[0] is int else self.reader(inner[0])
            return mapping(key, self.reader(inner[1]))
        if isinstance(hint, type) and issubclass(hint, Enum):
            return words({item.value: item for item in hint})
        return super().made(hint, origin, inner)

    def said(self, kind: Any, item: Field[Any]) -> Mapping[str, Any]:
        """Return the metadata of a member, from the dialect or from the record itself."""
        return self._members.get(f"{kind.__name__}.{item.name}", item.metadata)

    def _writer(self, hint: Any) -> Callable[[Any], Any]:
        if hint not in self._writers:
            self._writers[hint] = self._made_writer(hint, get_origin(hint), get_args(hint))
        return self._writers[hint]

    def _made_writer(self, hint: Any, origin: Any, inner: tuple[Any, ...]) -> Callable[[Any], Any]:
        """Return how values of a type without a form are written."""
        if origin is Annotated:
            return self._writer(inner[0])
        if origin in {Union, UnionType} and inner[1:] == (NoneType,):
            write = self._writer(inner[0])
            return lambda value: None if value is None else write(value)
        if origin is tuple and inner[-1] is ...:
            write = self._writer(inner[0])
            return lambda row: [write(item) for item in row]
        if origin is tuple:
            each = [self._writer(item) for item in inner]
            return lambda row: [write(item) for write, item in zip(each, row, strict=True)]
        if isinstance(origin, type) and issubclass(origin, Mapping):
            key = str if inner[0] is int else self._writer(inner[0])
            write = self._writer(inner[1])
            return lambda named: {key(name): write(item) for name, item in named.items()}
        if isinstance(hint, type) and issubclass(hint, Enum):
            return attrgetter("value")
        if is_dataclass(hint):
            return partial(self._written, hint)
        if origin is Literal or hint in {object, str, int, bool}:
            return same
        raise TypeError(f"{hint!r} has no form")

    def _written(self, kind: Any, record: object) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for item in self.plan(kind):
            _, *outer, name = item.place.split(".")
            place = found.setdefault(outer[0], {}) if outer else found
            value = getattr(record, item.field.name)
            if item.optional and (not value or value == item.field.default):
                continue
            if value is not None or self.nulls:
                place[name] = self._writer(item.hint)(value)
        return found
