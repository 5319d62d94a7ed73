"""The page is one well-formed, inert file, whatever the documents hold."""

import json
import re
import unicodedata
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.models.shipped import analysis_of
from tests.report import audit_samples
from tests.report.html.documents import analysis_source, audit_source, full_page, page
from tests.report.html.markup import SVG, charts, parsed
from tests.report.samples import sample
from tests.report.written import analysis_html

ALLOWED = {
    *("html", "head", "meta", "title", "style", "body", "header", "main", "footer", "section"),
    *("h1", "h2", "h3", "h4", "p", "dl", "dt", "dd", "div", "span", "pre", "details", "summary"),
    *("table", "thead", "tbody", "tr", "th", "td", "ul", "li", "figure", "figcaption", "script"),
    *("svg", "desc", "text", "line", "rect", "circle", "polyline"),
}
NASTY = [
    "<script>alert(1)</script>",
    "</script><img src=x onerror=alert(1)>",
    '"><svg onload=alert(1)>',
    "' onmouseover='alert(1)",
    "</title></style></textarea>",
    "a\u202egnp.exe\u2066",
    "&lt;b&gt;&#x27;&amp;",
    "{{ 7 * 7 }}{% raw %}",
    "\x00\x1b[31m\x7f\ud800\u2028",
    "http://example.org/x.js",
    "--><!--",
    "]]>",
    "",
    "漢" * 90,
    "x" * 400,
]


def check_inert(text: str) -> None:
    found = parsed(text)
    assert found.tags <= ALLOWED
    for tag, name, value in found.attributes:
        assert not name.startswith("on"), (tag, name)
        assert name not in {"src", "href", "style", "action", "data"}, (tag, name)
        if name == "type":
            assert value == "application/json"
    for letter in set(text) - {"\n"}:
        assert unicodedata.category(letter) not in {"Cc", "Cf", "Cs", "Zl", "Zp"}, ascii(letter)
    style = re.search(r"<style>(.*?)</style>", text, re.DOTALL)
    assert "url(" not in style[1]
    assert "@import" not in style[1]
    for chart in charts(text):
        assert chart.tag == f"{SVG}svg"


@pytest.mark.parametrize("name", NASTY)
def test_no_name_of_a_model_becomes_markup(name: str) -> None:
    text = page(analysis_source(name))
    check_inert(text)
    document = json.loads(parsed(text).data)
    assert document["sources"][0]["document"]["nodes"][0]["name"] == name


@given(name=st.text(max_size=40), which=st.sampled_from(["hostile", "analysis"]))
def test_any_name_is_inert(name: str, which: str) -> None:
    source = (
        analysis_source(name) if which == "analysis" else audit_source(audit_samples.hostile(name))
    )
    check_inert(page(source))


@pytest.mark.parametrize("name", audit_samples.ALL)
def test_every_kind_of_audit_has_a_page(name: str) -> None:
    report = audit_samples.ALL[name]()
    text = page(audit_source(report))
    check_inert(text)
    assert f'<p class="word">{report.verdict.value.upper()}</p>' in text


def test_nothing_is_loaded_from_elsewhere() -> None:
    text = full_page()
    assert set(re.findall(r"https?://[^\"' <]*", text)) == {"http://www.w3.org/2000/svg"}
    assert "default-src 'none'" in text


def test_the_data_cannot_end_their_element() -> None:
    text = page(analysis_source("</script><script>alert(1)</script>"))
    assert text.count("<script") == text.count("</script") == 1


def test_equal_studies_give_equal_bytes() -> None:
    assert full_page.__wrapped__() == full_page()


def test_the_whole_page_has_every_chart_and_its_numbers() -> None:
    text = full_page()
    keys = {
        value for tag, name, value in parsed(text).attributes if (tag, name) == ("figure", "id")
    }
    assert keys == {
        *("epsilon-steps", "epsilon-sigma", "cotangents"),
        *("audited-values", "audited-cotangents"),
    }
    assert text.count("<svg") == text.count("Numbers of this chart") == len(keys)


def test_charts_have_names_and_descriptions() -> None:
    for chart in charts(full_page()):
        assert chart.get("role") == "img"
        named = (chart.get("aria-labelledby") or "").split()
        found = [chart.find(f"{SVG}title"), chart.find(f"{SVG}desc")]
        assert [item.get("id") for item in found if item is not None] == named
        assert all(item is not None and item.text for item in found)


def test_the_answer_stands_before_everything_else() -> None:
    text = full_page()
    places = [text.index(word) for word in ("COSTLY", "PASS", "Assumptions", "Charts", "Nodes")]
    assert places == sorted(places)
    found = re.search(r"moves the released mean of gradients by at most ([\d.]+) in 2-norm", text)
    assert 0.079 <= float(found[1]) <= 0.0791


def test_an_analysis_without_a_bound_says_so() -> None:
    analysis = sample()
    lost = replace(analysis, network=replace(analysis.network, sensitivity=None, grad_norm=None))
    text = analysis_html(lost)
    assert "NO BOUND" in text
    assert "LC101" in text


def test_a_page_of_many_groups_is_small() -> None:
    assert len(page(audit_source(audit_samples.many()))) < 700_000


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["digits_cnn", "digits_lipschitz_cnn", "digits_vit"])
def test_pages_of_shipped_models_are_small(name: str) -> None:
    text = analysis_html(analysis_of(name))
    check_inert(text)
    assert len(text.encode()) < 150_000
