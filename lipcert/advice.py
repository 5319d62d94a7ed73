"""Advice: `lipcert.suggest`, of files and of modules.

What enters: an ONNX file, or an `nn.Module` with an example. What leaves: `Suggestions`, or
`ModuleSuggestions`. Invariant: for files torch is never loaded.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

if TYPE_CHECKING:
    from lipcert.importer.model import ImportedModel
    from lipcert.settings import Settings
    from lipcert.signal.examples import Examples
    from lipcert.suggestions.records import Suggestions
    from lipcert.training.suggesting import ModuleSuggestions


@overload
def suggest(
    model: str | os.PathLike[str] | ImportedModel,
    settings: Settings,
    examples: Examples | None = None,
    **options: Any,
) -> Suggestions: ...


@overload
def suggest(
    model: object, example: object, settings: Settings | None = None, **options: Any
) -> ModuleSuggestions: ...


def suggest(model: object, *given: Any, **options: Any) -> Any:
    """What would make a private run of a network learn, ranked by noise over signal.

    Of a file, by its path or as `load_model` returns it:

        found = lipcert.suggest("model.onnx", Settings(input_box=(0, 1), target_epsilon=8, …))
        found.recipe.outcome.noise_to_signal  # at every step, in units of the mean gradient

    with all that `lipcert.suggestions.engine.suggest` takes: `examples` to measure gradients at,
    `budget` in seconds. Of a module, with one batch [examples, *shape] that shows what it reads:

        found = lipcert.suggest(module, x[:1], settings, public=(x, y))
        found.module, found.to_edit, found.mechanism()  # the recipe, made

    with all that `lipcert.training.suggesting.suggest` takes. Raises UsageError for what does not
    fit together, UnsupportedModelError for what cannot be imported.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(model, torch.nn.Module):
        from lipcert.training import suggesting  # noqa: PLC0415  files are to do without torch

        return suggesting.suggest(model, *given, **options)
    from lipcert.errors import UsageError  # noqa: PLC0415
    from lipcert.importer.model import ImportedModel  # noqa: PLC0415
    from lipcert.suggestions import engine  # noqa: PLC0415

    if isinstance(model, str | os.PathLike):
        settings = given[0] if given else options.get("settings")
        model = _loaded(Path(model), settings)
    if not isinstance(model, ImportedModel):
        raise UsageError(f"suggest: {model!r} is no network: give an ONNX file, or an nn.Module")
    return engine.suggest(model, *given, **options)


def _loaded(path: Path, settings: object) -> ImportedModel:
    from lipcert.errors import UsageError  # noqa: PLC0415
    from lipcert.importer.load import load_under  # noqa: PLC0415
    from lipcert.settings import Settings  # noqa: PLC0415

    if not isinstance(settings, Settings):
        raise UsageError(f"suggest: {settings!r} are no settings: give lipcert.Settings(…)")
    return load_under(path, settings)
