"""explain: the page behind a diagnostic code or a rule name.

    fact/step, pull/form, …         the lines of a certificate, by their rule
    dense/1, activation.relu/1, …   the class of a kind of step, and the function of an activation
    norm.dense, norm.torus, …       the proof that a claimed operator norm names
    loss.cross-entropy, …           the gradient of a loss

Input: `LC003`, or a rule as certificates or analyses name it. Output: text: for a code its meaning
and remedy, for a rule of the core the docstrings of the code that applies it. Sources are read, not
imported; the names come from the registries by which the core finds its rules, so that no page is
missing or out of date.
"""

import ast
import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from lipcert.core.line import RULES
from lipcert.core.losses import KINDS
from lipcert.core.registry import Registry
from lipcert.core.rules import FUNCTIONS, STEPS, VERSION
from lipcert.diagnostics import CODES
from lipcert.errors import UsageError
from lipcert.settings.values import nearest

__all__ = ["all_keys", "explain"]

_CORE: Final = Path(__file__).parent.parent / "core"
_Definition = ast.FunctionDef | ast.ClassDef


@dataclass(frozen=True, slots=True)
class RulePage:
    """Where a rule is applied, and what is said there."""

    file: str
    name: str
    text: str


def core_pages() -> dict[str, list[RulePage]]:
    """All pages, sorted by name."""
    lines = {rule: [_placed(RULES, rule)] for rule in RULES}
    losses = {f"loss.{kind}": [_placed(KINDS, kind)] for kind in KINDS}
    pages = {**lines, **_steps(), **_norms(), **losses}
    return dict(sorted(pages.items()))


def _steps() -> dict[str, list[RulePage]]:
    pages = {kind: _placed(STEPS, kind) for kind in STEPS}
    applied = pages.pop("Activation")
    found = {f"{kind.lower()}/{VERSION}": [page] for kind, page in pages.items()}
    functions = {name: [_placed(FUNCTIONS, name), applied] for name in FUNCTIONS}
    return {**found, **{f"activation.{name}/{VERSION}": page for name, page in functions.items()}}


def _norms() -> dict[str, list[RulePage]]:
    """By the routes that `norms.convolution` tells apart, and the functions it calls for each."""
    files = [f"norms/{path.name}" for path in sorted((_CORE / "norms").glob("*.py"))]
    known = {
        definition.name: file
        for file in files
        for definition in _definitions(file)
        if ast.get_docstring(definition)
    }
    found: dict[str, list[RulePage]] = {}
    for case in ast.walk(_tree("norms/convolution.py")):
        if not isinstance(case, ast.match_case):
            continue
        constants = [n.value for n in ast.walk(case.pattern) if isinstance(n, ast.Constant)]
        called = [name for node in case.body for name in _called(node) if name in known]
        for method in (value for value in constants if isinstance(value, str)):
            found[f"norm.{method}"] = [_page(known[name], name) for name in called]
    return found


def _called(node: ast.AST) -> Iterator[str]:
    """Names of what is called, as functions or as methods."""
    for call in ast.walk(node):
        match call:
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
                yield name


def _placed(registry: Registry, name: str) -> RulePage:
    """The page of what a registry has under a name."""
    module, _, member = registry.places[name].partition(".")
    return _page(f"{registry.package}/{module}.py", member)


def _page(file: str, name: str) -> RulePage:
    """The docstring of a definition; of a class also those of its methods."""
    (definition,) = (item for item in _definitions(file) if item.name == name)
    members: Iterable[ast.stmt] = definition.body if isinstance(definition, ast.ClassDef) else ()
    texts = [_text(definition)]
    for member in members:
        if isinstance(member, ast.FunctionDef) and ast.get_docstring(member):
            texts.append(f"{member.name}: {_text(member)}")
    return RulePage(f"lipcert/core/{file}", name, "\n\n".join(texts))


def _text(definition: _Definition) -> str:
    return inspect.cleandoc(ast.get_docstring(definition) or "")


def _definitions(file: str) -> Iterator[_Definition]:
    """Classes, functions, and methods of classes."""
    for node in ast.walk(_tree(file)):
        if isinstance(node, _Definition):
            yield node


@cache
def _tree(file: str) -> ast.Module:
    return ast.parse((_CORE / file).read_text(encoding="utf-8"))


def explain(key: str) -> str:
    """The page of a code or a rule; UsageError with the nearest names for an unknown key."""
    if (code := key.upper()) in CODES:
        return f"{code}: {CODES[code]}\n\n{code_pages()[code]}"
    pages = core_pages()
    if key in pages:
        return "\n\n".join([key, *(f"{p.name}  ({p.file})\n\n{p.text}" for p in pages[key])])
    below = [name for name in pages if name.startswith((f"{key}.", f"{key}/"))]
    if len(below) == 1:
        return explain(below[0])
    if below:
        return "\n".join([f"{key}: rules of this name", *(f"  {name}" for name in below)])
    meant = re.sub("(?i)^(group|instance|layer|rms).?norm.*", "normalize", key)
    hint = nearest(meant, [*CODES, *pages]) or "`lipcert explain` lists all"
    raise UsageError(f"explain: {key!r} is neither a rule nor a code; {hint}")


def all_keys() -> Mapping[str, str]:
    """Every code and rule with a one-line title."""
    titles = {name: pages[0].text.partition("\n")[0] for name, pages in core_pages().items()}
    return {**CODES, **titles}


@cache
def code_pages() -> Mapping[str, str]:
    """The paragraph of each code, on one line."""
    text = (Path(__file__).parent / "codes.md").read_text(encoding="utf-8")
    parts = (part.partition("\n") for part in text.split("\n## ")[1:])
    return {code: " ".join(page.split()) for code, _, page in parts}
