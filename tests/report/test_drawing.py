"""Drawings: complete, deterministic, and unmoved by any name that a model can hold."""

import html
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lipcert.importer.load import load_model
from lipcert.report.drawing import inspection_dot, inspection_mermaid
from lipcert.report.inspection import InspectedMacro, InspectedNode, Inspection, inspection_of
from lipcert.text.safe import shortened
from tests.report.samples import inspection, refused
from tests.test_safe import NASTY, check_inert

MODELS = Path(__file__).parents[2] / "models"
GRAMMAR = ['"', '\\"', "\\", '"];x[', '"]\n  evil', "a|b", "]]", "<b>", "&quot;", "#quot;", "`x`"]
names = st.one_of(
    st.sampled_from([*NASTY, *GRAMMAR, "end", "graph", "\\N", "\\G", "%%{init}%%"]),
    st.text(max_size=80),
    st.text('"\\]|`#&;<>{}()-\n', max_size=20),
)

DOT_LINE = re.compile(
    r'  (?P<box>[a-z]\d+) \[shape=\w+(, \w+=\w+)?, label="(?P<text>(?:[^"\\]|\\.)*)"\];'
    r'|  subgraph cluster_m\d+ \{ label="(?P<frame>(?:[^"\\]|\\.)*)";( n\d+;)+ \}'
    r'|  [a-z]\d+ -> [a-z]\d+ \[label="(?P<edge>(?:[^"\\]|\\.)*)"(, style=dashed)?\];'
)
MERMAID_LINE = re.compile(
    r'  (?P<box>[a-z]\d+)(\(\[|\[/|\[|\{\{)"(?P<text>[^"]*)"(\]\)|/\]|\]|\}\})'
    r'|  subgraph m\d+\["(?P<frame>[^"]*)"\]|    n\d+|  end'
    r'|  [a-z]\d+ (-->|-\.->)\|"(?P<edge>[^"]*)"\| [a-z]\d+'
)


def dot_labels(drawing: str) -> list[str]:
    """What Graphviz shows: a reader of the grammar that the drawing may use, and no more."""
    first, second, *lines, last = drawing.removesuffix("\n").split("\n")
    assert (first, second, last) == ("digraph model {", "  rankdir=TB;", "}")
    return [label for line in lines for label in dot_parts(quoted(DOT_LINE, line))]


def mermaid_labels(drawing: str) -> list[str]:
    first, *lines = drawing.removesuffix("\n").split("\n")
    assert first == "flowchart TD"
    texts = [quoted(MERMAID_LINE, line) for line in lines]
    return [decoded(part) for text in texts for part in text.split("<br/>")]


def quoted(grammar: re.Pattern[str], line: str) -> str:
    match = grammar.fullmatch(line)
    assert match, line
    return match["text"] if match["box"] else match["edge"] or match["frame"] or ""


def dot_parts(text: str) -> list[str]:
    parts = [""]
    for token in re.findall(r"\\.|[^\\]", text):
        if token == "\\n":
            parts.append("")
        else:
            assert len(token) == 1 or token[1] in '\\"'
            parts[-1] += token[-1]
    return [html.unescape(part) for part in parts]


def decoded(text: str) -> str:
    assert re.fullmatch(r"(?:[A-Za-z0-9 ._×-]|#\d+;)*", text), text
    return re.sub(r"#(\d+);", lambda found: chr(int(found[1])), text)


@given(name=names)
@settings(max_examples=300, deadline=None)
def test_every_name_is_shown_and_none_is_obeyed(name: str) -> None:
    for draw, read in ((inspection_dot, dot_labels), (inspection_mermaid, mermaid_labels)):
        for found in (inspection(name), refused(name)):
            drawing = draw(found)
            check_inert(drawing)
            shown = read(drawing)
            if found.nodes and name.strip():
                assert shortened(name, 60) in shown


@pytest.mark.parametrize("draw", [inspection_dot, inspection_mermaid])
def test_a_drawing_is_complete(draw) -> None:
    found = inspection_of(load_model(MODELS / "digits_cnn.onnx"))
    drawing = draw(found)
    assert drawing == draw(found)
    for node in found.nodes:
        assert node.name in drawing
        assert node.op in drawing
    for parameter in found.parameters:
        assert drawing.count(parameter.name) == 1
    arrows = [line for line in drawing.splitlines() if "->" in line]
    uses = sum(len(node.inputs) + len(node.parameters) for node in found.nodes)
    assert len(arrows) == uses + len(found.outputs)


@pytest.mark.parametrize("draw", [inspection_dot, inspection_mermaid])
def test_a_refused_model_shows_its_reasons(draw) -> None:
    drawing = draw(refused())
    assert "LC004" in drawing
    assert "loop1 is a loop" in drawing
    assert "unroll loop1" in drawing


def test_an_empty_inspection_is_a_drawing() -> None:
    assert dot_labels(inspection_dot(Inspection("m.onnx"))) == []
    assert mermaid_labels(inspection_mermaid(Inspection("m.onnx"))) == []


@pytest.mark.parametrize(
    ("draw", "frame"),
    [
        (inspection_dot, '  subgraph cluster_m0 { label="LayerNormalization: 9 nodes"; n1; n2; }'),
        (
            inspection_mermaid,
            '  subgraph m0["LayerNormalization#58; 9 nodes"]\n    n1\n    n2\n  end',
        ),
    ],
)
def test_a_macro_layer_has_a_frame(draw, frame) -> None:
    nodes = tuple(
        InspectedNode(name, "relu", (source,), output, (3,), {})
        for name, source, output in (("a", "x", "b"), ("ln/1", "b", "c"), ("ln/2", "c", "d"))
    )
    macro = InspectedMacro("LayerNormalization", "ln", tuple("abcdefghi"))
    found = Inspection("m.onnx", inputs=(("x", (3,)),), nodes=nodes, macros=(macro,))
    assert frame in draw(found)
