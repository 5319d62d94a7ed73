"""What takes seconds is done once for each worker: ε of one plan."""

from __future__ import annotations

from functools import cache

import pytest

from lipcert.core.accounting import account
from lipcert.privacy import accounting

_PURE = [
    (module, name, cache(getattr(module, name)))
    for module, name in ((accounting, "_rdp_epsilon"), (account, "_poisson"))
]
"""Of plans, numbers and nothing else; many tests train by one plan."""


@pytest.fixture(autouse=True)
def accounted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, remembered in _PURE:
        monkeypatch.setattr(module, name, remembered)
