"""explain: the page behind a diagnostic code or a rule name.

What enters: `LC003`, or a rule as certificates (`dense/1`) or analyses name it. What leaves: text:
for a code its meaning and remedy, for a rule of the core the docstrings of what applies it.
"""

from __future__ import annotations

from collections.abc import Mapping

from lipcert.choices import nearest
from lipcert.diagnostics import CODES
from lipcert.errors import UsageError
from lipcert.explain.codes import PAGES
from lipcert.explain.core import RulePage, core_pages

__all__ = ["all_keys", "explain"]


def explain(key: str) -> str:
    """The page of a code or a rule; UsageError with the nearest names for an unknown key."""
    if key.upper() in CODES:
        return _code_page(key.upper())
    pages = core_pages()
    if key in pages:
        return "\n\n".join([key, *(_rule_text(page) for page in pages[key])])
    below = [name for name in pages if name.startswith((f"{key}.", f"{key}/"))]
    if len(below) == 1:
        return explain(below[0])
    if below:
        return "\n".join([f"{key}: rules of this name", *(f"  {name}" for name in below)])
    hint = nearest(key, [*CODES, *pages]) or "`lipcert explain` lists all"
    raise UsageError(f"explain: {key!r} is neither a rule nor a code; {hint}")


def all_keys() -> Mapping[str, str]:
    """Every code and rule with a one-line title."""
    titles = {name: pages[0].text.partition("\n")[0] for name, pages in core_pages().items()}
    return {**CODES, **titles}


def _code_page(code: str) -> str:
    page = PAGES.get(code, "")
    return f"{code}: {CODES[code]}" + (f"\n\n{page}" if page else "")


def _rule_text(page: RulePage) -> str:
    return f"{page.name}  ({page.file})\n\n{page.text}"
