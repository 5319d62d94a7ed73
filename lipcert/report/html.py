"""HTML: documents as one self-contained file, without network access or scripts.

The file contains the data of the documents as JSON. Equal documents give equal bytes. The
environment of the templates, not their author, makes every text safe and escapes it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from lipcert.report.document import Cell, Document, Figure, Part, Statements, cell_text
from lipcert.report.json import JsonObject
from lipcert.text.numbers import measured
from lipcert.text.safe import safe
from lipcert.version import __version__

if TYPE_CHECKING:
    from lipcert.report.charts import LineChart

_DIGITS: Final = 5


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


def page_html(facts: Statements, documents: Sequence[Document], data: JsonObject) -> str:
    """Return the whole file. facts: what the documents are about."""
    text = _template("page.html.jinja").render(
        facts=facts, documents=documents, data=Markup(_embedded(data)), version=__version__
    )
    return text + "\n"


def _embedded(data: JsonObject) -> str:
    """Return JSON that cannot end the element around it: `<`, `>` and `&` are escaped."""
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text.replace("##", "#\\u0023").replace("\x7f", "\\u007f")


@cache
def _template(name: str) -> Template:
    found = templates(kind=_kind, words=_words, drawn=_drawn)
    found.filters |= {"tenth": "{:.1f}".format, "measured": partial(measured, digits=3)}
    return found.get_template(name)


def _kind(part: Part) -> str:
    return type(part).__name__


def _drawn(item: Figure) -> Markup:
    return Markup(svg(item.chart, item.key, item.title, item.description))


def svg(chart: LineChart, key: str, title: str, description: str) -> str:
    """Return a chart as an image with a name and a description; `key` is unique on its page."""
    across, vertical = chart.axes
    return _template("chart.svg.jinja").render(
        chart.frame,
        chart=chart,
        across=across,
        vertical=vertical,
        key=key,
        title=title,
        description=description,
    )


def _words(cell: Cell) -> str:
    return cell_text(cell, _DIGITS)
