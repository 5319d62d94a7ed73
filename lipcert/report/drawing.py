"""Drawings of an inspected graph, as Graphviz DOT or Mermaid text.

What enters: an `Inspection`. What leaves: nodes with their op and output shape, notes for trained
parameters, one edge per use of a value, a frame around the ops of each macro layer; for a refused
model a note per reason. Invariants: the
text depends on the inspection alone; identifiers are made here, and strings of the model stand
only inside quoted labels, where no character of theirs has a meaning.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from typing import Final, NamedTuple, final

from lipcert.errors import Refusal
from lipcert.report.inspection import InspectedParameter, Inspection
from lipcert.report.numbers import shape_text
from lipcert.text.safe import safe, shortened

_LABEL_WIDTH: Final = 60
_PLAIN: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789 ._-×")


@final
class _Box(NamedTuple):
    """A value, an op, a parameter or a reason; its role names how it is drawn."""

    key: str
    role: str
    lines: tuple[str, ...]


@final
class _Arrow(NamedTuple):
    """label: the value that flows, or the slot that a parameter fills."""

    source: str
    target: str
    label: str
    is_parameter: bool


@final
class _Frame(NamedTuple):
    """Around the boxes of one macro layer."""

    key: str
    label: str
    members: tuple[str, ...]


_Drawing = tuple[list[_Box], list[_Arrow]]

_SHAPES: Final = {
    "value": ("shape=ellipse", "([", "])"),
    "op": ("shape=box", "[", "]"),
    "parameter": ("shape=note, style=dashed", "[/", "/]"),
    "refusal": ("shape=note, color=red", "{{", "}}"),
}
"""in DOT, and the brackets of Mermaid"""

_DOT_BREAK: Final = "\\n"


def inspection_dot(inspection: Inspection) -> str:
    """The graph for `dot -Tsvg`."""
    boxes, arrows = _drawing(inspection)
    lines = ["digraph model {", "  rankdir=TB;"]
    lines += [
        f'  {box.key} [{_SHAPES[box.role][0]}, label="{_joined(box, _dot_text, _DOT_BREAK)}"];'
        for box in boxes
    ]
    for frame in _frames(inspection):
        label = _dot_text(shortened(frame.label, _LABEL_WIDTH))
        members = " ".join(f"{key};" for key in frame.members)
        lines.append(f'  subgraph cluster_{frame.key} {{ label="{label}"; {members} }}')
    for arrow in arrows:
        style = ", style=dashed" if arrow.is_parameter else ""
        label = _dot_text(shortened(arrow.label, _LABEL_WIDTH))
        lines.append(f'  {arrow.source} -> {arrow.target} [label="{label}"{style}];')
    return "\n".join([*lines, "}"]) + "\n"


def inspection_mermaid(inspection: Inspection) -> str:
    """The graph as a Mermaid flowchart, which GitHub and GitLab draw in Markdown."""
    boxes, arrows = _drawing(inspection)
    lines = ["flowchart TD"]
    for box in boxes:
        _, left, right = _SHAPES[box.role]
        lines.append(f'  {box.key}{left}"{_joined(box, _mermaid_text, "<br/>")}"{right}')
    for frame in _frames(inspection):
        label = _mermaid_text(shortened(frame.label, _LABEL_WIDTH))
        members = [f"    {key}" for key in frame.members]
        lines += [f'  subgraph {frame.key}["{label or " "}"]', *members, "  end"]
    for arrow in arrows:
        line = "-.->" if arrow.is_parameter else "-->"
        label = _mermaid_text(shortened(arrow.label, _LABEL_WIDTH))
        lines.append(f'  {arrow.source} {line}|"{label or " "}"| {arrow.target}')
    return "\n".join(lines) + "\n"


def _joined(box: _Box, escape: Callable[[str], str], line_break: str) -> str:
    return line_break.join(escape(shortened(line, _LABEL_WIDTH)) for line in box.lines)


def _dot_text(text: str) -> str:
    """Inert between double quotes: neither the end, nor an escape, nor an HTML entity."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("&", "&amp;")


def _mermaid_text(text: str) -> str:
    """Inert between double quotes: all but plain characters as numeric entities."""
    return "".join(letter if letter in _PLAIN else f"#{ord(letter)};" for letter in text)


def _drawing(inspection: Inspection) -> _Drawing:
    """Boxes and arrows in data-flow order."""
    boxes = [
        _Box(f"r{index}", "refusal", _reason(refusal))
        for index, refusal in enumerate(inspection.refusals)
    ]
    sources: dict[str, str] = {}
    for index, (name, shape) in enumerate(inspection.inputs):
        sources[name] = f"i{index}"
        boxes.append(_Box(f"i{index}", "value", (f"input {name}", shape_text(shape))))
    parameters = {item.name: f"p{index}" for index, item in enumerate(inspection.parameters)}
    arrows: list[_Arrow] = []
    for index, node in enumerate(inspection.nodes):
        key = f"n{index}"
        boxes.append(_Box(key, "op", (node.op, node.name, shape_text(node.shape))))
        arrows += [_Arrow(sources[name], key, name, False) for name in node.inputs]
        arrows += [
            _Arrow(parameters[name], key, slot, True) for slot, name in node.parameters.items()
        ]
        sources[node.output] = key
    boxes += [
        _Box(parameters[item.name], "parameter", _note(item)) for item in inspection.parameters
    ]
    for index, (name, shape) in enumerate(inspection.outputs):
        boxes.append(_Box(f"o{index}", "value", (f"output {name}", shape_text(shape))))
        if name in sources:
            arrows.append(_Arrow(sources[name], f"o{index}", name, False))
    return boxes, arrows


def _frames(inspection: Inspection) -> list[_Frame]:
    """One per macro layer: its ops have the name of its last node, numbered if there are more."""
    places: dict[str, list[str]] = {}
    for index, node in enumerate(inspection.nodes):
        stem, slash, number = node.name.rpartition("/")
        for name in {node.name, stem if slash and number.isdecimal() else node.name}:
            places.setdefault(name, []).append(f"n{index}")
    return [
        _Frame(f"m{index}", f"{macro.kind}: {len(macro.nodes)} nodes", tuple(places[macro.node]))
        for index, macro in enumerate(inspection.macros)
        if macro.node in places
    ]


def _reason(refusal: Refusal) -> tuple[str, ...]:
    where = " ".join(word for word in (refusal.code, refusal.op, refusal.node) if word)
    remedy = f"remedy: {refusal.remedy}" if refusal.remedy else ""
    return (where, *(line for text in (refusal.reason, remedy) for line in _wrapped(text)))


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(safe(text), _LABEL_WIDTH, max_lines=8)


def _note(parameter: InspectedParameter) -> tuple[str, ...]:
    frozen = () if parameter.trainable else ("frozen",)
    return (parameter.name, shape_text(parameter.shape), *frozen)
