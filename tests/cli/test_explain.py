"""Every code and every rule has a page."""

import inspect
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from unittest.mock import patch

import pytest

from lipcert.core.coverage import rule_of
from lipcert.core.line import RULES
from lipcert.core.losses import KINDS
from lipcert.core.program import Activation, Dense
from lipcert.core.rules import FUNCTIONS, STEPS
from lipcert.core.rules.steps import rule_class
from lipcert.diagnostics import CODES
from lipcert.errors import UsageError
from lipcert.explain import all_keys, code_pages, core_pages, explain
from tests.cli.issued import MODEL, call


@pytest.fixture(autouse=True, scope="module")
def _read_once() -> Iterator[None]:
    """The sources do not change in between."""
    with patch("lipcert.explain.core_pages", cache(core_pages)):
        yield


def test_every_code_has_a_page() -> None:
    assert code_pages().keys() == CODES.keys()
    for code in CODES:
        assert CODES[code] in explain(code)


def test_codes_are_found_in_any_case() -> None:
    assert explain("lc004") == explain("LC004")


def test_every_rule_that_a_certificate_names_has_a_page() -> None:
    """By the core itself, whose sources the pages are read from."""
    pages = core_pages()
    names = {rule_of(Activation(name)) for name in FUNCTIONS}
    names |= {f"{kind.lower()}/1" for kind in STEPS if kind != "Activation"}
    assert {name for name in pages if "/" in name} == {*RULES, *names}
    methods = ("dense", "windows", "explicit", "absolute", "torus")
    assert {name for name in pages if name.startswith("norm.")} == {f"norm.{m}" for m in methods}
    assert {name for name in pages if name.startswith("loss.")} == {f"loss.{k}" for k in KINDS}
    for name, found in pages.items():
        assert found, name
        assert all(page.text.strip() for page in found), name


def test_the_page_of_a_step_holds_its_class_and_every_question() -> None:
    (page,) = core_pages()["dense/1"]
    assert (page.name, page.file) == ("DenseRule", "lipcert/core/rules/dense.py")
    rule = rule_class(Dense)
    for question in ("fact", "lipschitz", "pulled", "reaches"):
        text = inspect.cleandoc(getattr(rule, question).__doc__)
        assert f"{question}: {text}" in page.text
    gelu = core_pages()["activation.gelu/1"]
    assert [page.name for page in gelu] == ["gelu", "ActivationRule"]
    assert "norm.dense" in explain("norm.dense")
    assert "dense/1" in explain("dense")


def test_a_prefix_lists_its_rules() -> None:
    listing = explain("norm").splitlines()
    assert listing[0] == "norm: rules of this name"
    assert "  norm.torus" in listing
    assert "  norm.dense" in listing


def test_a_prefix_of_one_rule_is_that_rule() -> None:
    assert explain("conv") == explain("conv/1")


def test_unknown_names_have_a_hint() -> None:
    with pytest.raises(UsageError, match=r"did you mean 'norm\.torus'"):
        explain("norm.tours")


def test_the_verb() -> None:
    assert "LC004: " in call("explain", "LC004").stdout
    listing = call("explain").stdout
    assert len(listing.splitlines()) == len(all_keys())
    found = json.loads(call("explain", "--format", "json").stdout)
    assert found["keys"] == dict(all_keys())
    one = json.loads(call("explain", "loss.kr", "--format", "json").stdout)
    assert one["key"] == "loss.kr"


def test_a_bound_in_every_format(tmp_path: Path) -> None:
    words = ["explain", MODEL, "--bound", "hidden2.weight", "--input-box", "0", "1"]
    text = call(*words).stdout
    assert "The gradient of hidden2.weight is at most" in text
    assert "Largest factors" in text
    found = json.loads(call(*words, "--format", "json").stdout)
    assert found["schema"] == "lipcert.bound/1"
    assert found["reasons"][0]["subject"] == "hidden2.weight"
    assert call(*words, "-o", str(tmp_path / "page.html")).exit_code == 0
    bound, page = tmp_path / "bound.json", tmp_path / "report.html"
    assert call(*words, "--format", "json", "-o", str(bound)).exit_code == 0
    assert call("report", str(bound), "-o", str(page)).exit_code == 0
    assert "How the gradient follows" in page.read_text("utf-8")
    assert "How the gradient follows" in (tmp_path / "page.html").read_text("utf-8")


def test_a_model_without_a_bound_is_asked_which(tmp_path: Path) -> None:
    result = call("explain", str(tmp_path / "any.onnx"))
    assert isinstance(result.exception, UsageError) or "--bound" in result.output
