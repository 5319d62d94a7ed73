"""Mutants of the text of a certificate: bytes that are none, and members edited blindly."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from lipcert.core.canonical import write_canonical
from lipcert.text.certificate import write_certificate
from tests.core.mutants.networks import Case
from tests.core.mutants.record import Effect, Mutant

__all__ = ["byte_mutants", "member_mutants"]

_WEAK, _FINE, _EITHER = Effect.WEAKENING, Effect.HARMLESS, Effect.WITNESS
_GRAMMAR: Final = frozenset({0})
_UNCLAIMED: Final = frozenset({"lipschitz", "grad_norm", "sensitivity", "noise_multiplier"})
Path = tuple[str | int, ...]


def byte_mutants(case: Case) -> Iterator[Mutant]:
    """Each is refused by the grammar."""
    data = write_certificate(case.certificate)
    number = b'"size":%d' % case.certificate.model.size
    for kind, text in (
        ("byte order mark", b"\xef\xbb\xbf" + data),
        ("UTF-16", data.decode().encode("utf-16")),
        ("trailing bytes", data + b" "),
        ("trailing bytes", data + b"\x00"),
        ("trailing bytes", data + b"\n"),
        ("two certificates", data + data),
        ("leading blank", b" " + data),
        ("nothing", b""),
        ("cut off", data[:-1]),
        ("cut off", data[: len(data) // 2]),
        ("NUL", data.replace(b"lipcert", b"lip\x00ert", 1)),
        ("lone surrogate", data.replace(b'"name":"lipcert"', b'"name":"\xed\xa0\x80"')),
        ("lone surrogate", data.replace(b'"name":"lipcert"', rb'"name":"\ud800"')),
        ("overlong UTF-8", data.replace(b'"name":"lipcert"', b'"name":"\xc0\xaf"')),
        ("escape", data.replace(b'"name":"lipcert"', rb'"name":"\u006c"')),
        ("escape", data.replace(b'"name":"lipcert"', rb'"name":"\/"')),
        ("Unicode digits", data.replace(number, '"size":١٢'.encode())),
        ("exponent", data.replace(number, b'"size":1e999')),
        ("exponent", data.replace(number, b'"size":1e2')),
        ("fraction", data.replace(number, b'"size":1.0')),
        ("leading zero", data.replace(number, b'"size":0' + number[7:])),
        ("sign", data.replace(number, b'"size":+1')),
        ("minus zero", data.replace(number, b'"size":-0')),
        ("negative", data.replace(number, b'"size":-1')),
        ("large", data.replace(number, b'"size":9007199254740993')),
        ("large", data.replace(number, b'"size":' + b"9" * 5000)),
        ("word", data.replace(number, b'"size":NaN')),
        ("word", data.replace(number, b'"size":null')),
        ("word", data.replace(number, b'"size":true')),
        ("duplicate key", data.replace(number, number + b"," + number)),
        ("blank inside", data.replace(b":", b": ", 1)),
        ("nesting", b"[" * 100_000),
        ("nesting", b'{"a":' * 100_000),
        ("nesting", b"[" * 100_000 + b"]" * 100_000),
        ("long array", b"[" + b"0," * 1_100_000 + b"0]"),
        ("long string", b'"' + b"x" * (1 << 24) + b'"'),
        ("another value", b"0"),
        ("another value", b'"x"'),
        ("another value", b"{}"),
    ):
        yield Mutant(f"text: {kind}", _WEAK, partial(bytes, text), _GRAMMAR)
    digest = case.certificate.model.sha256.encode()
    upper = data.replace(digest, digest.upper())
    yield Mutant("text: upper-case digest", _WEAK, partial(bytes, upper), _GRAMMAR)
    for spelling in _SPELLINGS:

        def spelled(spelling: str = spelling) -> bytes:
            found = json.loads(data)
            line = next(line for line in found["lines"] if "bound" in line)
            line["bound"] = spelling
            return write_canonical(found)

        yield Mutant("text: spelling of a bound", _WEAK, spelled, _GRAMMAR)


_SPELLINGS: Final = (
    "inf", "nan", "-inf", "0x1p+0", "0x1.0p+0", "0X1.0000000000000p+0", "0x1.8000000000000p+00",
    "0x1.8000000000000P+1", "-0x0.0p+0", "-0x1.0000000000000p+1", "1.0", "1e999", "0x1.8p+1 ",
    " 0x1.8000000000000p+1", "0x1.8000000000000p+1024", "0x1.8000000000000p+99999", "", "0x",
    "0x1.8000000000000p-1074", "0x٢.8000000000000p+1", "0x1.8000000000000p+1\n", "x" * 70_000,
    "0x0.0000000000001p-1023",
)  # fmt: skip


def member_mutants(case: Case) -> Iterator[Mutant]:
    """Every member dropped, doubled under another name, and of another type."""
    document: Any = json.loads(write_certificate(case.certificate))
    for path, value in _members(document, ()):
        if isinstance(path[-1], str) and not _is_data(path):
            yield _edited(document, path, "member dropped", None)
            yield _edited(document, path, "member of another type", 0 if type(value) is str else "")
        if isinstance(value, str) and not value.startswith("0x"):
            yield _edited(document, path, "text edited", f"{value}x")
        if isinstance(value, dict):
            yield _edited(document, (*path, "zeal"), "unknown member", 1)


def _members(value: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in items:
        yield (*path, key), inner
        if isinstance(inner, dict | list):
            yield from _members(inner, (*path, key))


def _is_data(path: Path) -> bool:
    """Inside of what is compared as a whole, or where names are data."""
    return "data" in path[:-1] or "opset" in path[:-1]


def _at(document: Any, path: Path) -> Any:
    for key in path:
        document = document[key]
    return document


def _edited(document: Any, path: Path, kind: str, value: Any) -> Mutant:
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


def _effect(path: Path, kind: str) -> Effect:
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
