"""HTML: documents as one self-contained file, without network access or scripts.

The file contains their data as JSON. Every text of a document is made safe and escaped by the
environment of the template, not by its author; equal documents give equal bytes.
"""

import json
from collections.abc import Sequence
from functools import cache
from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from lipcert.report.charts import figure
from lipcert.report.document import Cell, Document, Figure, Part, Statements, cell_text
from lipcert.report.json import JsonObject
from lipcert.text.numbers import bar
from lipcert.text.safe import safe
from lipcert.version import __version__

_DIGITS: Final = 5


def page_html(facts: Statements, documents: Sequence[Document], data: JsonObject) -> str:
    """The whole file. facts: what the documents are about."""
    text = _template().render(
        facts=facts, documents=documents, data=Markup(_embedded(data)), version=__version__
    )
    return text + "\n"


def _embedded(data: JsonObject) -> str:
    """JSON that cannot end the element around it: `<`, `>` and `&` are escapes."""
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text.replace("##", "#\\u0023").replace("\x7f", "\\u007f")


@cache
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("lipcert.report"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_made_safe,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"kind": _kind, "words": _words, "drawn": _drawn, "bar": bar}
    return environment.get_template("page.html.jinja")


def _kind(part: Part) -> str:
    return type(part).__name__


def _drawn(item: Figure) -> Markup:
    return Markup(figure(item.chart, item.key, item.title, item.description))


def _words(cell: Cell) -> str:
    return cell_text(cell, _DIGITS)


def _made_safe(value: object) -> object:
    """Plain strings are made safe; finished markup is the template's and the charts' own."""
    return safe(value) if type(value) is str else value
