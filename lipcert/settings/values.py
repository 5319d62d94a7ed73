"""Values: what settings admit, how users write them in Python, and patterns of names.

Choices: a word or a number that settings do not admit is a `UsageError` that names the key and what
to write instead. Invariant: every word of the command line is declared in exactly one place: a
`Literal` here, or the table of losses.

Conversion: integers become floats, scalars of numpy or torch plain numbers, lists tuples, texts
constraints; a value of another type is a `UsageError` that names the key and says what to give.
Invariant: nothing is rounded, and nothing is guessed: a bool or a text is not a number, a float
with a fraction is not a count.

Patterns: names, or globs of names, select parameters, layers and groups. Invariant: a name matches
itself, whatever characters it has, and the first of several matching patterns counts.

Missing values: one message lists all that a request lacks, in the words of the command line.
"""

import difflib
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final, Literal, TypeAlias, TypeVar, get_args

from lipcert.core.losses import KINDS
from lipcert.errors import UsageError

LOSSES: Final = ("auto", *KINDS)
TermsName = Literal["mean", "sum"]
AxisName = Literal["first", "last"]
ScopeName = Literal["auto", "point", "constraint-set"]
ConstraintName = Literal["spectral", "frobenius"]
GroupName = Literal["parameter", "layer"]
AllocationName = Literal["global", "per-layer", "optimal", "custom"]
NeighboursName = Literal["add-remove", "replace-one", "zero-out"]
ReductionName = Literal["auto", "mean", "sum"]
TierName = Literal["quick", "fast", "tight"]
SamplingName = Literal["poisson", "balls-in-bins", "without-replacement", "shuffle", "full-batch"]
AccountantName = Literal["auto", "pld", "rdp"]
SizeSourceName = Literal["declared", "data"]


_ALSO_CALLED: Final = {
    "ce": "cross-entropy",
    "softmax": "cross-entropy",
    "categoricalcrossentropy": "cross-entropy",
    "bcewithlogits": "bce",
    "logistic": "bce",
    "l1": "mae",
    "l2": "mse",
    "smoothl1": "huber",
    "hinge": "multiclass-hinge",
    "moments": "rdp",
    "gdp": "pld",
    "prv": "pld",
    "uniform": "without-replacement",
    "fixedsize": "without-replacement",
    "substitute": "replace-one",
    "dpsgd": "gradient-clipping",
}
"""What other tools call a choice, without hyphens, and losses without this word."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return "did you mean 'x'?" for the most similar known name, "" if none is similar."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else ""


def check_choice(key: str, value: str, choices: tuple[str, ...]) -> None:
    """Raise UsageError unless the value is one of the choices."""
    if value not in choices:
        plain = re.sub("loss$|[-_]", "", str(value).lower())
        also = _ALSO_CALLED.get(plain, plain)
        hint = f"did you mean {also!r}?" if also in choices else nearest(str(value), choices)
        raise UsageError(
            f"{key}: {value!r} is not one of {', '.join(choices)}{hint and '; ' + hint}"
        )


def check_positive(key: str, value: float | None) -> None:
    """Raise UsageError unless the value is absent, or finite and above 0."""
    if value is not None and not (math.isfinite(value) and value > 0.0):
        raise UsageError(f"{key}: {value!r} is not a positive finite number")


def check_nonnegative(key: str, value: float | None) -> None:
    """Raise UsageError unless the value is absent, or finite and at least 0."""
    if value is not None and not (math.isfinite(value) and value >= 0.0):
        raise UsageError(f"{key}: {value!r} is not a non-negative finite number")


Kind: TypeAlias = Callable[[str, object], object]
"""Converts a value to its type; the key is for messages."""

_T = TypeVar("_T")
_PAIR = 2


def convert(record: object, kinds: Mapping[str, Kind]) -> None:
    """Convert fields of a frozen record in place, while it is made; None stays "not given"."""
    for field, kind in kinds.items():
        value = getattr(record, field)
        if value is not None:
            object.__setattr__(record, field, kind(field.replace("_", "-"), value))


def number(key: str, value: object) -> float:
    """Return a float64 of the same value; NaN and infinities are numbers here."""
    plain = _plain(value)
    if not isinstance(plain, int | float) or isinstance(plain, bool):
        raise UsageError(f"{key}: {_shown(value)} is not a number; give one, such as 1.0")
    try:
        found = float(plain)
    except OverflowError:
        found = math.inf
    if found != plain and not math.isnan(found):
        raise UsageError(f"{key}: {plain} is not a float64; give a number that is one")
    return found


def whole(key: str, value: object) -> int:
    """Return an int; a float is accepted only without a fraction."""
    plain = _plain(value)
    if isinstance(plain, float) and plain.is_integer():
        return int(plain)
    if not isinstance(plain, int) or isinstance(plain, bool):
        raise UsageError(f"{key}: {_shown(value)} is not a whole number; give one, such as 1")
    return int(plain)


def switch(key: str, value: object) -> bool:
    """Return True or False; UsageError for anything else."""
    plain = _plain(value)
    if not isinstance(plain, bool):
        raise UsageError(f"{key}: {_shown(value)} is neither true nor false")
    return plain


def word(key: str, value: object) -> str:
    """Return a text unchanged; UsageError for anything else."""
    if not isinstance(value, str):
        raise UsageError(f"{key}: {_shown(value)} is not a name; give a text")
    return value


def pair(key: str, value: object) -> tuple[float, float]:
    """Return two numbers, such as two ends."""
    items = _items(value)
    if items is None or len(items) != _PAIR:
        raise UsageError(f"{key}: {_shown(value)} is not a pair; give (LO, HI), such as (0.0, 1.0)")
    return number(key, items[0]), number(key, items[1])


def names(key: str, value: object) -> tuple[str, ...]:
    """Return texts; a single one is a list of one."""
    items = [value] if isinstance(value, str) else _items(value)
    if items is None:
        raise UsageError(f"{key}: {_shown(value)} is not a list of names; give ('NAME', 'GLOB*')")
    return tuple(word(key, item) for item in items)


def table(key: str, value: object, kind: Callable[[str, object], _T]) -> tuple[tuple[str, _T], ...]:
    """Return names with a value each, from a mapping or from pairs."""
    items = list(value.items()) if isinstance(value, Mapping) else _items(value)
    pairs = [] if items is None else [_items(item) for item in items]
    if items is None or any(item is None or len(item) != _PAIR for item in pairs):
        raise UsageError(f"{key}: {_shown(value)} is not a table; give {{'NAME or GLOB': value}}")
    return tuple((word(key, item[0]), kind(f"{key}, {item[0]}", item[1])) for item in pairs if item)


def _plain(value: Any) -> object:
    """Return the value of a numpy or torch scalar; anything else is unchanged."""
    is_scalar = getattr(value, "shape", None) == () and callable(getattr(value, "item", None))
    return value.item() if is_scalar else value


def _items(value: object) -> list[object] | None:
    """Return the items of a list, a tuple or a one-dimensional array; None for anything else."""
    if isinstance(value, list | tuple):
        return list(value)
    is_array = len(getattr(value, "shape", ())) == 1 and isinstance(value, Iterable)
    return list(value) if is_array and isinstance(value, Iterable) else None


def _shown(value: object) -> str:
    """Return a value as one line of a message."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}…"


_V = TypeVar("_V")


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Whether one of the patterns matches the name."""
    return any(name == pattern or fnmatchcase(name, pattern) for pattern in patterns)


def first_match(table: Iterable[tuple[str, _V]], names: Collection[str], otherwise: _V) -> _V:
    """Return the value of the first pattern that matches one of the names."""
    for pattern, value in table:
        if any(matches(name, (pattern,)) for name in names):
            return value
    return otherwise


def check_patterns(
    key: str, patterns: Iterable[str], names: Sequence[str], what: str = "parameter"
) -> None:
    """Raise UsageError if a pattern matches no name: a typo must not change a bound."""
    for pattern in patterns:
        if not any(matches(name, (pattern,)) for name in names):
            hint = nearest(pattern, names) or "`lipcert inspect` lists the names"
            raise UsageError(f"{key}: {pattern!r} matches no {what}; {hint}")


def literal(name: str) -> str:
    """Return a pattern that matches this name and nothing else."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)


def globs(names: Collection[str], others: Iterable[str]) -> tuple[str, ...]:
    """Return patterns that match these names and none of the others; digits become wildcards."""
    kept, found = [name for name in others if name not in names], dict[str, None]()
    for name in names:
        wide = re.sub(r"\d+", "*", literal(name)) if _is_plain(name) else literal(name)
        fits = not any(matches(other, (wide,)) for other in kept)
        found[wide if fits else literal(name)] = None
    several = [g for g in found if sum(matches(name, (g,)) for name in names) > 1]
    single = [
        literal(name) for name in names if not any(matches(name, (glob,)) for glob in several)
    ]
    return tuple(dict.fromkeys([*several, *single]))


def _is_plain(name: str) -> bool:
    return not set(name) & set("*?[]")


Asks: TypeAlias = dict[str, tuple[str, ...]]
"""Options as they are written, by what needs them."""

_RUN: Final = "for the ε of a run"
_SAMPLINGS: Final = "|".join(get_args(SamplingName))


def asks_of_run(given: Mapping[str, object]) -> Asks:
    """Return what a `TrainingPlan` lacks; given: values by setting, None if not given."""
    whole = given.get("sampling") == "full-batch"
    asked = {
        "--dataset-size N": ("dataset_size",),
        f"--sampling {_SAMPLINGS}": ("sampling",),
        "--delta D<1/N": ("delta",),
        "--batch-size B": ("sampling" if whole else "batch_size",),
        "--steps T or --epochs E": ("steps", "epochs"),
    }
    absent = tuple(
        option for option, keys in asked.items() if all(given.get(key) is None for key in keys)
    )
    return {_RUN: absent} if absent else {}


def besides_the_run(asks: Asks) -> Asks:
    """Return what is missing for anything but the ε of a run."""
    return {why: options for why, options in asks.items() if why != _RUN}


def listed(asks: Asks) -> str:
    """Return what is missing, in words."""
    return "; ".join(f"{', '.join(options)} ({why})" for why, options in asks.items())


def missing(asks: Asks) -> UsageError:
    """Return the error that lists what is missing."""
    return UsageError(f"missing: give {listed(asks)}")
