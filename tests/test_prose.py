"""Plain English in help texts, errors, pages and docstrings; `REFUSED` lists what is not.

`python -m tests.test_prose [FOLDER ...]` lists the places.
"""

import ast
import re
import sys
from pathlib import Path
from typing import NamedTuple

from tests.test_budgets import BUDGETS, ROOM

ROOT = Path(__file__).resolve().parents[1]
REFUSED = {
    r"(?<![Tt]here )\b(is|are) no (?!longer|more|less|fewer|larger|smaller)[a-z]+": "is not a …",
    r"\b[Nn]obody (who|that)\b|\b[Ww]hoever\b": "name the person: a user, a reader, an attacker",
    r"\bspeaks? of\b": "describes, applies to, refers to",
    r"\b(hold|holds|held|holding)\b(?: \S+){1,8} against\b": "compares X with Y",
    r"\b(leave|leaves|left) with \d": "exits with N",
    r"\btold\b(?! apart)|\btells of\b": "known from, given, reports",
    r"\bWhat (enters|leaves)\b": "Args, Returns, Raises; or one sentence on what it does",
}
"""pattern → what to write instead"""
WORDS = 5
"""a docstring of a public name has at least so many words, or is a formula"""
_FORMULA = re.compile(r"[=≤≥<>·‖√Σ^|]|\w\(|\[.*\]")
_FENCE = re.compile(r"^(```|~~~).*?^\1", re.DOTALL | re.MULTILINE)
_CODE = re.compile(r"`[^`\n]*`")


class Place(NamedTuple):
    """Where something is refused, and what to write instead."""

    file: str
    line: int
    found: str
    instead: str


def refused(text: str, file: str, first: int = 1):
    """What is refused in a text that begins on this line; a match may run over a line break."""
    flat = text.replace("\n", " ")
    for pattern, instead in REFUSED.items():
        for match in re.finditer(pattern, flat):
            yield Place(file, first + text.count("\n", 0, match.start()), match[0], instead)


def of_module(path: Path):
    """Texts and docstrings of a module."""
    file, tree = str(path.relative_to(ROOT)), ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from refused(node.value, file, node.lineno)
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            words = (ast.get_docstring(node) or "").split()
            if 0 < len(words) < WORDS and not _FORMULA.search(" ".join(words)):
                yield Place(file, node.lineno, " ".join(words), f"at least {WORDS} words")


def of_page(path: Path):
    """The prose of a page, without its code."""
    text = path.read_text(encoding="utf-8")
    blank = _FENCE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
    yield from refused(
        _CODE.sub(lambda match: "x" * len(match[0]), blank), str(path.relative_to(ROOT))
    )


def places(*folders: str) -> list[Place]:
    """All that is refused in the package and its pages, or below some folders of them."""
    modules = sorted((ROOT / "lipcert").rglob("*.py"))
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    pages += [path for room in ("docs", "lipcert") for path in sorted((ROOT / room).rglob("*.md"))]
    found = [place for path in modules for place in of_module(path)]
    found += [place for path in pages for place in of_page(path)]
    return [place for place in found if place.file.startswith(folders or ("",))]


def test_what_is_refused_is_found() -> None:
    source = (
        "A file that is no\nnetwork; the rule speaks of it, held by hand against x: no longer so."
    )
    assert [(place.line, place.found) for place in refused(source, "f")] == [
        (1, "is no network"),
        (2, "speaks of"),
        (2, "held by hand against"),
    ]


def test_pages_and_texts_are_plain() -> None:
    found = places()
    listed = "\n".join(
        f"{item.file}:{item.line}: {item.found!r}: {item.instead}" for item in found[:20]
    )
    limit = BUDGETS["prose"]["refused"]
    assert len(found) <= limit, listed
    assert limit <= max(ROOM * len(found), len(found) + 5)


if __name__ == "__main__":
    for item in places(*sys.argv[1:]):
        sys.stdout.write(f"{item.file}:{item.line}: {item.found!r}: {item.instead}\n")
