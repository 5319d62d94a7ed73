"""The certificate file, and the files that must be trusted to believe a verdict on it."""

from __future__ import annotations

import ast
import hashlib
import os
import stat
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final, final

from lipcert.core.canonical import MAX_BYTES

_DEPENDENCIES: Final = ("numpy", "onnx", "protobuf")


@final
class CertificateFileError(ValueError):
    """A certificate that cannot be read at all."""


def read_certificate_file(path: Path) -> bytes:
    """The bytes of a regular file, at most one more than a certificate may have."""
    try:
        content = read_regular(path, MAX_BYTES + 1)
    except (OSError, ValueError):
        raise CertificateFileError(f"{str(path)!a} cannot be read") from None
    if content is None:
        raise CertificateFileError(f"{str(path)!a} is not a regular file")
    return content


def read_regular(path: Path, most: int) -> bytes | None:
    """At most so many bytes of a regular file; None of any other, which is not waited for.

    Raises OSError or ValueError where the file cannot be read.
    """
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    with os.fdopen(handle, "rb") as file:
        return file.read(most) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else None


@final
@dataclass(frozen=True, slots=True)
class TrustedFile:
    """A module of the core. lines: with code, without comments, docstrings and blank lines."""

    name: str
    lines: int
    sha256: str


def trusted_base() -> tuple[TrustedFile, ...]:
    """Every module of the core, and its package: what some verdict may rest on."""
    root = Path(__file__).resolve().parents[1]
    return _listed([root / "__init__.py", *(root / "core").rglob("*.py")])


def loaded_base() -> tuple[TrustedFile, ...]:
    """Every module of this package that this process has loaded.

    In a process that has done nothing but a check, its verdict rests on these and on no others.
    """
    package = __name__.partition(".")[0]
    loaded = [module for name, module in sys.modules.items() if name.partition(".")[0] == package]
    files = [module.__file__ for module in loaded if getattr(module, "__file__", None)]
    return _listed({Path(file).resolve() for file in files if file is not None})


def trusted_lines(files: Sequence[TrustedFile]) -> list[str]:
    """Files and what they depend on as a table, the total first."""
    return [
        f"trusted base: {sum(file.lines for file in files)} lines of code in {len(files)} files",
        *(f"{file.lines:6d}  {file.sha256}  {file.name}" for file in files),
        *(f"depends on {name} {number}" for name, number in dependencies().items()),
    ]


def dependencies() -> dict[str, str]:
    """What the trusted base depends on, with versions."""
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
    """Lines that hold a statement other than a docstring."""
    words: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(value=ast.Constant(value=str())):
                words.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = enumerate(map(str.strip, source.splitlines()), start=1)
    return sum(1 for number, line in lines if line[:1] not in {"", "#"} and number not in words)
