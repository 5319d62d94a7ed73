"""Written: settings as users write them, in a settings file, on the command line and in Python.

`--config` reads such a file back as the same settings. Fields of settings become lines that can be
pasted. Invariant: a line means what the settings mean.
"""

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from typing import Any, Final

from lipcert.core.ledger.mechanism import MECHANISMS, names_of
from lipcert.settings.settings import (
    FOUND,
    NO_CLIP,
    TABLES,
    ConstraintSpec,
    LossParameters,
    Settings,
    key_of,
)

_MAY_FOLLOW: Final = ("scope", "reduction")

_PATTERNS = frozenset({"freeze", "trainable"})
_SHARED = ("input_norm", "input_box", "noise_multipliers")
_LOSS = tuple(LossParameters.__dataclass_fields__)
_WITH_DEFAULT = frozenset({"input_clip", "cotangent_clip"})
"""Fields that are 1 in training if not given."""
_TRAINED_DEFAULTS = {"allocation": "optimal", "neighbours": "add-remove", "group": "layer"}


def plain(name: str, value: Any) -> object:
    """Return the value of a field for settings files and documents; None if none is given."""
    if name in TABLES:
        return {of: NO_CLIP if own is None else plain("", own) for of, own in value}
    if isinstance(value, ConstraintSpec):
        return str(value)
    return list(value) if isinstance(value, tuple) else value


def settings_toml(settings: Settings, head: str) -> str:
    """Return every value that is not a default and does not follow from the others, as TOML.

    head: a comment.
    """
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
    """Return a value as TOML."""
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case list() | tuple():
            return f"[{', '.join(map(toml_text, value))}]"
        case dict():
            rows = (f"{toml_text(name)} = {toml_text(own)}" for name, own in value.items())
            return f"{{{', '.join(rows)}}}"
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")


def options(fields: Mapping[str, object]) -> str:
    """Return fields of settings as command-line options, and each table as a line of the file.

    A field that is no longer given has no option, and is left out.
    """
    words, lines = [], []
    for name, value in sorted(fields.items(), key=lambda item: item[0] != "mechanism"):
        key = name.replace("_", "-")
        if value is None or value == () or name == "scope":
            continue
        if name in TABLES:
            lines.append(f"{key} = {toml_text(plain(name, value))}")
        elif name in _PATTERNS:
            words += [f"--{key} {shlex.quote(pattern)}" for pattern in value]  # type: ignore[attr-defined]
        elif isinstance(value, tuple):
            words.append(f"--{key} {' '.join(map(_text, value))}")
        else:
            words.append(f"--{key} {_text(value)}")
    return "\n".join([" ".join(words), *lines] if words else lines)


def mechanism_code(fields: Mapping[str, object], **more: object) -> str:
    """Return the mechanism of settings as code for `make_private`; "" if there is none.

    fields: of `Settings`, by name; missing ones are not written. more: other arguments.
    """
    found = MECHANISMS[str(fields.get("mechanism", "none"))]
    if not found.acts:
        return ""
    given: dict[str, object] = {}
    if found.holds_weights():
        given |= _held(fields)
    else:
        for name in (*names_of(found), *found.tables):
            value = fields.get(name)
            if value not in (None, ()) or name in _WITH_DEFAULT:
                given[name] = value
    given |= {name: fields[name] for name in _SHARED if fields.get(name) not in (None, ())}
    whole = found.clips_gradients and fields.get("clip_scope") != "group"
    for name, default in _TRAINED_DEFAULTS.items():
        is_one_group = whole and name == "allocation"
        if fields.get(name, default) != default and not is_one_group:
            given[name] = fields[name]
    loss = _loss(fields)
    if loss:
        given["loss"] = loss
    given |= {name: value for name, value in more.items() if value}
    arguments = ", ".join(f"{name}={_python(value)}" for name, value in given.items())
    return f"{''.join(word.capitalize() for word in found.kind.split('-'))}({arguments})"


def _held(fields: Mapping[str, object]) -> dict[str, object]:
    """Return constraints as arguments of training."""
    constraint = fields.get("constraint")
    found: dict[str, object] = {"radius": None}
    if isinstance(constraint, ConstraintSpec):
        found = {"radius": constraint.radius}
        found |= {} if constraint.kind == "spectral" else {"norm": constraint.kind}
    names = ("bias_norm", "constraints", "loss_clip")
    return found | {name: fields[name] for name in names if fields.get(name) not in (None, ())}


class _Code(str):
    """Text that is Python code already."""


def _loss(fields: Mapping[str, object]) -> _Code | None:
    """Return the loss as code; None for cross-entropy without parameters, the default."""
    kind = fields.get("loss", "auto")
    given = {name: fields[name] for name in _LOSS if fields.get(name) is not None}
    words = [] if kind in {"auto", "cross-entropy"} else [_python(kind)]
    words += [f"{name}={_python(value)}" for name, value in given.items()]
    return _Code(f"Loss({', '.join(words)})") if words else None


def _python(value: object) -> str:
    match value:
        case _Code():
            return str(value)
        case ConstraintSpec():
            return _python(f"{value.kind}:{number(value.radius)}")
        case tuple():
            found = ", ".join(map(_python, value))
            return f"({found},)" if len(value) == 1 else f"({found})"
        case str():
            return json.dumps(value)
        case float():
            return number(value)
    return repr(value)


def _text(value: object) -> str:
    if isinstance(value, ConstraintSpec):
        return f"{value.kind}:{number(value.radius)}"
    return number(value) if isinstance(value, float) else str(value)


def number(value: float) -> str:
    """Return the shortest text that reads back as the same number."""
    if isinstance(value, int):
        return str(value)
    short = f"{value:.6g}"
    return short if float(short) == value else repr(float(value))


def python_lines(how: str) -> Iterator[str]:
    """Yield the lines of a change that are code."""
    for line in how.splitlines():
        if not line.startswith("--") and not re.match(r"[a-z-]+ = \{", line):
            yield line
