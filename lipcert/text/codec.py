"""Codecs of documents, traces and jobs: the kernel's, with more types and ways to leave things out.

bool              true or false
Enum              one of its words
Mapping[K, T]     K is str, int or an Enum
T | None          null, where the dialect writes what is absent
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Final, TypeVar, Union, cast, final

from lipcert.core import codec
from lipcert.core.codec import CodecError, Form, exactly, mapping, words

_T = TypeVar("_T")


def _decimal(value: Any) -> float:
    if type(value) not in {int, float} or not abs(value) <= 1.7976931348623157e308:
        raise CodecError("is not a finite number")
    return float(value)


DECIMAL: Final = Form(float, _decimal)
"""finite numbers as JSON has them"""


def _whole(name: str) -> int:
    """A whole number in its one decimal spelling."""
    digits = name.removeprefix("-")
    if len(name) > 18 or not (digits.isascii() and digits.isdigit()) or str(int(name)) != name:
        raise CodecError("is not named by a whole number")
    return int(name)


@final
class Codec(codec.Codec):
    """members: metadata by "Class.field", for records that know nothing of JSON. nulls: None is
    written as null; else it is left out. extra: unknown members are passed over."""

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
        known = {bool: exactly(bool, "true or false"), **forms}
        super().__init__(error, known, largest=largest, longest=longest)
        self._members = members or {}
        self.nulls, self.extra = nulls, extra

    def read_any(self, kind: object, value: object, where: str) -> Any:
        """`read` for a type that is not a class: a tuple, a mapping."""
        return self.read(cast("type[Any]", kind), value, where)

    def made(self, hint: Any, origin: Any, inner: tuple[Any, ...]) -> Form:
        """Of more types, and with null."""
        if origin in {Union, UnionType} and inner[1:] == (NoneType,):
            form = self.form(inner[0])
            return Form(
                lambda value: None if value is None else form.write(value),
                lambda value: None if value is None and self.nulls else form.read(value),
            )
        if isinstance(origin, type) and issubclass(origin, Mapping) and inner[0] is not str:
            key = Form(str, _whole) if inner[0] is int else self.form(inner[0])
            return mapping(key, self.form(inner[1]))
        if isinstance(hint, type) and issubclass(hint, Enum):
            return words({item.value: item for item in hint})
        return super().made(hint, origin, inner)

    def said(self, kind: Any, item: Field[Any]) -> Mapping[str, Any]:
        """As the dialect says of the member, or the record itself."""
        return self._members.get(f"{kind.__name__}.{item.name}", item.metadata)
