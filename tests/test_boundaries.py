"""Rules of the source that no linter knows."""

import importlib
import inspect
import pkgutil
import re
import sys
import tomllib
from pathlib import Path

import lipcert
from tests.conftest import SLOW

TESTS = Path(__file__).resolve().parent
PACKAGE = TESTS.parent / "lipcert"
ROUNDING_MODULES = {"core/arithmetic.py", "core/interval.py"}
BASES = {"AnyLogits", "Codec", "LossChoice", "LossParameters", "Mechanism", "OneProcess", "Op",
         "PrivateTrainingHooks", "Proposals", "RecordingHooks", "Residual", "SoftmaxDomain",
         "Stated", "Table", "TrainingMechanism", "Walk", "Weights", "_HeldWeights"}  # fmt: skip
"""classes that have subclasses, and are not abstract"""
HEAVY = ("torch", "onnx", "onnxruntime", "scipy", "numpy", "rich", "google.protobuf")


def test_rounding_directions_live_in_few_files() -> None:
    users = {path for path in PACKAGE.rglob("*.py") if "nextafter" in path.read_text("utf-8")}
    assert {path.relative_to(PACKAGE).as_posix() for path in users} <= ROUNDING_MODULES


def test_the_map_draws_the_layers_that_are_enforced() -> None:
    root = TESTS.parent
    contracts = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    layers = contracts["tool"]["importlinter"]["contracts"][0]["layers"]
    page = (root / "docs" / "architecture.md").read_text(encoding="utf-8")
    drawing = page.split("<!-- layers -->\n```text\n")[1].split("```")[0]
    drawn = [re.split(r" {2,}", line.strip())[0] for line in drawing.splitlines()]
    assert [set(row.split(" · ")) for row in drawn] == [set(row.split(" | ")) for row in layers]


def test_a_class_is_abstract_or_has_no_subclasses() -> None:
    """Exceptions and `BASES` apart: what a class does is then read in one place."""
    for module in pkgutil.walk_packages(lipcert.__path__, "lipcert."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    ours = {
        kind
        for name, module in sys.modules.items()
        if name.startswith("lipcert")
        for kind in vars(module).values()
        if isinstance(kind, type) and kind.__module__.startswith("lipcert")
    }
    extended = {base for kind in ours for base in kind.__bases__ if base in ours}
    concrete = {
        base.__qualname__
        for base in extended
        if not (inspect.isabstract(base) or issubclass(base, BaseException))
        and not getattr(base, "_is_protocol", False)
    }
    assert concrete == BASES


def test_what_the_inner_loop_leaves_out_exists() -> None:
    """Every line of slow.txt is a module of tests, or a test in one."""
    for line in sorted(SLOW):
        path, *parts = line.split("::")
        source = (TESTS / path).read_text(encoding="utf-8")
        assert all(re.search(rf"\b(?:def|class) {part}\b", source) for part in parts), line
