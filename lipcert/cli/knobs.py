"""Knobs: every setting a user may give, under one key for all sources.

The key `input-norm` is the option `--input-norm`, the variable `LIPCERT_INPUT_NORM`, the TOML key
`input-norm` and the field `Settings.input_norm`. What enters: raw text or TOML values. What
leaves: values of the field's type; what they mean is checked by `Settings` alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, dataclass, fields
from fractions import Fraction
from types import MappingProxyType
from typing import Any, Final, cast, final

from lipcert.errors import UsageError
from lipcert.settings.settings import CHOICES, NO_CLIP, ConstraintSpec, Settings, key_of


@final
@dataclass(frozen=True, slots=True)
class Knob:
    """One setting: how it is written, read and explained.

    parse turns text or a TOML value into the field's value, or raises `UsageError`.
    count: how many words the option takes; 0: it is a switch. repeated: it may be given again.
    """

    key: str
    parse: Callable[[object], object]
    metavar: str
    text: str
    count: int = 1
    repeated: bool = False

    @property
    def field(self) -> str:
        """Name of the field of `Settings`."""
        return self.key.replace("-", "_")

    @property
    def option(self) -> str:
        """Name on the command line."""
        return f"--{self.key}"

    @property
    def variable(self) -> str:
        """Name in the environment."""
        return f"LIPCERT_{self.field.upper()}"


def _pairs(raw: object) -> tuple[tuple[str, float], ...]:
    """A table, or text such as `cls=1,reg=0.5`."""
    if isinstance(raw, str):
        raw = dict(item.rpartition("=")[::2] for item in raw.split(","))
    return cast("tuple[tuple[str, float], ...]", _table("outputs and weights", _number)(raw))


def _loss(raw: object) -> object:
    return raw if isinstance(raw, dict) else _word(raw)


def _table(what: str, parse: Callable[[object], object]) -> Callable[[object], object]:
    """How a TOML table {name or glob: value} is read."""

    def read(raw: object) -> tuple[tuple[str, object], ...]:
        if not isinstance(raw, dict):
            raise UsageError(f"{raw!r} is not a table of {what}")
        table = cast("dict[str, object]", raw)
        return tuple((pattern, parse(value)) for pattern, value in table.items())

    return read


def _number(raw: object) -> float:
    if isinstance(raw, str | int | float) and not isinstance(raw, bool):
        try:
            return float(raw)
        except (ValueError, OverflowError):
            pass
    raise UsageError(f"{raw!r} is not a number")


def _rate(raw: object) -> float:
    """A number, or a fraction such as `1/45`."""
    if isinstance(raw, str) and "/" in raw:
        try:
            return float(Fraction(raw))
        except (ValueError, ZeroDivisionError, OverflowError):
            pass
    return _number(raw)


def _radius(raw: object) -> object:
    return NO_CLIP if raw == NO_CLIP else _number(raw)


def _whole(raw: object) -> int:
    if isinstance(raw, str | int) and not isinstance(raw, bool):
        try:
            return int(raw)
        except ValueError:
            pass
    raise UsageError(f"{raw!r} is not a whole number")


def _word(raw: object) -> str:
    if isinstance(raw, str) and raw:
        return raw
    raise UsageError(f"{raw!r} is not a name")


def _switch(raw: object) -> bool:
    if isinstance(raw, bool):
        return raw
    words = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
    if isinstance(raw, str) and raw.lower() in words:
        return words[raw.lower()]
    raise UsageError(f"{raw!r} is neither true nor false")


def _box(raw: object) -> object:
    """LO HI, and NAME=LO HI of single inputs, in any number; or a table of them."""
    if isinstance(raw, dict):
        return {name: _box(value) for name, value in raw.items()}
    ends = [end for item in _items(raw) for end in (item if isinstance(item, tuple) else (item,))]
    if not ends or len(ends) % 2:
        raise UsageError(f"{raw!r} is not a pair LO HI, or NAME=LO HI of one of several inputs")
    pairs = zip(ends[::2], ends[1::2], strict=True)
    return _by_input(raw, ((*_named(low), _number(high)) for low, high in pairs))


def _norm(raw: object) -> object:
    """R, and NAME=R of single inputs, in any number; or a table of them."""
    if isinstance(raw, dict):
        return {name: _number(value) for name, value in raw.items()}
    words = [raw] if isinstance(raw, int | float) else _items(raw)
    return _by_input(raw, map(_named, words))


def _named(word: object) -> tuple[str, float]:
    """The name of an input, or nothing, and a number."""
    name, _, number = word.rpartition("=") if isinstance(word, str) else ("", "", word)
    return name, _number(number)


def _by_input(raw: object, items: Iterable[tuple[str, *tuple[float, ...]]]) -> object:
    """What is given by input, as a table; alone what is given of all."""
    found: dict[str, object] = {}
    for name, *numbers in items:
        if name in found:
            raise UsageError(f"{raw!r} says two things of {name or 'all inputs'!r}")
        found[name] = numbers[0] if len(numbers) == 1 else tuple(numbers)
    return found[""] if found.keys() == {""} else found


def _words(raw: object) -> tuple[str, ...]:
    return tuple(_word(item) for item in _items(raw))


def _items(raw: object) -> list[object]:
    """A list as it is; text from the environment split at commas or blanks."""
    if isinstance(raw, str):
        return list(raw.replace(",", " ").split())
    if isinstance(raw, list | tuple):
        return list(raw)
    raise UsageError(f"{raw!r} is not a list")


def _constraint(raw: object) -> ConstraintSpec:
    return ConstraintSpec.of("constraint", raw)


_PARSERS: Final[Mapping[str, Callable[[object], object]]] = {
    "float": _number,
    "int": _whole,
    "bool": _switch,
    "tuple[str, ...]": _words,
    "tuple[tuple[str, float], ...]": _pairs,
    "ConstraintSpec": _constraint,
}


_OWN_PARSERS: Final[Mapping[str, Callable[[object], object]]] = {
    "loss": _loss,
    "input_norm": _norm,
    "input_box": _box,
    "sampling_rate": _rate,
}


def _knob(item: Field[Any]) -> Knob:
    """As the field of `Settings` declares it."""
    kind = str(item.type).removesuffix(" | None")
    words = CHOICES.get(item.name, ())
    return Knob(
        key=key_of(item),
        parse=_OWN_PARSERS.get(item.name) or _PARSERS.get(kind, _word),
        metavar=item.metadata["metavar"] or "|".join(words),
        text=item.metadata["text"],
        count={"bool": 0, "tuple[float, float]": 2}.get(kind, 1),
        repeated=kind == "tuple[str, ...]" or item.name in {"input_norm", "input_box"},
    )


KNOBS: Final = tuple(_knob(item) for item in fields(Settings) if item.metadata)

TABLES: Final[Mapping[str, Callable[[object], object]]] = MappingProxyType(
    {
        "constraints": _table("parameter names and constraints", _constraint),
        "noise-multipliers": _table("group names and noise multipliers", _number),
        "input-norms": _table("names of inputs and norms", _number),
        "input-boxes": _table("names of inputs and boxes", _box),
        "input-clips": _table("layer names and radii", _radius),
        "cotangent-clips": _table("layer names and radii", _number),
    }
)
"""Settings without an option: tables of the settings file, a value for each name or glob."""
