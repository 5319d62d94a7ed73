"""TOML: settings as a file that `--config` reads back as the same settings."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import Any, Final

from lipcert.settings.settings import FOUND, NO_CLIP, TABLES, ConstraintSpec, Settings, key_of

_MAY_FOLLOW: Final = ("scope", "reduction")


def plain(name: str, value: Any) -> object:
    """The value of a field as settings files and documents have it; None where none is given."""
    if name in TABLES:
        return {of: NO_CLIP if own is None else plain("", own) for of, own in value}
    if isinstance(value, ConstraintSpec):
        return str(value)
    return list(value) if isinstance(value, tuple) else value


def settings_toml(settings: Settings, head: str) -> str:
    """Every value that is not the default, and that does not follow from the others. head: a
    comment."""
    lines, tables = [f"# {head}"], list[str]()
    left_out = {*FOUND, *(name for name in _MAY_FOLLOW if _follows(settings, name))}
    for item in fields(Settings):
        value: Any = getattr(settings, item.name)
        written: Any = plain(item.name, value)
        if value == item.default or item.name in left_out:
            continue
        if item.name in TABLES:
            rows = (f"{toml_text(name)} = {toml_text(own)}" for name, own in written.items())
            tables += ["", f"[{key_of(item)}]", *rows]
        else:
            lines.append(f"{key_of(item)} = {toml_text(written)}")
    return "\n".join([*lines, *tables]) + "\n"


def _follows(settings: Settings, name: str) -> bool:
    changed: dict[str, Any] = {name: "auto"}
    return replace(settings, **changed) == settings


def toml_text(value: object) -> str:
    """A value as it stands in a file."""
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case list() | tuple():
            return f"[{', '.join(map(toml_text, value))}]"
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
