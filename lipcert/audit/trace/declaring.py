"""Declaring: what the author of a run states, taken as words and numbers, and added up.

What enters: members of a `Declaration` by name. What leaves: a `Declaration`, or a `UsageError`
that says which member is unknown or contradicts what was declared before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, Final

from lipcert.audit.trace.records import Declaration, Reduction
from lipcert.choices import check_choice
from lipcert.conversion import number, table
from lipcert.errors import UsageError
from lipcert.privacy.plan import Sampling
from lipcert.settings import kinds_of

_BY_GROUP: Final = ("noise_std", "clip_norms")


def word_of(choices: Any, name: str, word: object) -> Any:
    """A member of an enum, given as itself or as its word."""
    if isinstance(word, choices):
        return word
    check_choice(f"recorder: {name}", str(word), tuple(item.value for item in choices))
    return choices(word)


def declaration_of(declared: Mapping[str, Any]) -> Declaration:
    """A declaration from its members by name; words will do for its enums."""
    names = tuple(item.name for item in fields(Declaration))
    for name in declared:
        check_choice("recorder: declare", name, names)
    known = dict(declared)
    for name, choices in (("sampling", Sampling), ("reduction", Reduction)):
        if known.get(name) is not None:
            known[name] = word_of(choices, name, known[name])
    for name, kind in kinds_of(Declaration).items():
        if known.get(name) is not None:
            known[name] = kind(f"recorder: {name}", known[name])
    for name in _BY_GROUP:
        if known.get(name) is not None:
            known[name] = dict(table(f"recorder: {name}", known[name], number))
    if "groups" in known:
        known["groups"] = {group: tuple(names) for group, names in known["groups"].items()}
    return Declaration(**known)


def merged(first: Declaration, second: Declaration) -> Declaration:
    """Both declarations; UsageError where they contradict each other."""
    empty = Declaration()
    changes: dict[str, Any] = {}
    for item in fields(Declaration):
        old, new = getattr(first, item.name), getattr(second, item.name)
        nothing = getattr(empty, item.name)
        if new != nothing:
            if old not in (nothing, new):
                raise UsageError(f"recorder: {item.name} is declared as {old!r} and as {new!r}")
            changes[item.name] = new
    return replace(first, **changes)


def is_part(part: Declaration, whole: Declaration) -> bool:
    """Whether everything declared in one is declared so in the other."""
    empty = Declaration()
    return all(
        getattr(part, item.name) in (getattr(empty, item.name), getattr(whole, item.name))
        for item in fields(Declaration)
    )
