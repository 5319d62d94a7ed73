"""Records of `lipcert.core.dataclass` beside those of the standard library."""

import copy
import dataclasses
import pickle
from dataclasses import FrozenInstanceError, asdict, field, fields, replace

import pytest

from lipcert.core.dataclass import dataclass


def described(make):
    """A family of classes, by one decorator or the other."""

    @make(frozen=True, slots=True)
    class Plain:
        """Has a text."""

        first: int
        second: tuple[float, ...] = ()
        hidden: object = field(default=None, repr=False, compare=False)
        listed: list[int] = field(default_factory=list)

    @make(frozen=True, slots=True, kw_only=True)
    class Named:
        first: int
        second: str = "s"

    @make(frozen=True, slots=True, eq=False)
    class Single:
        first: object

        def __post_init__(self):
            if self.first is None:
                raise ValueError("nothing")

    @make(frozen=True, slots=True)
    class Mine:  # noqa: PLW1641  a frozen record has one
        first: int

        def __eq__(self, other):
            return True

        def __repr__(self):
            return "mine"

    @make(frozen=True, slots=True)
    class Empty:
        pass

    @make(frozen=True, slots=True)
    class Child(Plain):
        last: int = 7

    @make(frozen=True, slots=True)
    class Late:
        first: int
        second: int = field(init=False)
        third: int = field(default=3, init=False)
        fourth: list[int] = field(default_factory=list, init=False)

        def __post_init__(self):
            object.__setattr__(self, "second", 2 * self.first)

    return Plain, Named, Single, Mine, Empty, Child, Late


OURS = described(dataclass)
THEIRS = described(dataclasses.dataclass)
PAIRS = list(zip(OURS, THEIRS, strict=True))


@pytest.mark.parametrize("kind", [0, 1], ids=["ours", "theirs"])
def test_records(kind):
    plain, named, single, mine, empty, child, late = (pair[kind] for pair in PAIRS)
    one = plain(1, (2.0,))
    assert repr(one) == f"{plain.__qualname__}(first=1, second=(2.0,), listed=[])"
    assert one == plain(first=1, second=(2.0,), hidden=3)
    assert one != plain(2, (2.0,))
    assert one != child(1, (2.0,))
    assert one.listed is not plain(1).listed
    assert replace(one, first=5) == plain(5, (2.0,))
    assert asdict(one) == {"first": 1, "second": (2.0,), "hidden": None, "listed": []}
    assert hash(named(first=1)) == hash(named(first=1, second="s"))
    assert {named(first=1), named(first=1)} == {named(first=1)}
    assert repr(named(first=1)) == f"{named.__qualname__}(first=1, second='s')"
    assert single(1) != single(1)
    assert len({single(1), single(1)}) == 2
    with pytest.raises(ValueError, match="nothing"):
        single(None)
    assert mine(1) == mine(2)
    assert hash(mine(1)) == hash(mine(1))
    assert repr(mine(1)) == "mine"
    assert empty() == empty()
    assert child(1).last == 7
    assert repr(late(1)) == f"{late.__qualname__}(first=1, second=2, third=3, fourth=[])"
    assert late(1) == late(1)
    assert late(1).fourth is not late(1).fourth
    with pytest.raises(TypeError, match="__init__"):
        late(1, 2)
    assert plain.__match_args__ == ("first", "second", "hidden", "listed")
    assert not hasattr(one, "__dict__")
    assert plain.__doc__ == "Has a text."
    match child(1, (), None, [3], 4):
        case plain(first, _, _, [third]):
            assert (first, third) == (1, 3)
    for calls in (plain, named, lambda: named(1), lambda: plain(1, other=2)):
        with pytest.raises(TypeError, match="__init__"):
            calls()


@pytest.mark.parametrize("kind", [0, 1], ids=["ours", "theirs"])
def test_nothing_changes(kind):
    one = PAIRS[0][kind](1)
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'first'"):
        one.first = 2
    with pytest.raises(FrozenInstanceError, match="cannot delete field 'first'"):
        del one.first
    assert one.first == 1


def test_fields_are_those_of_the_standard_library():
    for ours, theirs in PAIRS:
        assert [(f.name, f.type, f.kw_only) for f in fields(ours)] == [
            (f.name, f.type, f.kw_only) for f in fields(theirs)
        ]


@dataclass(frozen=True, slots=True)
class Kept:
    """Can be found by its name."""

    first: int
    second: tuple[int, ...] = ()


def test_copies():
    one = Kept(1, (2,))
    assert pickle.loads(pickle.dumps(one)) == one
    assert copy.copy(one) == one
    assert copy.deepcopy(one) == one


def test_other_records_are_those_of_the_standard_library():
    @dataclass
    class Open:
        first: int

    @dataclass(frozen=True, slots=True, order=True)
    class Ordered:
        first: int

    one = Open(1)
    one.first = 2
    assert one == Open(2)
    assert Ordered(1) < Ordered(2)
