"""Fields: members of a JSON object, read by type.

What enters: an object that LipCert may have written, untrusted. What leaves: values of the asked
types; `FieldError` where a member that is needed is missing or of another type. Numbers are finite.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, final

_LARGEST: Final = 2**63


@final
class FieldError(ValueError):
    """A member that is missing or of another type: which, and what was expected."""


@final
@dataclass(frozen=True, slots=True)
class Fields:
    """An object of JSON and where it stands in its document."""

    members: Mapping[str, object]
    where: str

    @classmethod
    def of(cls, value: object, where: str) -> Fields:
        """Around any value of JSON, which must be an object."""
        if not isinstance(value, dict):
            raise FieldError(f"{where} is not an object")
        return cls(value, where)

    def has(self, name: str) -> bool:
        """Whether there is a member of that name other than null."""
        return self.members.get(name) is not None

    def text(self, name: str, default: str | None = None) -> str:
        """A string; null and no member read as the default where there is one."""
        value = self.members.get(name)
        if isinstance(value, str):
            return value
        if value is None and default is not None:
            return default
        raise self._error(name, "a string")

    def word(self, name: str) -> str | None:
        """A string, or None."""
        return self.text(name) if self.has(name) else None

    def number(self, name: str) -> float | None:
        """A finite number; None where it is null or missing."""
        value = self.members.get(name)
        return None if value is None else self._finite(name, value)

    def needed(self, name: str) -> float:
        """A finite number that has to be there."""
        return self._finite(name, self.members.get(name))

    def whole(self, name: str, default: int | None = None) -> int:
        """An integer of at most 2^63; null and no member read as the default, if there is one."""
        value = self.members.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _LARGEST:
            return value
        if value is None and default is not None:
            return default
        raise self._error(name, "an integer")

    def flag(self, name: str, default: bool) -> bool:
        """True or false."""
        value = self.members.get(name, default)
        if isinstance(value, bool):
            return value
        raise self._error(name, "true or false")

    def child(self, name: str) -> Fields:
        """The object of that name; without members where there is none."""
        value = self.members.get(name)
        return Fields.of({} if value is None else value, f"{self.where}.{name}")

    def children(self, name: str) -> list[Fields]:
        """A list of objects."""
        return [
            Fields.of(item, f"{self.where}.{name}[{index}]")
            for index, item in enumerate(self._items(name))
        ]

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of strings."""
        items = self._items(name)
        found = tuple(item for item in items if isinstance(item, str))
        if len(found) < len(items):
            raise self._error(name, "a list of strings")
        return found

    def wholes(self, name: str) -> tuple[int, ...]:
        """A list of integers."""
        items = self._items(name)
        found = tuple(
            item
            for item in items
            if isinstance(item, int) and not isinstance(item, bool) and abs(item) <= _LARGEST
        )
        if len(found) < len(items):
            raise self._error(name, "a list of integers")
        return found

    def numbers(self, name: str) -> tuple[float | None, ...]:
        """A list of finite numbers and nulls."""
        return tuple(
            None if item is None else self._finite(name, item) for item in self._items(name)
        )

    def scalars(self, name: str) -> dict[str, str | float]:
        """An object of strings and finite numbers; other members are left out."""
        found: dict[str, str | float] = {}
        for key, value in self.child(name).members.items():
            if isinstance(value, str):
                found[key] = value
            elif isinstance(value, int | float) and not isinstance(value, bool):
                found[key] = self._finite(name, value)
        return found

    def _items(self, name: str) -> Sequence[object]:
        value = self.members.get(name)
        if value is None:
            return ()
        if not isinstance(value, list):
            raise self._error(name, "a list")
        return value

    def _finite(self, name: str, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._error(name, "a number")
        if abs(value) > 1.7976931348623157e308 or math.isnan(value):
            raise self._error(name, "a finite number")
        return float(value)

    def _error(self, name: str, kind: str) -> FieldError:
        return FieldError(f"{self.where}.{name} is not {kind}")
