"""The table of operators: what it names is there, and is loaded for the operators of a file."""

import subprocess
import sys
from collections.abc import Mapping

import pytest

from lipcert.core.lower.operators import CONSTANT_TABLES, CONSTANTS, DATA, LAYOUT, TABLES, loaded
from lipcert.core.registry import Registry


@pytest.mark.parametrize("table", [LAYOUT, DATA, CONSTANTS])
def test_every_rule_is_there(table: Registry) -> None:
    assert all(callable(rule) for rule in table.values())


def test_an_operator_has_one_rule() -> None:
    tables = [loaded(name) for name in TABLES]
    functions, entries = (set(table) for table in tables if isinstance(table, Mapping))
    assert not (functions | entries) & (LAYOUT.keys() | DATA.keys())
    assert not functions & entries
    assert not LAYOUT.keys() & (DATA.keys() | CONSTANTS.keys())
    assert isinstance(loaded(CONSTANT_TABLES[0]), Mapping)


def test_nothing_is_loaded_before_a_node_needs_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import sys, lipcert.core.lower.lower; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    found = set(done.stdout.split())
    assert "lipcert.core.lower.operators" in found
    for name in (
        "axis_ops",
        "composites",
        "constant_ops",
        "entry_ops",
        "guards",
        "joining",
        "linear_ops",
        "pool_ops",
        "norm_macros",
        "selection_ops",
    ):
        assert f"lipcert.core.lower.{name}" not in found
