"""Tables of the documentation are what the examples print."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]
NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?")


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def table(page: str, name: str) -> str:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return text.split(f"<!-- table: {name} -->\n")[1].split("<!-- end -->")[0]


def test_the_table_of_mechanisms_is_what_the_example_prints(
    capsys: pytest.CaptureFixture[str],
) -> None:
    example("compare_mechanisms").main()
    printed, shown = capsys.readouterr().out, table("mechanisms.md", "compare_mechanisms")
    assert NUMBER.sub("#", shown).split() == NUMBER.sub("#", printed).split()
    for ours, theirs in zip(NUMBER.findall(shown), NUMBER.findall(printed), strict=True):
        assert float(ours) == pytest.approx(float(theirs), rel=2e-3)


def test_the_optimal_allocation_never_needs_more_noise() -> None:
    shown = table("mechanisms.md", "compare_mechanisms")
    saved = [float(number) for number in re.findall(r"([\d.]+)× \|$", shown, flags=re.MULTILINE)]
    assert min(saved) >= 1.0
    assert max(saved) >= 1.4
