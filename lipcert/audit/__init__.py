"""Audits: replay real batches, and compare every per-example gradient with its bound.

The only part of LipCert, besides training, that loads torch; and of it `records`, `bounds`,
`precision` and the readers of traces do not. Called as a function, `lipcert.audit(…)`, the package
is the verb: what `lipcert.verbs.audit` takes and returns.
"""

import importlib
import sys
from types import ModuleType
from typing import Any


class _Verb(ModuleType):
    """A package under whose name users also find what it is for, in whatever order they import."""

    def __call__(self, *given: Any, **words: Any) -> Any:
        """`lipcert.verbs.audit`, which stands above this package."""
        return importlib.import_module("lipcert.verbs").audit(*given, **words)


def __getattr__(name: str) -> object:
    """`lipcert.audit.twin`, for which torch is loaded."""
    if name != "twin":
        raise AttributeError(f"module 'lipcert.audit' has no attribute {name!r}")
    return importlib.import_module("lipcert.audit.twins").twin


sys.modules[__name__].__class__ = _Verb
