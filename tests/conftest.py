"""One thread per test process, since the processes already run in parallel; no cache of proposals.

Text is as wide as where there is no terminal.

`pytest -m fast` is the inner loop: every test but those of `SLOW` and those marked `slow`.
"""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")
os.environ["LIPCERT_CACHE"] = "false"
os.environ["COLUMNS"] = "120"

settings.register_profile(
    "reproducible",
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "reproducible"))

HERE = Path(__file__).parent
SLOW = (
    "audit/",
    "conformance/",
    "core/accounting/",
    "core/lower/test_composites.py",
    "core/lower/test_reading.py",
    "core/lower/test_torch_attention.py",
    "core/lower/test_zoo.py",
    "core/norms/test_torus.py",
    "core/rules/test_functions.py",
    "core/rules/test_laws.py",
    "core/test_budget.py",
    "core/test_hostile_certificates.py",
    "core/test_mutation_gate.py",
    "core/test_soundness.py",
    "golden/",
    "hostile/",
    "issue/",
    "models/",
    "test_digits_gap.py",
    "test_docs.py",
    "test_examples.py",
    "test_mutants.py",
    "test_network_attacks.py",
    "test_published_faults.py",
    "test_readme.py",
    "test_reproductions.py",
    "training/",
)
"""folders and modules of attacks, searches and whole runs, which take more than a few seconds"""


gc.disable()  # until all tests are collected: what they are made of stays


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def is_slow(path: Path) -> bool:
    """Whether a file belongs to what the inner loop leaves out."""
    return path.relative_to(HERE).as_posix().startswith(SLOW)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """The inner loop does not even import what it leaves out."""
    skips = config.option.markexpr == "fast" and collection_path.suffix == ".py"
    return True if skips and is_slow(collection_path) else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what the inner loop runs."""
    for item in items:
        if not is_slow(item.path) and item.get_closest_marker("slow") is None:
            item.add_marker("fast")
