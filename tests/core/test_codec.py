"""The codec: what is written is read, and nothing else is."""

import copy
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lipcert.core.codec import Bound, Limit, Sha256, member
from lipcert.text.certificate import FORMS
from lipcert.text.codec import DECIMAL, Codec
from tests.core.generated import values_of
from tests.core.test_canonical import VALUES


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, slots=True)
class Leaf:
    size: int
    kind: Literal["leaf"] = "leaf"


@dataclass(frozen=True, slots=True)
class Fork:
    leaves: tuple[Leaf, ...]


@dataclass(frozen=True, slots=True)
class Everything:
    text: str
    flag: bool
    number: float
    bound: Bound
    digest: Sha256
    pair: tuple[int, str]
    colour: Colour
    word: Literal["a", "b"]
    by_name: Mapping[str, float]
    by_place: Mapping[int, tuple[str, ...]]
    by_colour: Mapping[Colour, int]
    tree: Fork
    maybe: Leaf | None
    small: Annotated[int, Limit("small", lambda x: x < 9)]
    moved: int = field(metadata=member("around.moved"))
    beside: int | None = field(metadata=member("around.beside"))
    renamed: tuple[str, ...] = field(default=(), metadata=member("other", optional=True))


class WrongError(ValueError):
    pass


EXACT = Codec(WrongError, {float: FORMS[float]})
PLAIN = Codec(WrongError, {float: DECIMAL}, nulls=True)
LENIENT = Codec(WrongError, {float: DECIMAL}, nulls=True, extra=True)
SAMPLE = Everything(
    "t", True, 0.5, 2.0, "a" * 64, (1, "x"), Colour.RED, "b", {"n": -1.5}, {-3: ("y",)},
    {Colour.BLUE: 4}, Fork((Leaf(1),)), Leaf(2), 8, 7, 9, ("z",),
)  # fmt: skip
PLAINLY = {
    "text": "t",
    "flag": True,
    "number": 0.5,
    "bound": 2.0,
    "digest": "a" * 64,
    "pair": [1, "x"],
    "colour": "red",
    "word": "b",
    "by_name": {"n": -1.5},
    "by_place": {"-3": ["y"]},
    "by_colour": {"blue": 4},
    "tree": {"leaves": [{"kind": "leaf", "size": 1}]},
    "maybe": {"kind": "leaf", "size": 2},
    "small": 8,
    "around": {"moved": 7, "beside": 9},
    "other": ["z"],
}


def test_the_form_itself() -> None:
    assert PLAIN.write(SAMPLE) == PLAINLY
    assert PLAIN.read(Everything, PLAINLY, "it") == SAMPLE


@pytest.mark.parametrize("codec", [EXACT, PLAIN, LENIENT])
@given(values_of(Everything))
def test_what_is_written_is_read(codec: Codec, record: Everything) -> None:
    text = json.dumps(codec.write(record))
    assert codec.read(Everything, json.loads(text), "it") == record


@pytest.mark.parametrize("codec", [EXACT, PLAIN])
@given(record=values_of(Everything), data=st.data())
def test_what_was_changed_is_refused_or_another_record(
    codec: Codec, record: Everything, data: st.DataObject
) -> None:
    value = codec.write(record)
    name = data.draw(st.sampled_from(sorted(value)))
    value[name] = data.draw(VALUES)
    try:
        found = codec.read(Everything, value, "it")
    except WrongError as error:
        said = str(error)
    else:
        assert codec.write(found) == value
        return
    assert said.startswith(f"it.{name}")


@pytest.mark.parametrize("name", [name for name in PLAINLY if name != "other"])
def test_no_member_may_be_missing(name: str) -> None:
    value = {key: item for key, item in PLAINLY.items() if key != name}
    with pytest.raises(WrongError, match=rf"^it\.{name} is missing$|^it\.{name}\.moved"):
        PLAIN.read(Everything, value, "it")


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("flag",), 1, "it.flag is not true or false"),
        (("number",), True, "it.number is not a finite number"),
        (("number",), math.nan, "it.number is not a finite number"),
        (("number",), math.inf, "it.number is not a finite number"),
        (("number",), 10**400, "it.number is not a finite number"),
        (("bound",), -1.0, "it.bound is not a finite number that is not negative"),
        (("digest",), "A" * 64, "it.digest is not a SHA-256 digest"),
        (("pair",), [1], "it.pair is not a list of 2"),
        (("other",), [], "it.other says nothing, and is to be left out"),
        (("pair",), [True, "x"], "it.pair[0] is not a whole number"),
        (("colour",), "green", "it.colour is not 'red' or 'blue'"),
        (("colour",), ["red"], "it.colour is not 'red' or 'blue'"),
        (("by_name", "n"), "1", "it.by_name['n'] is not a finite number"),
        (("by_place",), {"03": []}, "it.by_place['03'] is not named by a whole number"),
        (("by_place",), {"\u0663": []}, "is not named by a whole number"),
        (("by_place", "-3", 0), 1, "it.by_place['-3'][0] is not a string"),
        (("by_colour",), {"green": 1}, "it.by_colour['green'] is not 'red' or 'blue'"),
        (("tree", "leaves", 0, "size"), -1, "it.tree.leaves[0].size is not a whole number"),
        (("tree", "leaves", 0, "size"), 2.0, "it.tree.leaves[0].size is not a whole number"),
        (("tree", "leaves", 0, "size"), 1 << 54, "it.tree.leaves[0].size is not a whole number"),
        (("maybe", "kind"), "fork", "it.maybe.kind is not 'leaf'"),
        (("small",), 9, "it.small is not small"),
        (("around",), [], "it.around is not an object"),
        (("around", "x"), 1, "it.around has the unknown member 'x'"),
        (("around.moved",), 1, "it has the unknown member 'around.moved'"),
        (("text",), "x" * ((1 << 16) + 1), "it.text is not a string of at most 65536 characters"),
        (("x" * 200,), 1, f"it has the unknown member {'x' * 80!r}"),
    ],
    ids=str,
)  # fmt: skip
def test_errors_name_the_place(path: tuple[str | int, ...], value: object, said: str) -> None:
    root: object = copy.deepcopy(PLAINLY)
    place = root
    for step in path[:-1]:
        place = place[step]  # type: ignore[index]
    place[path[-1]] = value  # type: ignore[index]
    with pytest.raises(WrongError) as error:
        PLAIN.read(Everything, root, "it")
    assert said in str(error.value)


def test_what_is_absent_is_left_out_or_null() -> None:
    assert EXACT.write(Leaf(1)) == {"kind": "leaf", "size": 1}
    absent = PLAIN.read(Everything, {**PLAINLY, "maybe": None}, "it")
    assert absent.maybe is None
    assert PLAIN.write(absent)["maybe"] is None
    written = EXACT.write(absent)
    assert "maybe" not in written
    assert EXACT.read(Everything, written, "it") == absent
    with pytest.raises(WrongError, match="maybe"):
        EXACT.read(Everything, {**written, "maybe": None}, "it")


def test_unknown_members_are_passed_over_where_the_dialect_says_so() -> None:
    assert LENIENT.read(Everything, {**PLAINLY, "x": 1}, "it") == SAMPLE


def test_a_type_without_a_form_is_a_mistake() -> None:
    with pytest.raises(TypeError, match="complex"):
        PLAIN.read(complex, 1, "it")


@dataclass(frozen=True, slots=True)
class Seed:
    rank: int
    place: str
    name: Literal["pine", "oak"] = "oak"

    def __post_init__(self) -> None:
        if not self.place:
            raise ValueError("a seed lies somewhere")


def test_a_dialect_may_say_what_the_record_does_not() -> None:
    said = {"Seed.rank": member(apart=True), "Seed.place": member("lies.here")}
    codec = Codec(WrongError, {}, members=said)
    assert codec.write(Seed(3, "x")) == {"lies": {"here": "x"}, "name": "oak"}
    assert codec.read(Seed, {"lies": {"here": "x"}, "name": "oak"}, "it", rank=3) == Seed(3, "x")
    with pytest.raises(WrongError, match="it has the unknown member 'rank'"):
        codec.read(Seed, {"lies": {"here": "x"}, "name": "oak", "rank": 3}, "it", rank=3)
    with pytest.raises(WrongError, match="it is not possible: a seed lies somewhere"):
        codec.read(Seed, {"lies": {"here": ""}, "name": "oak"}, "it", rank=3)
