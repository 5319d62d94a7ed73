"""Written: changes as people type them, for the command line and in Python.

From fields of settings and names come lines that can be pasted. Invariant: a line says what the
settings say.
"""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping

from lipcert.core.ledger.mechanism import MECHANISMS, names_of
from lipcert.settings.settings import NO_CLIP, TABLES, ConstraintSpec, LossParameters, Settings
from lipcert.settings.toml import toml_text
from lipcert.settings.values import literal, matches

_PATTERNS = frozenset({"freeze", "trainable"})
_SHARED = ("input_norm", "input_box", "noise_multipliers")
_LOSS = tuple(LossParameters.__dataclass_fields__)
_WITH_DEFAULT = frozenset({"input_clip", "cotangent_clip"})
"""which are 1 in training where nothing is said"""
_TRAINED_DEFAULTS = {"allocation": "optimal", "neighbours": "add-remove", "group": "layer"}


def options(fields: Mapping[str, object]) -> str:
    """Fields of settings as options of the command line, and each table as a line of the file.

    What is not given any more has no option, and is left out.
    """
    words, lines = [], []
    for name, value in sorted(fields.items(), key=lambda item: item[0] != "mechanism"):
        key = name.replace("_", "-")
        if value is None or value == () or name == "scope":
            continue
        if name in TABLES:
            lines.append(f"{key} = {_inline(value)}")  # type: ignore[arg-type]
        elif name in _PATTERNS:
            words += [f"--{key} {shlex.quote(pattern)}" for pattern in value]  # type: ignore[attr-defined]
        elif isinstance(value, tuple):
            words.append(f"--{key} {' '.join(map(_text, value))}")
        else:
            words.append(f"--{key} {_text(value)}")
    return "\n".join([" ".join(words), *lines] if words else lines)


def mechanism_code(fields: Mapping[str, object], **more: object) -> str:
    """The mechanism of settings as `make_private` takes it; "" where there is none.

    fields: of `Settings`, by name; those that are missing are not said. more: other arguments.
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
    """Constraints in the words of training."""
    constraint = fields.get("constraint")
    found: dict[str, object] = {"radius": None}
    if isinstance(constraint, ConstraintSpec):
        found = {"radius": constraint.radius}
        found |= {} if constraint.kind == "spectral" else {"norm": constraint.kind}
    names = ("bias_norm", "constraints", "loss_clip")
    return found | {name: fields[name] for name in names if fields.get(name) not in (None, ())}


class _Code(str):
    """Text that is Python already."""


def _loss(fields: Mapping[str, object]) -> _Code | None:
    """None for cross-entropy without parameters, which is the default."""
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


def _inline(table: Iterable[tuple[str, object]]) -> str:
    """A table of a settings file (TOML) in one line."""
    rows = []
    for key, value in table:
        shown = NO_CLIP if value is None else value
        text = _text(shown) if isinstance(shown, float) else toml_text(_text(shown))
        rows.append(f"{toml_text(key)} = {text}")
    return f"{{{', '.join(rows)}}}"


def number(value: float) -> str:
    """As short as it can be written and read back."""
    if isinstance(value, int):
        return str(value)
    short = f"{value:.6g}"
    return short if float(short) == value else repr(float(value))


def upwards(value: float) -> float:
    """The number in four digits, rounded upwards."""
    if not 0.0 < value < math.inf:
        return value
    step = 10.0 ** (math.floor(math.log10(value)) - 3)
    return float(f"{math.ceil(value / step) * step:.4g}")


def globs(names: Collection[str], others: Iterable[str]) -> tuple[str, ...]:
    """Patterns that fit these names and none of the others, with any number in place of numbers."""
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


def python_lines(how: str) -> Iterator[str]:
    """Those of a change that are code."""
    for line in how.splitlines():
        if not line.startswith("--") and not re.match(r"[a-z-]+ = \{", line):
            yield line


def frozen_patterns(settings: Settings, names: Collection[str]) -> tuple[str, ...]:
    """Patterns of those of these parameters that the settings do not train."""
    return globs([name for name in names if not settings.is_trained(name)], names)
