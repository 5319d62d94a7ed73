"""The public names of the package, by the modules that define them; each is loaded on first use."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

from lipcert.version import TESTED_TORCH

if TYPE_CHECKING:
    from lipcert.analysis.records import Analysis
    from lipcert.audit.recorder import Recorder
    from lipcert.errors import (
        LipCertError,
        ModelFileError,
        NoVerdictError,
        Refusal,
        UnsupportedModelError,
        UsageError,
    )
    from lipcert.importer.load import load_model
    from lipcert.importer.model import ImportedModel
    from lipcert.settings.settings import ConstraintSpec, Settings
    from lipcert.training.exporting import export
    from lipcert.verbs import analyze, audit, certify, suggest
    from lipcert.version import __version__

__all__ = [
    "Analysis",
    "ConstraintSpec",
    "ImportedModel",
    "LipCertError",
    "ModelFileError",
    "NoVerdictError",
    "Recorder",
    "Refusal",
    "Settings",
    "UnsupportedModelError",
    "UsageError",
    "__version__",
    "analyze",
    "audit",
    "certify",
    "export",
    "load_model",
    "suggest",
]

_HOMES: Final = {
    "__version__": "lipcert.version",
    "Analysis": "lipcert.analysis.records",
    "ConstraintSpec": "lipcert.settings.settings",
    "ImportedModel": "lipcert.importer.model",
    "LipCertError": "lipcert.errors",
    "ModelFileError": "lipcert.errors",
    "NoVerdictError": "lipcert.errors",
    "Recorder": "lipcert.audit.recorder",
    "Refusal": "lipcert.errors",
    "Settings": "lipcert.settings.settings",
    "UnsupportedModelError": "lipcert.errors",
    "UsageError": "lipcert.errors",
    "analyze": "lipcert.verbs",
    "audit": "lipcert.audit",
    "certify": "lipcert.verbs",
    "export": "lipcert.training.exporting",
    "load_model": "lipcert.importer.load",
    "suggest": "lipcert.verbs",
}


def load(name: str) -> object:
    """Load a public name; `AttributeError` for any other."""
    if name not in _HOMES:
        raise AttributeError(f"module 'lipcert' has no attribute {name!r}")
    try:
        home = importlib.import_module(_HOMES[name])
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        extra = "training" if ".training" in _HOMES[name] else "audit"
        message = f"lipcert.{name} needs PyTorch: pip install 'lipcert[{extra}]' {TESTED_TORCH}"
        raise ModuleNotFoundError(message, name="torch") from error
    found: object = home if home.__name__ == f"lipcert.{name}" else getattr(home, name)
    return found
