"""A real browser draws the page: charts have a size, colours, and labels that can be read."""

import html
import json
import re
import shutil
import subprocess
from dataclasses import dataclass, replace
from functools import cache

import pytest

from lipcert.diagnostics import Diagnostic, Level
from tests.report import audit_samples
from tests.report.html.documents import audit_source, full_page, page
from tests.report.samples import node, sample
from tests.report.written import analysis_html

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(BROWSER is None, reason="needs chromium (apt install chromium)")
BOUND = (157, 184, 221)
HEIGHT = 1000

PROBE = """<!DOCTYPE html><body style="margin:0">
<iframe id="f" src="page.html"
style="border:0;display:block;width:WIDTHpx;height:HEIGHTpx"></iframe>
<pre id="out"></pre><script>
const box = r => [r.left, r.top, r.width, r.height];
document.getElementById("f").onload = event => {
  const page = event.target.contentDocument;
  const found = [...page.querySelectorAll("svg")].map(svg => ({
    key: svg.closest("figure").id,
    box: box(svg.getBoundingClientRect()),
    size: [...svg.querySelectorAll("text")].map(t => parseFloat(
      page.defaultView.getComputedStyle(t).fontSize) * svg.getScreenCTM().a),
    texts: [...svg.querySelectorAll("text")].map(
      t => [t.textContent, box(t.getBoundingClientRect())]),
  }));
  document.getElementById("out").textContent = JSON.stringify({
    charts: found, width: page.documentElement.scrollWidth,
    cells: [...page.querySelectorAll(".findings td, .ledger td, .ledger th, .key td, .key th")]
      .map(cell => [cell.textContent, box(cell.getBoundingClientRect())])
      .filter(cell => cell[1][2] > 0)});
};
</script></body>"""

Box = tuple[float, float, float, float]


@dataclass(frozen=True, slots=True)
class Chart:
    key: str
    box: Box
    sizes: tuple[float, ...]
    texts: tuple[tuple[str, Box], ...]


def browse(*words: str) -> str:
    command = [
        *(str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
        *("--allow-file-access-from-files", "--virtual-time-budget=4000", *words),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def probed(text: str, width: int, folder, height: int = HEIGHT) -> dict:
    """Where the browser puts charts, texts and cells of prose, and how wide the page is."""
    (folder / "page.html").write_text(text, encoding="utf-8")
    probe = PROBE.replace("WIDTH", str(width)).replace("HEIGHT", str(height))
    (folder / "probe.html").write_text(probe, encoding="utf-8")
    dom = browse("--dump-dom", f"file://{folder}/probe.html")
    found = re.search(r'<pre id="out">(.*?)</pre>', dom, re.DOTALL)
    return json.loads(html.unescape(found[1]))


def layout(text: str, width: int, folder, height: int = HEIGHT) -> tuple[list[Chart], int]:
    """Charts, and how wide the page is."""
    told = probed(text, width, folder, height)
    charts = [
        Chart(
            item["key"],
            tuple(item["box"]),
            tuple(item["size"]),
            tuple((text, tuple(box)) for text, box in item["texts"]),
        )
        for item in told["charts"]
    ]
    return charts, told["width"]


def overlap(one: Box, other: Box) -> float:
    """The smaller side of the common rectangle, at most 0 where there is none."""
    across = min(one[0] + one[2], other[0] + other[2]) - max(one[0], other[0])
    down = min(one[1] + one[3], other[1] + other[3]) - max(one[1], other[1])
    return min(across, down)


def check_apart(chart: Chart) -> None:
    for index, (text, box) in enumerate(chart.texts):
        for other, place in chart.texts[index + 1 :]:
            assert overlap(box, place) <= 1.5, (chart.key, text, other)


@cache
def long_page() -> str:
    return page(audit_source(audit_samples.many()))


@pytest.mark.nightly
@pytest.mark.parametrize("width", [1280, 400])
def test_labels_are_legible_and_apart(width: int, tmp_path) -> None:
    charts, page_width = layout(full_page(), width, tmp_path)
    assert page_width <= width
    assert {"audited-values", "epsilon-steps"} <= {chart.key for chart in charts}
    for chart in charts:
        left, top, wide, high = chart.box
        assert wide > 0.6 * min(width, 600)
        assert high > 50
        assert min(chart.sizes) >= 8.5, chart.key
        for text, box in chart.texts:
            assert left - 1.0 <= box[0], (chart.key, text)
            assert box[0] + box[2] <= left + wide + 1.0, (chart.key, text)
            assert top - 1.0 <= box[1], (chart.key, text)
            assert box[1] + box[3] <= top + high + 1.0, (chart.key, text)
        check_apart(chart)


@pytest.mark.nightly
def test_many_groups_are_legible(tmp_path) -> None:
    charts, _ = layout(
        re.sub(r"<tbody>.*?</tbody>", "", long_page(), flags=re.DOTALL), 400, tmp_path
    )
    for chart in charts:
        check_apart(chart)


def one_enormous():
    """A group, and what goes through it, whose bound is out of all proportion."""
    sizes = {"conv1": 12.4, "conv2": 250.0, "dense": 1e25, "head": 3.1}
    first = sample().groups[0]
    return replace(
        sample(),
        groups=tuple(replace(first, name=name, grad_norm=size) for name, size in sizes.items()),
        nodes=tuple(
            node(name, output_norm=size, cotangent_norm=size) for name, size in sizes.items()
        ),
    )


@pytest.mark.nightly
@pytest.mark.parametrize("width", [1280, 400])
def test_axes_with_one_enormous_bound_are_legible(width: int, tmp_path) -> None:
    charts, _ = layout(analysis_html(one_enormous()), width, tmp_path)
    for chart in charts:
        check_apart(chart)
    names = [text for chart in charts for text, _ in chart.texts]
    assert "10²⁵" in names


@pytest.mark.nightly
@pytest.mark.parametrize("width", [1280, 700, 400])
def test_remedies_and_numbers_are_within_the_page(width: int, tmp_path) -> None:
    """Nothing that is to be read has to be scrolled to the side for."""
    remedy = "state an input domain (--input-norm, --input-box), or normalise the tokens"
    finding = Diagnostic(
        "LC101", Level.WARNING, "block1.attention", "unbounded tokens " * 6, remedy
    )
    analysis = replace(one_enormous(), diagnostics=(finding,))
    cells = probed(analysis_html(analysis), width, tmp_path)["cells"]
    assert remedy in [text for text, _ in cells]
    for text, (left, _, wide, _) in cells:
        assert left >= 0.0, text
        assert left + wide <= width, text
        assert wide >= 6.0 * min(len(text), 16), text
