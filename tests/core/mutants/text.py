"""Mutants of the text of a certificate: members edited blindly."""

import copy
import json

from lipcert.core.canonical import write_canonical
from lipcert.text.certificate import write_certificate
from tests.core.mutants.record import Effect, Mutant

_WEAK, _FINE, _EITHER = Effect.WEAKENING, Effect.HARMLESS, Effect.WITNESS
_UNCLAIMED = frozenset({"lipschitz", "grad_norm", "sensitivity", "noise_multiplier"})


def member_mutants(case):
    """Every member dropped, doubled under another name, and of another type."""
    document = json.loads(write_certificate(case.certificate))
    for path, value in _members(document, ()):
        if isinstance(path[-1], str) and not _is_data(path):
            yield _edited(document, path, "member dropped", None)
            yield _edited(document, path, "member of another type", 0 if type(value) is str else "")
        if isinstance(value, str) and not value.startswith("0x"):
            yield _edited(document, path, "text edited", f"{value}x")
        if isinstance(value, dict):
            yield _edited(document, (*path, "zeal"), "unknown member", 1)


def _members(value, path):
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in items:
        yield (*path, key), inner
        if isinstance(inner, dict | list):
            yield from _members(inner, (*path, key))


def _is_data(path) -> bool:
    """Inside of what is compared as a whole, or where names are data."""
    return "data" in path[:-1] or "opset" in path[:-1]


def _at(document, path):
    for key in path:
        document = document[key]
    return document


def _edited(document, path, kind: str, value) -> Mutant:
    def edited() -> bytes:
        changed = copy.deepcopy(document)
        holder = _at(changed, path[:-1])
        if value is None:
            del holder[path[-1]]
        else:
            holder[path[-1]] = value
        return write_canonical(changed)

    unknown = path[0] == "assumptions" and kind != "unknown member"
    return Mutant(kind, _effect(path, kind), edited, may_be_unknown=unknown)


def _effect(path, kind: str) -> Effect:
    name = path[-1]
    if kind == "member dropped" and path[0] == "lines" and name == "bound":
        return _EITHER
    if kind == "member dropped" and name in _UNCLAIMED and path[:2] != ("outputs", "parameters"):
        return _WEAK if path[:2] == ("outputs", "groups") else _FINE
    if kind == "text edited":
        documentary = path[0] == "tool" or path == ("privacy", "accountant")
        label = path[:2] == ("outputs", "groups") and name == "name"
        if documentary or label:
            return _FINE
        return _WEAK
    return _WEAK
