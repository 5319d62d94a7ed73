"""Markup: templates of pages and documents in which no text has a meaning of its own.

The environment of the templates, not their author, makes every text safe and escapes it.
"""

from collections.abc import Callable
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from lipcert.text.safe import safe


def templates(**filters: Callable[..., Any]) -> Environment:
    """Return the templates of this package, with further filters."""
    found = Environment(
        loader=PackageLoader("lipcert.report"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_made_safe,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters |= filters
    return found


def _made_safe(value: object) -> object:
    """Make plain strings safe; finished markup comes from templates only."""
    return safe(value) if type(value) is str else value
