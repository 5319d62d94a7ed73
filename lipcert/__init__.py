"""LipCert: certified gradient bounds and differential-privacy sensitivities of ONNX networks.

The public names below are loaded on first use: importing `lipcert` loads neither numpy nor onnx,
and never torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

from lipcert.errors import (
    LipCertError,
    ModelFileError,
    NoVerdictError,
    Refusal,
    UnsupportedModelError,
    UsageError,
)
from lipcert.settings import ConstraintSpec, Settings

if TYPE_CHECKING:
    from lipcert.analysis.pipeline import analyze
    from lipcert.analysis.records import Analysis
    from lipcert.importer.load import load_model
    from lipcert.importer.model import ImportedModel

__all__ = [
    "Analysis",
    "ConstraintSpec",
    "ImportedModel",
    "LipCertError",
    "ModelFileError",
    "NoVerdictError",
    "Refusal",
    "Settings",
    "UnsupportedModelError",
    "UsageError",
    "__version__",
    "analyze",
    "load_model",
]

__version__: Final = "0.1.0"


_HOMES: Final = {
    "Analysis": "lipcert.analysis.records",
    "ImportedModel": "lipcert.importer.model",
    "analyze": "lipcert.analysis.pipeline",
    "load_model": "lipcert.importer.load",
}


def __getattr__(name: str) -> object:
    """Load the engine when one of its names is first used (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'lipcert' has no attribute {name!r}")
    found: object = getattr(importlib.import_module(_HOMES[name]), name)
    return found
