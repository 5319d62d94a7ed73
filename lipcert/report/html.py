"""HTML: documents as one self-contained file, without network access or scripts.

The file contains the data of the documents as JSON. Equal documents give equal bytes.
"""

import json
from collections.abc import Sequence
from functools import cache, partial
from typing import Final

from jinja2 import Template
from markupsafe import Markup

from lipcert.report import charts
from lipcert.report.document import Cell, Document, Figure, Part, Statements, cell_text
from lipcert.report.json import JsonObject
from lipcert.report.markup import templates
from lipcert.text.numbers import bar, measured
from lipcert.version import __version__

_DIGITS: Final = 5


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
    found = templates(kind=_kind, words=_words, drawn=_drawn, bar=bar)
    found.filters |= {"tenth": "{:.1f}".format, "measured": partial(measured, digits=3)}
    return found.get_template(name)


def _kind(part: Part) -> str:
    return type(part).__name__


def _drawn(item: Figure) -> Markup:
    return Markup(svg(item.chart, item.key, item.title, item.description))


def svg(chart: charts.LineChart, key: str, title: str, description: str) -> str:
    """Return a chart as an image with a name and a description; `key` is unique on its page."""
    across, vertical = chart.axes
    places = {name: getattr(charts, name.upper()) for name in ("left", "right", "top", "bottom")}
    return _template("chart.svg.jinja").render(
        places,
        chart=chart,
        across=across,
        vertical=vertical,
        key=key,
        title=title,
        description=description,
        width=charts.WIDTH,
        height=charts.HEIGHT,
    )


def _words(cell: Cell) -> str:
    return cell_text(cell, _DIGITS)
