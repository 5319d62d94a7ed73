"""Canonical JSON: the one spelling of a certificate, read strictly.

The form is RFC 8785 restricted to objects, arrays, strings, integers of magnitude at most 2^53
and booleans. There are no floats, because a decimal number is not the float64 it is read as, and
there is no null, because what is absent is left out. Every value has exactly one spelling, so a
digest of the bytes is a digest of the value:

    value   = object | array | string | integer | "true" | "false"
    object  = "{" [ string ":" value { "," string ":" value } ] "}"
    array   = "[" [ value { "," value } ] "]"
    integer = "0" | [ "-" ] digit-1-to-9 { digit }
    string  = '"' { character | escape } '"'

without whitespace, keys strictly increasing by UTF-16 code units (hence never twice), control
characters as \\b \\t \\n \\f \\r or \\u00xx with lower-case digits, the quotation mark and the
backslash escaped, everything else as itself in UTF-8.

What enters the reader: untrusted bytes. What leaves: a value, or `CanonicalFormError` with the
place and the reason. Time is linear: every token is matched by an expression that never goes
back, and what is read is written again and compared with the bytes as a second line of defence.
"""

from __future__ import annotations

import re
from typing import Final, TypeAlias, final

Json: TypeAlias = "str | int | bool | list[Json] | dict[str, Json]"

MAX_BYTES: Final = 1 << 24
"""bytes of a text"""
MAX_DEPTH: Final = 64
"""objects and arrays inside one another"""
MAX_VALUES: Final = 1 << 20
"""values of a text, at all depths"""
MAX_INTEGER: Final = 1 << 53
"""magnitude of an integer, the largest range that every reader of JSON agrees on"""

_STRING: Final = re.compile(
    r'"[^"\\\x00-\x1f]*+(?:\\(?:["\\bfnrt]|u00(?:0[0-7be-f]|1[0-9a-f]))[^"\\\x00-\x1f]*+)*+"'
)
_INTEGER: Final = re.compile(r"0|-?[1-9][0-9]{0,15}")
_ESCAPE: Final = re.compile(r"\\(?:u(....)|(.))")
_SPECIAL: Final = re.compile(r'["\\\x00-\x1f]')
_SHORT: Final = {'"': '"', "\\": "\\", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_SHORT_BACK: Final = {character: escape for escape, character in _SHORT.items()}


@final
class CanonicalFormError(ValueError):
    """A text or a value that has no canonical form: where, and why."""

    def __init__(self, reason: str, position: int) -> None:
        super().__init__(f"{reason} (at byte {position})")
        self.reason = reason
        self.position = position


def read_canonical(data: bytes) -> Json:
    """The value of a canonical text; `CanonicalFormError` for any other bytes."""
    if len(data) > MAX_BYTES:
        raise CanonicalFormError(f"the text is longer than {MAX_BYTES} bytes", MAX_BYTES)
    try:
        text = data.decode("utf-8", errors="strict")
    except UnicodeDecodeError as error:
        raise CanonicalFormError("the text is not UTF-8", error.start) from None
    reader = _Reader(text)
    value = reader.value(depth=0)
    if reader.position != len(text):
        raise reader.error("there is more after the end of the value")
    if write_canonical(value) != data:
        raise CanonicalFormError("the text is not in canonical form", 0)
    return value


def write_canonical(value: Json) -> bytes:
    """The canonical text of a value: bytes that `read_canonical` accepts, always."""
    parts: list[str] = []
    count = _write(value, parts, depth=0)
    try:
        data = "".join(parts).encode("utf-8", errors="strict")
    except UnicodeEncodeError:
        raise CanonicalFormError("a string holds half of a surrogate pair", 0) from None
    if len(data) > MAX_BYTES or count > MAX_VALUES:
        raise CanonicalFormError("the value is too large for a certificate", 0)
    return data


@final
class _Reader:
    """A place in a text; each method reads one thing there and moves behind it."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._values = 0
        self.position = 0

    def error(self, reason: str) -> CanonicalFormError:
        """What is wrong at the present place, counted in bytes."""
        before = self._text[: self.position]
        return CanonicalFormError(reason, len(before.encode("utf-8")))

    def value(self, depth: int) -> Json:
        """Any value; `depth` objects and arrays are open around it."""
        self._values += 1
        if self._values > MAX_VALUES:
            raise self.error(f"there are more than {MAX_VALUES} values")
        if depth > MAX_DEPTH:
            raise self.error(f"values are nested more than {MAX_DEPTH} deep")
        match self._next():
            case "{":
                return self._object(depth)
            case "[":
                return self._array(depth)
            case '"':
                return self._string()
            case "t":
                return self._literal("true", True)
            case "f":
                return self._literal("false", False)
        return self._integer()

    def _next(self) -> str:
        return self._text[self.position : self.position + 1]

    def _take(self, character: str) -> bool:
        """Whether the next character is this one, and if so move behind it."""
        found = self._next() == character
        self.position += found
        return found

    def _object(self, depth: int) -> dict[str, Json]:
        self.position += 1
        members: dict[str, Json] = {}
        if self._take("}"):
            return members
        previous: bytes | None = None
        while True:
            key = self._string()
            order = _order(key)
            if previous is not None and order <= previous:
                raise self.error("a key is given twice, or keys are not sorted")
            previous = order
            if not self._take(":"):
                raise self.error("':' is missing after a key")
            members[key] = self.value(depth + 1)
            if self._take("}"):
                return members
            if not self._take(","):
                raise self.error("',' or '}' is missing in an object")

    def _array(self, depth: int) -> list[Json]:
        self.position += 1
        items: list[Json] = []
        if self._take("]"):
            return items
        while True:
            items.append(self.value(depth + 1))
            if self._take("]"):
                return items
            if not self._take(","):
                raise self.error("',' or ']' is missing in an array")

    def _string(self) -> str:
        found = _STRING.match(self._text, self.position)
        if found is None:
            raise self.error("a string is missing, unfinished or not canonical")
        self.position = found.end()
        return _ESCAPE.sub(_unescaped, found.group()[1:-1])

    def _literal(self, word: str, value: bool) -> bool:
        if not self._text.startswith(word, self.position):
            raise self.error(f"{word} is misspelt")
        self.position += len(word)
        return value

    def _integer(self) -> int:
        found = _INTEGER.match(self._text, self.position)
        if found is None:
            raise self.error("there is no value")
        number = int(found.group())
        if abs(number) > MAX_INTEGER:
            raise self.error("an integer is larger than 2^53")
        self.position = found.end()
        return number


def _order(key: str) -> bytes:
    """What keys are sorted by: their UTF-16 code units (RFC 8785, section 3.2.3)."""
    try:
        return key.encode("utf-16-be", errors="strict")
    except UnicodeEncodeError:
        raise CanonicalFormError("a key holds half of a surrogate pair", 0) from None


def _unescaped(escape: re.Match[str]) -> str:
    code, short = escape.groups()
    return chr(int(code, 16)) if code else _SHORT[short]


def _escaped(special: re.Match[str]) -> str:
    character = special.group()
    short = _SHORT_BACK.get(character)
    return f"\\{short}" if short else f"\\u{ord(character):04x}"


def _write(value: Json, parts: list[str], depth: int) -> int:
    """Append the text of a value to `parts`; how many values it consists of."""
    if depth > MAX_DEPTH:
        raise CanonicalFormError(f"values are nested more than {MAX_DEPTH} deep", 0)
    if value is True or value is False:
        parts.append("true" if value else "false")
    elif type(value) is int and abs(value) <= MAX_INTEGER:
        parts.append(str(value))
    elif type(value) is str:
        parts.append(_quoted(value))
    elif type(value) is list:
        return 1 + _write_all([("", item) for item in value], "[]", parts, depth)
    elif type(value) is dict and all(type(key) is str for key in value):
        named = [(f"{_quoted(key)}:", value[key]) for key in sorted(value, key=_order)]
        return 1 + _write_all(named, "{}", parts, depth)
    else:
        raise CanonicalFormError(f"a {type(value).__name__} has no canonical form here", 0)
    return 1


def _write_all(items: list[tuple[str, Json]], brackets: str, parts: list[str], depth: int) -> int:
    """Append bracketed items, each behind its prefix; how many values they consist of."""
    count = 0
    parts.append(brackets[0])
    for index, (prefix, item) in enumerate(items):
        parts.append(f",{prefix}" if index else prefix)
        count += _write(item, parts, depth + 1)
    parts.append(brackets[1])
    return count


def _quoted(text: str) -> str:
    return f'"{_SPECIAL.sub(_escaped, text)}"'
