"""List the files that must be trusted to believe a verdict."""

import ast
import hashlib
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

_DEPENDENCIES: Final = ("numpy", "onnx", "protobuf")


@dataclass(frozen=True, slots=True)
class TrustedFile:
    """A module of the core. lines: of code, without comments, docstrings and blank lines."""

    name: str
    lines: int
    sha256: str


def trusted_base() -> tuple[TrustedFile, ...]:
    """Return every module of the core, and its package: all that a verdict may depend on."""
    root = Path(__file__).resolve().parents[1]
    return _listed([root / "__init__.py", *(root / "core").rglob("*.py")])


def loaded_base() -> tuple[TrustedFile, ...]:
    """Return every module of this package that this process has loaded.

    In a process that has only run a check, the verdict depends on these files alone. This module is
    not among them: it only lists them once the verdict is known.
    """
    root, own = Path(__file__).resolve().parents[1], Path(__file__).resolve()
    files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    loaded = {Path(file).resolve() for file in files if file is not None}
    return _listed(file for file in loaded if file.is_relative_to(root) and file != own)


def trusted_lines(files: Sequence[TrustedFile]) -> list[str]:
    """Return the lines of a table of the files and their dependencies, the total first."""
    return [
        f"trusted base: {sum(file.lines for file in files)} lines of code in {len(files)} files",
        *(f"{file.lines:6d}  {file.sha256}  {file.name}" for file in files),
        *(f"depends on {name} {number}" for name, number in dependencies().items()),
    ]


def dependencies() -> dict[str, str]:
    """Return the dependencies of the trusted base, with versions."""
    return {**{name: _version(name) for name in _DEPENDENCIES}, "Python": sys.version.split()[0]}


def _listed(paths: Iterable[Path]) -> tuple[TrustedFile, ...]:
    above = Path(__file__).resolve().parents[2]
    return tuple(
        TrustedFile(
            path.relative_to(above).as_posix(),
            _code_lines(path.read_text(encoding="utf-8")),
            hashlib.sha256(path.read_bytes()).hexdigest(),
        )
        for path in sorted(paths)
    )


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "(not installed)"


def _code_lines(source: str) -> int:
    """Count the lines that contain code, without docstrings."""
    words: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(value=ast.Constant(value=str())):
                words.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = enumerate(map(str.strip, source.splitlines()), start=1)
    return sum(1 for number, line in lines if line[:1] not in {"", "#"} and number not in words)
