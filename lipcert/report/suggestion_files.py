"""Suggestions as files: JSON for programs, and the settings file of the recipe.

What enters: suggestions. What leaves: `lipcert.suggest/1`; TOML that `--config` reads.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields, replace

from lipcert.report.json import JsonObject, diagnostic_list, dump
from lipcert.settings.settings import FOUND, ConstraintSpec, Settings, key_of
from lipcert.suggestions.records import Change, Outcome, Recipe, Suggestion, Suggestions
from lipcert.suggestions.written import PAIRS


def suggestions_json(found: Suggestions) -> str:
    """`lipcert.suggest/1`."""
    rehearsal = found.rehearsal
    return dump(
        {
            "schema": "lipcert.suggest/1",
            "model": {
                "path": found.model,
                "sha256": found.sha256,
                "parameters": found.parameters,
            },
            "signal": {
                "source": found.source or None,
                "examples": found.examples,
                "is_private": found.is_private,
                "of_norms": found.of_norms,
            },
            "baseline": {"mechanism": found.baseline_mechanism, **_outcome(found.baseline)},
            "clipping": found.clipping and _outcome(found.clipping),
            "recipe": _recipe(found.recipe),
            "recipes": [_recipe(item) for item in found.recipes],
            "suggestions": [_suggestion(item) for item in found.suggestions],
            "others": [_suggestion(item) for item in found.others],
            "stops": list(found.stops),
            "remarks": list(found.remarks),
            "skipped": [{"change": item.change, "why": item.why} for item in found.skipped],
            "untried": list(found.untried),
            "seconds": found.seconds,
            "rehearsal": rehearsal and asdict(rehearsal),
            "probed": rehearsal
            and {
                "kept_out": rehearsal.kept_out,
                "majority": rehearsal.majority,
                "before": rehearsal.before,
            },
            "unproven": found.unproven,
            "edits": [asdict(edit) for edit in found.edits],
            "diagnostics": diagnostic_list(found.diagnostics),
        }
    )


def _outcome(outcome: Outcome) -> JsonObject:
    names = [item.name for item in fields(Outcome)]
    return {**{name: getattr(outcome, name) for name in names}, "usable": outcome.usable}


def _change(change: Change) -> JsonObject:
    return {
        "change": change.change,
        "how": change.how,
        "keeps_function": True,
        "is_setting": True,
    }


def _suggestion(item: Suggestion) -> JsonObject:
    return {
        **_change(item.change),
        "mechanism": item.mechanism,
        "settings": _settings(item.settings),
        **_outcome(item.outcome),
        "accuracy_probe": item.accuracy_probe,
        "with_recipe": item.with_recipe,
    }


def _recipe(recipe: Recipe) -> JsonObject:
    steps = zip(recipe.changes, recipe.steps, strict=False)
    return {
        "mechanism": recipe.mechanism,
        "keeps_function": True,
        "settings": _settings(recipe.changed),
        "code": recipe.code,
        "accuracy_probe": recipe.accuracy_probe,
        "changes": [
            {**_change(change), **(_outcome(step) if step else {})} for change, step in steps
        ],
        **_outcome(recipe.outcome),
    }


def _settings(changed: Mapping[str, object]) -> JsonObject:
    """By the keys of settings files; null for one that is not given any more."""
    return {name.replace("_", "-"): _plain(name, value) for name, value in changed.items()}


def _plain(name: str, value: object) -> object:
    if isinstance(value, ConstraintSpec):
        return str(value)
    if isinstance(value, tuple):
        if name in PAIRS:
            return {pattern: _plain("", own) for pattern, own in value}
        return list(value)
    return value


def settings_toml(recipe: Recipe) -> str:
    """The settings file of a recipe."""
    lines = ["# written by `lipcert suggest --apply`: the settings of its recipe"]
    tables: list[str] = []
    for name, value in _given(recipe.settings):
        if isinstance(value, dict):
            tables += ["", f"[{name}]"]
            tables += [f"{json.dumps(key)} = {_toml(own)}" for key, own in value.items()]
        else:
            lines.append(f"{name} = {_toml(value)}")
    return "\n".join([*lines, *tables]) + "\n"


def _given(settings: Settings) -> Iterator[tuple[str, object]]:
    """Settings that differ from the defaults, and do not follow from the others."""
    derived = set(FOUND)
    if replace(settings, scope="auto") == settings:
        derived.add("scope")
    if replace(settings, reduction="auto") == settings:
        derived.add("reduction")
    for item in fields(Settings):
        value = getattr(settings, item.name)
        if value != item.default and value is not None and item.name not in {*derived, "cache"}:
            yield key_of(item), _plain(item.name, value)


def _toml(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return json.dumps(value)
        case list():
            return f"[{', '.join(map(_toml, value))}]"
    return repr(value)
