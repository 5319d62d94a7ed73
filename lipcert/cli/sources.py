"""Sources: the settings a user may give, where each comes from, and which one wins.

Every setting has one key for all sources: the key `input-norm` is the option `--input-norm`, the
variable `LIPCERT_INPUT_NORM`, the TOML key `input-norm` and the field `Settings.input_norm`. Text
is parsed; then it is converted, like values of TOML, as `Settings` converts its fields. Only
`Settings` checks what the values mean.

Precedence: command line > LIPCERT_* > TOML file > default; every key keeps its origin. Invariant:
an unknown key in any source is an error, never ignored.
"""

import os
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, dataclass, fields
from fractions import Fraction
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from lipcert.cli.paths import unreadable
from lipcert.errors import UsageError
from lipcert.settings.settings import CHOICES, CONVERTERS, TABLES, Settings, key_of
from lipcert.settings.values import nearest, number

DEBUG_VARIABLE: Final = "LIPCERT_DEBUG"
_DEFAULT: Final = "default"
_DERIVED: Final = "derived from other settings (auto)"
_COMMAND_LINE: Final = "command line"
Parser = Callable[[object], object]
"""Turns text or a value of TOML into the value of a field, or raises `UsageError`."""


@dataclass(frozen=True, slots=True)
class Knob:
    """One setting: how it is written, read and explained.

    count: how many words the option takes; 0: it is a switch. repeated: it may be given again.
    """

    key: str
    parse: Parser
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
        """Name of its environment variable."""
        return f"LIPCERT_{self.field.upper()}"


def _switch(text: str) -> object:
    words = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
    return words.get(text.lower(), text)


def _word(text: str) -> str:
    if text:
        return text
    raise UsageError(f"{text!r} is not a name")


def _pairs(text: str) -> object:
    """`cls=1,reg=0.5`."""
    pairs = (item.rpartition("=")[::2] for item in text.split(","))
    return {name: _spelt("float", value) for name, value in pairs}


def _listed(text: str) -> list[str]:
    return text.replace(",", " ").split()


_READERS: Final[Mapping[str, Callable[[str], object]]] = MappingProxyType(
    {
        "float": float,
        "int": int,
        "bool": _switch,
        "tuple[str, ...]": _listed,
        "tuple[tuple[str, float], ...]": _pairs,
    }
)
"""Parsers of text, by the type of a field."""


def _spelt(kind: str, raw: object) -> object:
    """Parse text; return it unchanged if that fails."""
    if not isinstance(raw, str):
        return raw
    try:
        return _READERS.get(kind, _word)(raw)
    except (ValueError, OverflowError, ZeroDivisionError):
        return raw


def _parsed(field: str, kind: str, raw: object) -> object:
    return CONVERTERS[field](field.replace("_", "-"), _spelt(kind, raw))


def _rate(raw: object) -> object:
    """Read a number, or a fraction such as `1/45`."""
    try:
        value = float(Fraction(raw)) if isinstance(raw, str) and "/" in raw else raw
    except (ValueError, OverflowError, ZeroDivisionError):
        value = raw
    return _number(value)


def _box(raw: object) -> object:
    """Read LO HI, and NAME=LO HI of single inputs, any number of them; or a table."""
    if isinstance(raw, dict):
        return {name: _box(value) for name, value in raw.items()}
    ends = [end for item in _items(raw) for end in (item if isinstance(item, tuple) else (item,))]
    if not ends or len(ends) % 2:
        raise UsageError(f"{raw!r} is not a pair LO HI, or NAME=LO HI of one of several inputs")
    pairs = zip(ends[::2], ends[1::2], strict=True)
    return _by_input(raw, ((*_named(low), _number(high)) for low, high in pairs))


def _norm(raw: object) -> object:
    """Read R, and NAME=R of single inputs, any number of them; or a table."""
    if isinstance(raw, dict):
        return {name: _number(value) for name, value in raw.items()}
    words = [raw] if isinstance(raw, int | float) else _items(raw)
    return _by_input(raw, map(_named, words))


def _named(word: object) -> tuple[str, float]:
    """Split into the name of an input, possibly "", and a number."""
    name, _, value = word.rpartition("=") if isinstance(word, str) else ("", "", word)
    return name, _number(value)


def _number(raw: object) -> float:
    return number("", _spelt("float", raw))


def _by_input(raw: object, items: Iterable[tuple[str, *tuple[float, ...]]]) -> object:
    """Return a table of what is given by input; only the value if it is for all inputs."""
    found: dict[str, object] = {}
    for name, *numbers in items:
        if name in found:
            raise UsageError(f"{raw!r} gives two values for {name or 'all inputs'!r}")
        found[name] = numbers[0] if len(numbers) == 1 else tuple(numbers)
    return found[""] if found.keys() == {""} else found


def _items(raw: object) -> list[object]:
    """Return a list unchanged; split text from the environment at commas or blanks."""
    if isinstance(raw, str):
        return [*_listed(raw)]
    if isinstance(raw, list | tuple):
        return list(raw)
    raise UsageError(f"{raw!r} is not a list")


_OWN_PARSERS: Final[Mapping[str, Parser]] = MappingProxyType(
    {"input_norm": _norm, "input_box": _box, "sampling_rate": _rate}
)


def _knob(item: Field[Any]) -> Knob:
    """Return the knob that a field of `Settings` declares."""
    kind = str(item.type).removesuffix(" | None")
    words = CHOICES.get(item.name, ())
    return Knob(
        key=key_of(item),
        parse=_OWN_PARSERS.get(item.name) or partial(_parsed, item.name, kind),
        metavar=item.metadata["metavar"] or "|".join(words),
        text=item.metadata["text"],
        count={"bool": 0, "tuple[float, float]": 2}.get(kind, 1),
        repeated=kind == "tuple[str, ...]" or item.name in {"input_norm", "input_box"},
    )


KNOBS: Final = tuple(_knob(item) for item in fields(Settings) if item.metadata)

TABLE_PARSERS: Final[Mapping[str, Parser]] = MappingProxyType(
    {
        key_of(item): partial(CONVERTERS[item.name], key_of(item))
        for item in fields(Settings)
        if item.name in TABLES
    }
)
"""Settings without an option: tables of the settings file, with a value per name or glob."""


@dataclass(frozen=True, slots=True)
class EffectiveSettings:
    """The settings in force, and for every key the words that say where it comes from."""

    settings: Settings
    origins: Mapping[str, str]


_Found = tuple[object, str]
"""A value, and the words that say where it comes from."""


def effective_settings(
    given: Mapping[str, object], environment: Mapping[str, str], file: Path | None
) -> EffectiveSettings:
    """Merge all sources. `given` maps keys to the raw words of the command line."""
    found: dict[str, _Found] = {}
    if file is not None:
        found |= _from_file(file)
    found |= _from_environment(environment)
    found |= {key: (value, _COMMAND_LINE) for key, value in from_command_line(given).items()}
    values: dict[str, Any] = {key.replace("-", "_"): value for key, (value, _) in found.items()}
    keys = [*(knob.key for knob in KNOBS), *TABLE_PARSERS]
    origins = {key: found[key][1] if key in found else _DEFAULT for key in keys}
    settings = Settings(**values)
    for key in ("scope", "reduction"):
        if values.get(key, "auto") == "auto":
            origins[key] = _DERIVED
    return EffectiveSettings(settings, origins)


def find_file(directory: Path) -> Path | None:
    """Return the nearest lipcert.toml, or pyproject.toml with [tool.lipcert], here or above."""
    for folder in (directory, *directory.parents):
        own, project = folder / "lipcert.toml", folder / "pyproject.toml"
        in_project = project.is_file() and "lipcert" in _tool_tables(project)
        if own.is_file() and in_project:
            raise UsageError(f"{own} and [tool.lipcert] in {project} both give settings; keep one")
        if own.is_file():
            return own
        if in_project:
            return project
    return None


def _from_file(path: Path) -> dict[str, _Found]:
    is_project = path.name == "pyproject.toml"
    table = _tool_tables(path).get("lipcert", {}) if is_project else _toml(path)
    if not isinstance(table, dict):
        raise UsageError(f"{path}: [tool.lipcert] is not a table")
    where = f"{path} [tool.lipcert]" if is_project else str(path)
    parsers = {knob.key: knob.parse for knob in KNOBS} | dict(TABLE_PARSERS)
    found = {}
    for key, raw in table.items():
        if key not in parsers:
            raise UsageError(_unknown(f"key {key!r} in {where}", key, list(parsers)))
        try:
            found[key] = (parsers[key](raw), where)
        except UsageError as error:
            raise UsageError(f"{where}, key {key}: {_less(key, error)}") from error
    return found


def _from_environment(environment: Mapping[str, str]) -> dict[str, _Found]:
    knobs = {knob.variable: knob for knob in KNOBS}
    found = {}
    for variable, raw in sorted(environment.items()):
        if not variable.startswith("LIPCERT_") or variable == DEBUG_VARIABLE:
            continue
        if variable not in knobs:
            known = [*knobs, DEBUG_VARIABLE]
            raise UsageError(_unknown(f"environment variable {variable}", variable, known))
        try:
            value = knobs[variable].parse(raw)
        except UsageError as error:
            why = _less(knobs[variable].key, error)
            raise UsageError(f"environment variable {variable}: {why}") from error
        found[knobs[variable].key] = (value, f"environment {variable}")
    return found


def from_command_line(given: Mapping[str, object]) -> dict[str, Any]:
    """Return the values of the command line, by key; UsageError names the option."""
    knobs = {knob.key: knob for knob in KNOBS}
    found = {}
    for key, raw in given.items():
        try:
            found[key] = knobs[key].parse(raw)
        except UsageError as error:
            raise UsageError(f"{knobs[key].option}: {_less(key, error)}") from error
    return found


def _less(key: str, error: UsageError) -> str:
    """Return what is wrong with a value, without its key."""
    return str(error).removeprefix(f"{key}: ").removeprefix(": ")


def _tool_tables(path: Path) -> Mapping[str, object]:
    tool = _toml(path).get("tool", {})
    return tool if isinstance(tool, dict) else {}


def _toml(path: Path) -> Mapping[str, object]:
    why = unreadable(path)
    if why:
        raise UsageError(f"configuration file {os.fspath(path)} {why}")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"configuration file {os.fspath(path)}: {error}") from error


def _unknown(what: str, name: str, known: list[str]) -> str:
    hint = nearest(name, known)
    return f"unknown {what}; {hint or 'known: ' + ', '.join(known)}"
