"""Settings file: the settings of a run as `lipcert --config FILE` reads them.

What enters: `Settings`. What leaves: TOML with every value that is not the default. Invariant: what
is read back equals what was written.
"""

from __future__ import annotations

import json
import os
from dataclasses import fields
from pathlib import Path
from typing import Final

from lipcert.settings import ConstraintSpec, Settings

_TABLES: Final = ("constraints", "noise_multipliers")
_HEAD: Final = "# The settings of a private training run: lipcert certify MODEL --config THIS\n"


def write_settings(settings: Settings, path: Path) -> None:
    """Write the file in one go."""
    partial = path.with_suffix(".partial")
    partial.write_text(settings_text(settings), encoding="utf-8")
    os.replace(partial, path)


def settings_text(settings: Settings) -> str:
    """TOML."""
    default = Settings()
    lines = [_HEAD]
    for item in fields(Settings):
        value = getattr(settings, item.name)
        if item.name not in _TABLES and value != getattr(default, item.name):
            lines.append(f"{_key(item.name)} = {_value(value)}\n")
    for table in _TABLES:
        entries: tuple[tuple[str, object], ...] = getattr(settings, table)
        if entries:
            lines.append(f"\n[{_key(table)}]\n")
            lines += [f"{json.dumps(name)} = {_value(value)}\n" for name, value in entries]
    return "".join(lines)


def _key(field: str) -> str:
    return field.replace("_", "-")


def _value(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case ConstraintSpec():
            return json.dumps(str(value))
        case tuple():
            return "[" + ", ".join(_value(item) for item in value) + "]"
        case _:
            return json.dumps(str(value))
