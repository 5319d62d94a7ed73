"""The size of the project stays within `budgets.toml`, and the budgets stay close to the size."""

import ast
import json
import subprocess
import sys
import tomllib
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from tests.commands import lipcert

ROOT = Path(__file__).resolve().parents[1]
BUDGETS = tomllib.loads((ROOT / "budgets.toml").read_text(encoding="utf-8"))
ROOM = 1.05
"""how far above the truth a budget may be"""
SMALL = 60
"""lines by which a budget may exceed the truth, however small the package is"""
GOLDEN = ROOT / "tests" / "golden" / "0.1.0"
RUN = "--dataset-size 400 --sampling poisson --batch-size 16 --epochs 1 --delta 1e-5"
VERDICTS = {
    "epsilon": ("digits_mlp", f"--input-norm 1 {RUN} --noise-multiplier 1"),
    "perceptron": ("digits_mlp", None),
    "transformer": ("digits_vit", "--input-norm 1"),
    "cnn": ("digits_cnn", None),
}
"""network, and options of `certify` where no certificate is kept"""


def code_lines(source: str) -> int:
    """Lines with code on them: no comments, blanks and docstrings; of texts, all lines."""
    tree = ast.parse(source)
    lines = {
        number
        for number, line in enumerate(source.splitlines(), 1)
        if (stripped := line.strip()) and not stripped.startswith("#")
    }
    said: set[int] = set()
    inside: list[ast.AST] = [tree]
    while inside:
        node = inside.pop()
        first, last = getattr(node, "lineno", 0), getattr(node, "end_lineno", 1)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            said.update(range(first, last + 1))
        elif isinstance(node, ast.Constant | ast.JoinedStr):
            lines.update(range(first, last + 1))
        elif first != last or isinstance(node, ast.stmt):
            inside += ast.iter_child_nodes(node)
    return len(lines - said)


@cache
def counted(folder: str) -> tuple[Counter[str], int]:
    """Code lines of each package in a folder of the project, and the number of files."""
    lines: Counter[str] = Counter()
    files = sorted((ROOT / folder).rglob("*.py"))
    for file in files:
        where = file.relative_to(ROOT / folder).parts
        lines[where[0] if len(where) > 1 else "."] += code_lines(file.read_text(encoding="utf-8"))
    return lines, len(files)


def test_code_lines_are_counted() -> None:
    text = 'x = """\ntext\n"""\n'
    source = f'"""A module."""\n\n# a comment\n{text}\n\ndef f() -> int:\n    "doc"\n    return 1\n'
    assert code_lines(source) == 5


def test_each_package_keeps_its_budget() -> None:
    lines, _ = counted("lipcert")
    limits: dict[str, int] = BUDGETS["lines"]
    assert set(lines) == set(limits)
    assert {name: lines[name] for name in lines if lines[name] > limits[name]} == {}
    loose = {
        name: (lines[name], limit)
        for name, limit in limits.items()
        if limit > max(ROOM * lines[name], lines[name] + SMALL)
    }
    assert loose == {}, "lower these budgets: they are (lines, budget)"


def test_the_package_keeps_its_number_of_files() -> None:
    _, files = counted("lipcert")
    assert files <= BUDGETS["files"]["package"] <= ROOM * files


def test_tests_are_no_longer_than_what_they_test() -> None:
    package, tests = (sum(counted(folder)[0].values()) for folder in ("lipcert", "tests"))
    assert tests <= BUDGETS["tests"]["per_line"] * package


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", VERDICTS)
def test_a_verdict_rests_on_few_lines(name: str, tmp_path: Path) -> None:
    network, options = VERDICTS[name]
    model, file = ROOT / "models" / f"{network}.onnx", GOLDEN / f"{network}.lipcert.json"
    if options is not None:
        file = tmp_path / "certificate.json"
        words = ["certify", str(model), "--loss", "cross-entropy", *options.split()]
        done = lipcert([*words, "-o", str(file)])
        assert done.exit_code == 0, done.output
    words = [str(file), "--model", str(model), "--tcb", "--format", "json"]
    program = [sys.executable, "-c", "from lipcert.core.main import main; main()"]
    checked = subprocess.run([*program, *words], check=False, capture_output=True, cwd=ROOT)
    lines = json.loads(checked.stdout)["trusted_base"]["lines"]
    assert lines <= BUDGETS["trusted_lines"][name] <= ROOM * lines
