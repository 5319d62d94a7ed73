"""The table of operators: what it names is there, and is loaded for the operators of a file."""

import subprocess
import sys
from collections import Counter

import pytest

from lipcert.core.lower import operators, rare_operators

LAYOUT, DATA, CONSTANTS = (
    [getattr(module, name) for module in (operators, rare_operators)]
    for name in ("LAYOUT", "DATA", "CONSTANTS")
)


@pytest.mark.parametrize("table", [*LAYOUT, *DATA, *CONSTANTS])
def test_every_rule_is_there(table) -> None:
    assert all(callable(rule) for rule in table.values())


def test_an_operator_has_one_rule() -> None:
    for tables in ([*LAYOUT, *DATA], [*LAYOUT, *CONSTANTS]):
        assert max(Counter(name for table in tables for name in table).values()) == 1


def test_nothing_is_loaded_before_a_node_needs_it() -> None:
    words = [sys.executable, "-c", "import sys, lipcert.core.lower.lower; print(*sys.modules)"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    package = "lipcert.core.lower."
    found = {name.removeprefix(package) for name in done.stdout.split() if package in name}
    assert found == {"call", "errors", "lower", "operators", "values"}
