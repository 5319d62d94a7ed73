"""Fields: reading an object of a certificate, member by member, with nothing left over.

What enters: a JSON value and where it stands. What leaves: members of the types asked for;
`CertificateFormatError` with the place where one is missing, of another type, or unknown.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Final, TypeVar, final

from lipcert.core.certificate.canonical import Json
from lipcert.core.certificate.numbers import (
    NumberFormatError,
    read_bound,
    read_float,
    read_rational,
    read_sha256,
)

_T = TypeVar("_T")
_MAX_TEXT: Final = 1 << 16


@final
class CertificateFormatError(ValueError):
    """A certificate that does not say what certificates say: where, and why."""


@final
class Fields:
    """An object, and which of its members have been read."""

    def __init__(self, value: Json, where: str) -> None:
        if type(value) is not dict:
            raise CertificateFormatError(f"{where} is not an object")
        self._members = value
        self._unread = set(value)
        self.where = where

    def finish(self) -> None:
        """Raise where a member was not asked for: nothing in a certificate is ignored."""
        if self._unread:
            raise CertificateFormatError(f"{self.where}: {min(self._unread)[:80]!r} is not known")

    def has(self, name: str) -> bool:
        """Whether there is a member of this name."""
        return name in self._members

    def text(self, name: str) -> str:
        """A string."""
        value = self._take(name)
        if type(value) is not str or len(value) > _MAX_TEXT:
            raise self._wrong(name, "a string")
        return value

    def integer(self, name: str) -> int:
        """An integer that is not negative."""
        value = self._take(name)
        if type(value) is not int or value < 0:
            raise self._wrong(name, "a whole number")
        return value

    def bound(self, name: str) -> float:
        """A finite float64 that is not negative."""
        return self._number(name, self.text(name), read_bound)

    def number(self, name: str) -> float:
        """A finite float64."""
        return self._number(name, self.text(name), read_float)

    def digest(self, name: str) -> str:
        """A SHA-256."""
        return self._number(name, self.text(name), read_sha256)

    def rational(self, name: str) -> Fraction:
        """A rational number, as its numerator and denominator."""
        pair = self.texts(name)
        if len(pair) != 2:
            raise self._wrong(name, "a pair of strings")
        try:
            return read_rational(*pair)
        except NumberFormatError as error:
            raise CertificateFormatError(f"{self.where}.{name}: {error}") from None

    def texts(self, name: str) -> tuple[str, ...]:
        """Strings."""
        found: list[str] = []
        for value in self._list(name):
            if type(value) is not str or len(value) > _MAX_TEXT:
                raise self._wrong(name, "a list of strings")
            found.append(value)
        return tuple(found)

    def integers(self, name: str) -> tuple[int, ...]:
        """Integers that are not negative."""
        found: list[int] = []
        for value in self._list(name):
            if type(value) is not int or value < 0:
                raise self._wrong(name, "a list of whole numbers")
            found.append(value)
        return tuple(found)

    def bounds(self, name: str) -> tuple[float, ...]:
        """Finite float64 numbers that are not negative."""
        return tuple(self._number(name, text, read_bound) for text in self.texts(name))

    def numbers(self, name: str) -> tuple[float, ...]:
        """Finite float64 numbers."""
        return tuple(self._number(name, text, read_float) for text in self.texts(name))

    def object(self, name: str) -> Fields:
        """Another object."""
        return Fields(self._take(name), f"{self.where}.{name}")

    def objects(self, name: str) -> list[Fields]:
        """A list of objects."""
        return [
            Fields(value, f"{self.where}.{name}[{index}]")
            for index, value in enumerate(self._list(name))
        ]

    def members(self) -> dict[str, Json]:
        """Everything, for an object whose names are data."""
        self._unread.clear()
        return dict(self._members)

    def optional(self, name: str, read: Callable[[str], _T]) -> _T | None:
        """What `read` makes of the member, None where there is none."""
        return read(name) if self.has(name) else None

    def _take(self, name: str) -> Json:
        if name not in self._members:
            raise CertificateFormatError(f"{self.where}: {name!r} is missing")
        self._unread.discard(name)
        return self._members[name]

    def _list(self, name: str) -> list[Json]:
        value = self._take(name)
        if type(value) is not list:
            raise self._wrong(name, "a list")
        return value

    def _number(self, name: str, text: str, read: Callable[[str], _T]) -> _T:
        try:
            return read(text)
        except NumberFormatError as error:
            raise CertificateFormatError(f"{self.where}.{name}: {error}") from None

    def _wrong(self, name: str, kind: str) -> CertificateFormatError:
        return CertificateFormatError(f"{self.where}.{name} is not {kind}")
