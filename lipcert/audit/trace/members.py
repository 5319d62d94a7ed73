"""Members: reading an object of a trace, member by member, with nothing left over.

What enters: an object. What leaves: members of the types asked for; `FormError` where one is
missing, of another type, or not asked for.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum
from typing import Final, TypeVar, final

from lipcert.audit.trace.faults import FormError
from lipcert.audit.trace.spelling import Json, JsonObject, number_of

_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_MAX_TEXT: Final = 1 << 16
_MAX_INTEGER: Final = 1 << 62
_T = TypeVar("_T")
_E = TypeVar("_E", bound=Enum)


def is_digest(text: str) -> bool:
    """Whether this is how a SHA-256 is spelled; such a text is a harmless file name."""
    return _DIGEST.fullmatch(text) is not None


@final
class Members:
    """An object, and which of its members were read; `where` begins every message."""

    def __init__(self, value: Json, where: str) -> None:
        if not isinstance(value, dict):
            raise FormError(f"{where} is not an object")
        self._members: JsonObject = value
        self._unread = set(value)
        self.where = where

    def finish(self) -> None:
        """Refuse members that nobody asked for."""
        if self._unread:
            raise FormError(f"{self.where}: {min(self._unread)[:80]!r} is not known")

    def optional(self, name: str, read: Callable[[str], _T]) -> _T | None:
        """What `read` makes of a member, None where there is none."""
        return read(name) if name in self._members else None

    def text(self, name: str) -> str:
        """A string."""
        value = self._take(name)
        if not isinstance(value, str) or len(value) > _MAX_TEXT:
            raise self._wrong(name, "a string")
        return value

    def flag(self, name: str) -> bool:
        """True or false."""
        value = self._take(name)
        if not isinstance(value, bool):
            raise self._wrong(name, "true or false")
        return value

    def count(self, name: str) -> int:
        """A whole number that is not negative."""
        return self._whole(name, self._take(name))

    def number(self, name: str) -> float:
        """A number, which may be NaN or infinite."""
        return self._number(name, self._take(name))

    def finite(self, name: str) -> float:
        """A finite number that is not negative."""
        value = self.number(name)
        if not 0.0 <= value < float("inf"):
            raise self._wrong(name, "a finite number that is not negative")
        return value

    def choice(self, name: str, choices: type[_E]) -> _E:
        """One of the words of an enum."""
        word = self.text(name)
        for choice in choices:
            if choice.value == word:
                return choice
        raise self._wrong(name, f"one of {', '.join(str(choice.value) for choice in choices)}")

    def digest(self, name: str) -> str:
        """A SHA-256."""
        text = self.text(name)
        if not is_digest(text):
            raise self._wrong(name, "a SHA-256 digest")
        return text

    def counts(self, name: str) -> tuple[int, ...]:
        """Whole numbers."""
        return tuple(self._whole(name, value) for value in self._list(name))

    def numbers(self, name: str) -> tuple[float, ...]:
        """Numbers."""
        return tuple(self._number(name, value) for value in self._list(name))

    def texts(self, name: str) -> tuple[str, ...]:
        """Strings."""
        values = self._list(name)
        found = tuple(value for value in values if isinstance(value, str))
        if len(found) != len(values):
            raise self._wrong(name, "a list of strings")
        return found

    def object(self, name: str) -> Members:
        """An object within this one."""
        return Members(self._take(name), f"{self.where}.{name}")

    def objects(self, name: str) -> list[Members]:
        """A list of objects."""
        values = self._list(name)
        return [Members(value, f"{self.where}.{name}[{i}]") for i, value in enumerate(values)]

    def each(self, read: Callable[[str], _T]) -> dict[str, _T]:
        """Every member, of an object whose names are data."""
        return {name: read(name) for name in self._members}

    def _take(self, name: str) -> Json:
        if name not in self._members:
            raise FormError(f"{self.where}: {name!r} is missing")
        self._unread.discard(name)
        return self._members[name]

    def _list(self, name: str) -> list[Json]:
        value = self._take(name)
        if not isinstance(value, list):
            raise self._wrong(name, "a list")
        return value

    def _whole(self, name: str, value: Json) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong(name, "a whole number")
        if not 0 <= value <= _MAX_INTEGER:
            raise self._wrong(name, "a whole number from 0 to 2^62")
        return value

    def _number(self, name: str, value: Json) -> float:
        number = number_of(value)
        if number is None:
            raise self._wrong(name, "a number")
        return number

    def _wrong(self, name: str, kind: str) -> FormError:
        return FormError(f"{self.where}.{name[:80]} is not {kind}")
