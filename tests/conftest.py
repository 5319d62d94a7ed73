"""One thread per test process, since the processes already run in parallel; no cache of proposals.

Text is as wide as where there is no terminal.

`pytest -m fast` is the inner loop: every test but those of slow.txt and those marked `slow`.
`pytest -m nightly` runs the tests of many minutes, which nothing else runs. Tests of drawn examples
look at a quarter of them, always the same; with HYPOTHESIS_PROFILE=thorough at all, always others.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")
os.environ["LIPCERT_CACHE"] = "false"
os.environ["COLUMNS"] = "120"

_PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "reproducible")
_LENIENT = settings(
    deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)
settings.register_profile("reproducible", _LENIENT, derandomize=True)
settings.register_profile("thorough", _LENIENT, derandomize=False, print_blob=True)
settings.load_profile(_PROFILE)
_OWN = "_hypothesis_internal_use_settings"  # where the plugin of Hypothesis keeps them, too

HERE = Path(__file__).parent
SLOW = frozenset(
    line
    for line in (HERE / "slow.txt").read_text(encoding="utf-8").splitlines()
    if not line.startswith("#")
)
"""folders, modules and tests that the inner loop leaves out"""

gc.disable()  # until all tests are collected: what they are made of stays


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def _threads_end() -> Iterator[None]:
    """tqdm keeps a thread once it has shown a bar. Beside threads no model is read in a fork, which
    is quick and sees what a test has put in the place of something.
    """
    yield
    tqdm = sys.modules.get("tqdm")
    if tqdm is not None and tqdm.tqdm.monitor is not None:
        tqdm.tqdm.monitor_interval = 0
        tqdm.tqdm.monitor.exit()
        tqdm.tqdm.monitor = None


def pytest_runtest_setup() -> None:
    """torch lists all of its operators at every export, and the sources of those that it writes.

    The lists are the same each time, for nothing here adds an operator, and two thirds of an
    export of a small network: they are kept from the second export of a process on.
    """
    exporter = sys.modules.get("torch.onnx._internal.exporter._registration")
    if exporter is not None:
        table, operators = exporter.ONNXRegistry, sys.modules["torch._export.utils"]
        if isinstance(vars(table)["from_torchlib"], classmethod):
            table.from_torchlib = staticmethod(cache(table.from_torchlib))
            operators._materialize_cpp_cia_ops = cache(operators._materialize_cpp_cia_ops)


def is_slow(path: Path) -> bool:
    """Whether a file belongs to what the inner loop leaves out."""
    place = path.relative_to(HERE)
    folders = {f"{folder.as_posix()}/" for folder in place.parents}
    return place.as_posix() in SLOW or not SLOW.isdisjoint(folders)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """The inner loop does not even import what it leaves out."""
    skips = config.option.markexpr == "fast" and collection_path.suffix == ".py"
    return True if skips and is_slow(collection_path) else None


def draw_fewer(tests: set[Any]) -> None:
    """A quarter of what each test of drawn examples asks for, but no fewer than ten."""
    for test in tests:
        own = test.asked = getattr(test, _OWN, settings())
        few = min(own.max_examples, max(10, own.max_examples // 4))
        setattr(test, _OWN, settings(own, max_examples=few))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what the inner loop runs, and draw fewer examples unless all are wanted."""
    if _PROFILE != "thorough":
        found = {getattr(item, "obj", None) for item in items}
        draw_fewer({test for test in found if hasattr(test, "hypothesis")})
    for item in items:
        name = item.nodeid.removeprefix("tests/").partition("[")[0]
        is_marked = any(item.get_closest_marker(name) for name in ("slow", "nightly"))
        if not (is_marked or name in SLOW or is_slow(item.path)):
            item.add_marker("fast")
