"""Every kind of op with an independent reference: each module here defines `CASES: list[Case]`."""

from __future__ import annotations

import importlib
import pkgutil

from tests.measure.lowering.cases.case import Case


def all_cases() -> list[Case]:
    names = sorted(item.name for item in pkgutil.iter_modules(__path__) if item.name != "case")
    return [case for name in names for case in importlib.import_module(f"{__name__}.{name}").CASES]
