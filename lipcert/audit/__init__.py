"""Audits: replay real batches, and compare every per-example gradient with its bound.

Besides training, this is the only part of LipCert that loads torch; its modules `records`, `bounds`
and the readers of traces do not. The package itself can be called: `lipcert.audit(…)` takes and
returns what `lipcert.verbs.audit` does.
"""

import importlib
import sys
from types import ModuleType
from typing import Any


class _Verb(ModuleType):
    """A package that can be called as the verb of the same name, whatever is imported first."""

    def __call__(self, *given: Any, **words: Any) -> Any:
        """Call `lipcert.verbs.audit`, which lies in a room above this package."""
        return importlib.import_module("lipcert.verbs").audit(*given, **words)


def __getattr__(name: str) -> object:
    """Load `lipcert.audit.twin` on first use, because it loads torch."""
    if name != "twin":
        raise AttributeError(f"module 'lipcert.audit' has no attribute {name!r}")
    return importlib.import_module("lipcert.audit.twins").twin


sys.modules[__name__].__class__ = _Verb
