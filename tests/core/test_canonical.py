import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lipcert.core import canonical
from lipcert.core.canonical import (
    MAX_BYTES,
    MAX_DEPTH,
    MAX_INTEGER,
    CanonicalFormError,
    read_canonical,
    write_canonical,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
SCALARS = st.booleans() | st.integers(-MAX_INTEGER, MAX_INTEGER) | TEXT
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)


def same(a, b) -> bool:
    """Equality that tells true from 1."""
    return a == b and json.dumps(a, sort_keys=True) == json.dumps(b, sort_keys=True)


@given(VALUES)
def test_what_is_written_is_read(value):
    data = write_canonical(value)
    assert same(read_canonical(data), value)
    assert same(json.loads(data), value)  # and it is JSON


@given(VALUES, st.data())
def test_every_changed_byte_is_refused_or_means_another_value(value, data):
    text = write_canonical(value)
    place = data.draw(st.integers(0, len(text) - 1))
    for byte in range(256):
        changed = text[:place] + bytes([byte]) + text[place + 1 :]
        if changed == text:
            continue
        try:
            found = read_canonical(changed)
        except CanonicalFormError:
            continue
        assert not same(found, value)
        assert write_canonical(found) == changed


def accepted_or_refused(data: bytes) -> None:
    """Either the bytes are canonical, or they are refused."""
    with suppress(CanonicalFormError):
        assert write_canonical(read_canonical(data)) == data


@given(VALUES, st.data())
def test_inserted_and_deleted_bytes(value, data):
    text = write_canonical(value)
    place = data.draw(st.integers(0, len(text)))
    inserted = data.draw(st.binary(min_size=1, max_size=3))
    accepted_or_refused(text[:place] + inserted + text[place:])
    accepted_or_refused(text[:place] + text[place + 1 :])


@given(st.binary(max_size=40))
def test_bytes_from_nowhere(data):
    accepted_or_refused(data)


def test_the_form_itself():
    value = {"b": [1, -2, True, False, []], "a": {"é": '"\\/\b\t\n\f\r\x01\x1f\x7f\u2028'}, "": {}}
    assert write_canonical(value) == (
        b'{"":{},"a":{"\xc3\xa9":"\\"\\\\/\\b\\t\\n\\f\\r\\u0001\\u001f\x7f\xe2\x80\xa8"},'
        b'"b":[1,-2,true,false,[]]}'
    )


def test_keys_are_sorted_by_utf16_code_units():
    # U+10000 is spelt D800 DC00 in UTF-16 and comes before U+E000, though its number is larger
    assert list(read_canonical('{"\U00010000":1,"\ue000":2}'.encode())) == ["\U00010000", "\ue000"]
    with pytest.raises(CanonicalFormError, match="canonical form"):
        read_canonical('{"\ue000":2,"\U00010000":1}'.encode())


REFUSED = {
    "nothing": b"",
    "byte order mark": b"\xef\xbb\xbf{}",
    "UTF-16": '{"a":1}'.encode("utf-16"),
    "overlong UTF-8": b'"\xc0\xaf"',
    "surrogate in UTF-8": b'"\xed\xa0\x80"',
    "lone surrogate": b'"\\ud800"',
    "escaped pair": b'"\\ud83d\\ude00"',
    "needless escape": b'"\\u0041"',
    "long escape of a short one": b'"\\u000a"',
    "upper-case escape": b'"\\u001F"',
    "escaped slash": b'"\\/"',
    "raw control character": b'"\n"',
    "space": b'{"a": 1}',
    "newline at the end": b"{}\n",
    "same key twice": b'{"a":1,"a":2}',
    "same key twice, escaped": b'{"a":1,"\\u0061":2}',
    "keys not sorted": b'{"b":1,"a":2}',
    "null": b"null",
    "NaN": b"NaN",
    "-Infinity": b"-Infinity",
    "decimal": b"1.0",
    "exponent": b"1e999",
    "negative zero": b"-0",
    "2^53 + 1": str(2**53 + 1).encode(),
    "5000 digits": b"9" * 5000,
    "10^5 arrays": b"[" * 100_000 + b"]" * 100_000,
    "10^5 objects": b'{"a":' * 100_000,
    "10^5 open quotes": b'["' + b"\\n" * 100_000,
    "10^6 backslashes": b'"' + b"\\" * 1_000_001,
    "17 MiB": b'"' + b"a" * (17 << 20) + b'"',
    "16 MiB of garbage": b"\xff" * (1 << 24),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_refused(kind):
    with pytest.raises(CanonicalFormError):
        read_canonical(REFUSED[kind])


def test_the_limits_themselves_are_allowed():
    deep = b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1)
    assert write_canonical(read_canonical(deep)) == deep
    with pytest.raises(CanonicalFormError, match="nested"):
        read_canonical(b"[" + deep + b"]")
    long = b'"' + b"a" * (MAX_BYTES - 2) + b'"'
    assert len(read_canonical(long)) == MAX_BYTES - 2
    assert read_canonical(str(2**53).encode()) == 2**53
    assert read_canonical(b"-9007199254740992") == -(2**53)


@pytest.mark.parametrize(
    "value", [1.0, None, (1,), b"a", {1: 2}, "\ud800", {"\udc00": 1}, 2**53 + 1]
)
def test_values_without_a_form(value):
    with pytest.raises(CanonicalFormError):
        write_canonical([value])


def test_values_too_large_to_be_read_are_not_written():
    nested: list = []
    for _ in range(MAX_DEPTH + 1):
        nested = [nested]
    for value in (nested, "a" * MAX_BYTES):
        with pytest.raises(CanonicalFormError):
            write_canonical(value)


def test_values_are_counted_at_all_depths(monkeypatch):
    monkeypatch.setattr(canonical, "MAX_VALUES", 6)
    allowed = [[0], {"a": 0}, 0]
    assert read_canonical(write_canonical(allowed)) == allowed
    with pytest.raises(CanonicalFormError, match="more than 6 values"):
        write_canonical([allowed])
    with pytest.raises(CanonicalFormError, match="more than 6 values"):
        read_canonical(b"[0,0,0,0,0,0]")
