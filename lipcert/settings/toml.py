"""TOML: settings as a file that `--config` reads back as the same settings."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import Any, Final

from lipcert.settings.settings import FOUND, NO_CLIP, Settings, key_of

_MAY_FOLLOW: Final = ("scope", "reduction")


def settings_toml(settings: Settings, head: str) -> str:
    """Every value that is not the default, and that does not follow from the others. head: a
    comment."""
    lines, tables = [f"# {head}"], list[str]()
    left_out = {*FOUND, *(name for name in _MAY_FOLLOW if _follows(settings, name))}
    for item in fields(Settings):
        value: Any = getattr(settings, item.name)
        if value == item.default or item.name in left_out:
            continue
        if item.metadata:
            lines.append(f"{key_of(item)} = {_toml(value)}")
        else:
            rows = (f"{_toml(name)} = {_toml(own)}" for name, own in value)
            tables += ["", f"[{key_of(item)}]", *rows]
    return "\n".join([*lines, *tables]) + "\n"


def _follows(settings: Settings, name: str) -> bool:
    changed: dict[str, Any] = {name: "auto"}
    return replace(settings, **changed) == settings


def _toml(value: object) -> str:
    match value:
        case None:
            return _toml(NO_CLIP)
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case tuple():
            return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
