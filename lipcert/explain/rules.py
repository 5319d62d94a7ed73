"""Rule pages: for every rule name, the docstrings of the functions that use it.

What enters: the sources of the engine, which are read and not imported. What leaves: pages by
rule name. A rule name is a dotted string literal in the sources, f"{self.family}.…" for the
families of a class, or `family.question` for the rule methods of an op. Invariant: because the
index is made of the very literals that rules give to bounds, no page is missing or out of date.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from lipcert.explain.core import RulePage

_PACKAGE: Final = Path(__file__).parent.parent
_RULE: Final = re.compile(r"[a-z][a-z0-9_]*(\.[a-z0-9_]+)+")
_QUESTIONS: Final = ("output_facts", "input_lipschitz", "param_lipschitz", "input_cotangent")
_CONTRACT: Final = "Op"
_SOURCES: Final = (
    "ops/**/*.py",
    "norms/**/*.py",
    "losses/**/*.py",
    "propagation/**/*.py",
    "forms/**/*.py",
    "analysis/mechanism.py",
    "[a-z]*.py",
)
_Definition = ast.FunctionDef | ast.ClassDef | ast.Module


@final
@dataclass(frozen=True, slots=True)
class _Class:
    """A class and its file."""

    file: str
    definition: ast.ClassDef


@final
@dataclass(frozen=True, slots=True)
class _Place:
    """A definition, the class it belongs to, its file, and what the file says of itself."""

    file: str
    about: str
    owner: ast.ClassDef | None
    definition: _Definition

    def page(self) -> RulePage:
        """Its docstring, or that of the class or the file where it has none."""
        name = getattr(self.definition, "name", Path(self.file).stem)
        qualified = f"{self.owner.name}.{name}" if self.owner else name
        text = ast.get_docstring(self.definition) or (self.owner and ast.get_docstring(self.owner))
        return RulePage(f"lipcert/{self.file}", qualified, inspect.cleandoc(text or self.about))


def rule_pages() -> dict[str, list[RulePage]]:
    """All rules, sorted by name."""
    places = [place for path in _files() for place in _places(path)]
    classes = {
        place.definition.name: _Class(place.file, place.definition)
        for place in places
        if isinstance(place.definition, ast.ClassDef)
    }
    pages: dict[str, list[RulePage]] = {}
    for place in places:
        for rule in _rules_at(place, classes):
            page = place.page()
            known = pages.setdefault(rule, [])
            if page not in known:
                known.append(page)
    return dict(sorted(pages.items()))


def _files() -> list[Path]:
    return [path for pattern in _SOURCES for path in sorted(_PACKAGE.glob(pattern))]


def _places(path: Path) -> Iterator[_Place]:
    file = path.relative_to(_PACKAGE).as_posix()
    module = ast.parse(path.read_text(encoding="utf-8"))
    about = ast.get_docstring(module) or ""
    for owner, definition in _definitions(module, None):
        yield _Place(file, about, owner, definition)


def _definitions(
    parent: ast.AST, owner: ast.ClassDef | None
) -> Iterator[tuple[ast.ClassDef | None, _Definition]]:
    """Every definition inside, with the class it belongs to."""
    if isinstance(parent, _Definition):
        yield owner, parent
    inner = parent if isinstance(parent, ast.ClassDef) else owner
    for child in ast.iter_child_nodes(parent):
        if isinstance(child, ast.FunctionDef | ast.ClassDef):
            yield from _definitions(child, inner)


def _rules_at(place: _Place, classes: dict[str, _Class]) -> Iterator[str]:
    """Rule names that a definition uses itself, not those of definitions inside it."""
    families = _families_at(place, classes)
    name = getattr(place.definition, "name", "")
    if name in _QUESTIONS and place.owner is not None and place.owner.name != _CONTRACT:
        yield from (f"{family}.{name}" for family in families)
    pending: list[ast.AST] = list(ast.iter_child_nodes(place.definition))
    while pending:
        match pending.pop():
            case ast.FunctionDef() | ast.ClassDef():
                continue
            case ast.JoinedStr() as text:
                tail = _family_tail(text)
                yield from (f"{family}{tail}" for family in families if tail)
            case ast.Constant(value=str(text)) if _RULE.fullmatch(text):
                yield text
            case node:
                pending.extend(ast.iter_child_nodes(node))


def _families_at(place: _Place, classes: dict[str, _Class]) -> list[str]:
    """The families that `family` can mean at a place: of its class, or of the file's classes."""
    if place.owner is not None:
        return _families(place.owner, classes)
    return [
        family
        for found in classes.values()
        if found.file == place.file and (family := _declared_family(found.definition))
    ]


def _families(owner: ast.ClassDef, classes: dict[str, _Class]) -> list[str]:
    """The family a class declares, or those of all its subclasses where it declares none."""
    declared = _declared_family(owner)
    if declared:
        return [declared]
    definitions = [found.definition for found in classes.values()]
    children = [child for child in definitions if owner.name in _base_names(child)]
    return [family for child in children for family in _families(child, classes)]


def _base_names(definition: ast.ClassDef) -> list[str]:
    return [base.id for base in definition.bases if isinstance(base, ast.Name)]


def _declared_family(definition: ast.ClassDef) -> str:
    for member in definition.body:
        if isinstance(member, ast.FunctionDef) and member.name == "family":
            for node in ast.walk(member):
                match node:
                    case ast.Return(value=ast.Constant(value=str(family))):
                        return family
    return ""


def _family_tail(text: ast.JoinedStr) -> str:
    """`.output_norm` of f"{self.family}.output_norm"; "" for any other text."""
    match text.values:
        case [
            ast.FormattedValue(value=ast.Attribute(attr="family") | ast.Name(id="family")),
            ast.Constant(value=str(tail)),
        ]:
            return tail
        case _:
            return ""
