import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lipcert.core.canonical import MAX_DIGITS, READERS, read_float, read_rational
from lipcert.core.codec import Bound, Codec, CodecError, Sha256
from lipcert.text.certificate import write_float, write_rational

CODEC = Codec(CodecError, READERS)


def bound(text):
    return CODEC.reader(Bound)(text)


def digest(text):
    return CODEC.reader(Sha256)(text)


FLOATS = st.floats(allow_nan=False, allow_infinity=False)


@given(FLOATS)
def test_floats_come_back(number):
    assert read_float(write_float(number)) == number


@given(FLOATS, st.data())
def test_one_spelling_only(number, data):
    text = write_float(number)
    place = data.draw(st.integers(0, len(text)))
    character = data.draw(st.sampled_from("0123456789abcdefABCDEFxXpP+-._ ٣"))
    for other in (
        text[:place] + character + text[place:],
        text[:place] + character + text[place + 1 :],
    ):
        if other != text:
            try:
                assert read_float(other) != number
            except CodecError:
                continue
            assert write_float(read_float(other)) == other


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1e3",
        "nan",
        "-0x0.0p+0",
        "0x1p+0",
        "0X1.0000000000000P+0",
        "0x1.0000000000000p+1024",
        "0x1.0000000000000p+01",
        "0x1.0000000000000p-1023",
        "0x0.0000000000000p-1022",
        "0x1.00000000000008p+0",
        " 0x1.0000000000000p+0",
        "0x1.0000000000000p+0\n",
        "0x1.0000000000000p+٣",
        "0x1." + "0" * 10**6 + "p+0",
    ],
)
def test_other_spellings_of_floats(text):
    with pytest.raises(CodecError):
        read_float(text)


def test_extreme_floats():
    for number in (0.0, 5e-324, 2.0**-1022, math.nextafter(math.inf, 0.0)):
        assert bound(write_float(number)) == number
        assert read_float(write_float(-number)) == -number
    assert write_float(-0.0) == "0x0.0p+0"


def test_bounds_are_not_negative():
    assert bound("0x1.0000000000000p+0") == 1.0
    with pytest.raises(CodecError, match="not negative"):
        bound("-0x1.0000000000000p+0")
    for number in (math.nan, math.inf, -math.inf):
        with pytest.raises(CodecError):
            write_float(number)


@given(st.fractions(min_value=0))
def test_rationals_come_back(number):
    assert read_rational(write_rational(number)) == number


@pytest.mark.parametrize(
    ("above", "below"),
    [
        ("1", "0"),
        ("2", "4"),
        ("0", "2"),
        ("1", "-2"),
        ("01", "2"),
        ("١", "2"),
        ("", "1"),
        ("1", "2\n"),
        ("9" * (MAX_DIGITS + 1), "1"),
        ("1", "9" * 10**6),
    ],
)
def test_other_spellings_of_rationals(above, below):
    with pytest.raises(CodecError):
        read_rational([above, below])


def test_rationals_that_cannot_be_written():
    for number in (Fraction(-1, 2), Fraction(10**MAX_DIGITS), Fraction(1, 10**MAX_DIGITS)):
        with pytest.raises(CodecError):
            write_rational(number)
    assert read_rational(["0", "1"]) == 0


def test_digests():
    assert digest("0123456789abcdef" * 4) == "0123456789abcdef" * 4
    for text in ("", "0" * 63, "0" * 65, "A" * 64, "٠" * 64, "0" * 63 + "\n", "0" * 64 + "\n"):
        with pytest.raises(CodecError):
            digest(text)
