"""Sources: where settings come from, and which one wins.

Precedence: command line > LIPCERT_* > TOML file > default; every key keeps its origin. Invariant:
an unknown key in any source is an error, never ignored.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

from lipcert.cli.knobs import KNOBS, TABLE_PARSERS
from lipcert.cli.paths import unreadable
from lipcert.errors import UsageError
from lipcert.settings.settings import Settings
from lipcert.settings.values import nearest

DEBUG_VARIABLE: Final = "LIPCERT_DEBUG"
_DEFAULT: Final = "default"
_DERIVED: Final = "derived from other settings (auto)"
_COMMAND_LINE: Final = "command line"


@final
@dataclass(frozen=True, slots=True)
class EffectiveSettings:
    """The settings in force, and for every key the words that say where it comes from."""

    settings: Settings
    origins: Mapping[str, str]


@final
@dataclass(frozen=True, slots=True)
class _Found:
    value: object
    origin: str


def effective_settings(
    given: Mapping[str, object], environment: Mapping[str, str], file: Path | None
) -> EffectiveSettings:
    """Merge all sources. `given` maps keys to the raw words of the command line."""
    found: dict[str, _Found] = {}
    if file is not None:
        found |= _from_file(file)
    found |= _from_environment(environment)
    found |= {key: _Found(value, _COMMAND_LINE) for key, value in from_command_line(given).items()}
    values: dict[str, Any] = {key.replace("-", "_"): item.value for key, item in found.items()}
    keys = [*(knob.key for knob in KNOBS), *TABLE_PARSERS]
    origins = {key: found[key].origin if key in found else _DEFAULT for key in keys}
    settings = Settings(**values)
    for key in ("scope", "reduction"):
        if values.get(key, "auto") == "auto":
            origins[key] = _DERIVED
    return EffectiveSettings(settings, origins)


def find_file(directory: Path) -> Path | None:
    """The nearest lipcert.toml, or pyproject.toml with [tool.lipcert], here or further up."""
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
            found[key] = _Found(parsers[key](raw), where)
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
        found[knobs[variable].key] = _Found(value, f"environment {variable}")
    return found


def from_command_line(given: Mapping[str, object]) -> dict[str, Any]:
    """The values of what was written, by key; UsageError that names the option."""
    knobs = {knob.key: knob for knob in KNOBS}
    found = {}
    for key, raw in given.items():
        try:
            found[key] = knobs[key].parse(raw)
        except UsageError as error:
            raise UsageError(f"{knobs[key].option}: {_less(key, error)}") from error
    return found


def _less(key: str, error: UsageError) -> str:
    """What is wrong with a value, without its key."""
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
