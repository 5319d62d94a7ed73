"""Patterns: names, or globs of names, by which settings select parameters, layers and groups.

Invariant: a name fits itself, whatever letters it has, and of several patterns the first that fits
counts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from fnmatch import fnmatchcase
from typing import TypeVar

from lipcert.errors import UsageError
from lipcert.settings.choices import nearest

_V = TypeVar("_V")


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Whether one of the patterns fits the name."""
    return any(name == pattern or fnmatchcase(name, pattern) for pattern in patterns)


def first_match(table: Iterable[tuple[str, _V]], names: Collection[str], otherwise: _V) -> _V:
    """What stands beside the first pattern that fits one of the names."""
    for pattern, value in table:
        if any(matches(name, (pattern,)) for name in names):
            return value
    return otherwise


def check_patterns(
    key: str, patterns: Iterable[str], names: Sequence[str], what: str = "parameter"
) -> None:
    """UsageError if a pattern fits no name: a typing error must not change a bound."""
    for pattern in patterns:
        if not any(matches(name, (pattern,)) for name in names):
            hint = nearest(pattern, names) or "`lipcert inspect` lists the names"
            raise UsageError(f"{key}: {pattern!r} matches no {what}; {hint}")


def literal(name: str) -> str:
    """A name as a pattern that fits nothing else."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)
