"""What a page is made of, read by the parsers of the standard library."""

import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from xml.etree import ElementTree

VOID = {"meta", "link", "br", "img", "input"}
SVG = "{http://www.w3.org/2000/svg}"


@dataclass
class Markup(HTMLParser):
    """Checks that every element is closed in order, and collects what a page must not have."""

    opened: list[str] = field(default_factory=list)
    tags: set[str] = field(default_factory=set)
    attributes: list[tuple[str, str, str]] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    data: str = ""

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.opened.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.opened, f"</{tag}> without a beginning"
        assert self.opened.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.opened and self.opened[-1] == "script":
            self.data += data
        elif not (self.opened and self.opened[-1] == "style"):
            self.texts.append(data)


def parsed(page: str) -> Markup:
    found = Markup()
    found.feed(page)
    found.close()
    assert found.opened == []
    return found


def charts(page: str) -> list[ElementTree.Element]:
    """Every SVG, parsed as XML."""
    return [ElementTree.fromstring(text) for text in re.findall(r"<svg.*?</svg>", page, re.DOTALL)]
