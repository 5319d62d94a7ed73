"""Every code and every rule has a page."""

import importlib
import inspect
import json
import pkgutil
from collections.abc import Iterator
from functools import cache
from typing import get_args
from unittest.mock import patch

import pytest
from click.testing import CliRunner

import lipcert.ops
from lipcert.cli.main import cli
from lipcert.core.coverage import INPUT_RULE, rule_of
from lipcert.core.losses.kinds import _KINDS
from lipcert.core.program import Activation, Dense, Op
from lipcert.core.rules.functions import FUNCTIONS
from lipcert.core.rules.table import rule_class
from lipcert.diagnostics import CODES
from lipcert.errors import UsageError
from lipcert.explain import all_keys, explain
from lipcert.explain.codes import PAGES
from lipcert.explain.core import core_pages
from lipcert.explain.rules import rule_pages
from lipcert.ops.base import Op as EngineOp


@pytest.fixture(autouse=True, scope="module")
def _read_once() -> Iterator[None]:
    """The sources do not change in between."""
    with (
        patch("lipcert.explain.rule_pages", cache(rule_pages)),
        patch("lipcert.explain.core_pages", cache(core_pages)),
    ):
        yield


def concrete(cls: type[EngineOp] = EngineOp) -> list[type[EngineOp]]:
    """All op classes that can be instantiated."""
    found = []
    for child in cls.__subclasses__():
        found += concrete(child)
        if not getattr(child, "__abstractmethods__", None):
            found.append(child)
    return found


def test_every_code_has_a_page() -> None:
    assert set(PAGES) == set(CODES)
    for code in CODES:
        assert CODES[code] in explain(code)


def test_codes_are_found_in_any_case() -> None:
    assert explain("lc004") == explain("LC004")


def test_every_op_answers_every_question() -> None:
    for module in pkgutil.iter_modules(lipcert.ops.__path__):
        importlib.import_module(f"lipcert.ops.{module.name}")
    pages = rule_pages()
    classes = concrete()
    assert classes
    for cls in classes:
        family = cls.family.fget(None)  # type: ignore[attr-defined]
        for question in ("output_facts", "input_lipschitz"):
            assert f"{family}.{question}" in pages, cls


def test_every_page_says_something() -> None:
    for rule, pages in rule_pages().items():
        assert pages, rule
        assert all(page.text.strip() for page in pages), rule


def test_every_rule_that_a_certificate_names_has_a_page() -> None:
    """By the core itself, whose sources the pages are read from."""
    pages = core_pages()
    names = {rule_of(Activation(name)) for name in FUNCTIONS}
    names |= {f"{kind.__name__.lower()}/1" for kind in get_args(Op) if kind is not Activation}
    assert {name for name in pages if "/" in name} == {INPUT_RULE, *names}
    methods = ("dense", "windows", "explicit", "absolute", "torus")
    assert {name for name in pages if name.startswith("norm.")} == {f"norm.{m}" for m in methods}
    assert {name for name in pages if name.startswith("loss.")} == {f"loss.{k}" for k in _KINDS}
    for name, found in pages.items():
        assert found, name
        assert all(page.text.strip() for page in found), name


def test_the_page_of_a_step_holds_its_class_and_every_question() -> None:
    (page,) = core_pages()["dense/1"]
    assert (page.name, page.file) == ("DenseRule", "lipcert/core/rules/dense.py")
    rule = rule_class(Dense)
    for question in ("fact", "lipschitz", "pulled", "operands", "reaches"):
        text = inspect.cleandoc(getattr(rule, question).__doc__)
        assert f"{question}: {text}" in page.text
    gelu = core_pages()["activation.gelu/1"]
    assert [page.name for page in gelu] == ["gelu", "ActivationRule"]
    assert "norm.dense" in explain("norm.dense")
    assert "dense/1" in explain("dense")


@pytest.mark.parametrize(
    "rule", ["cotangent.chain_rule", "value.norm_of_box", "scope.norm.spectral", "loss.kr"]
)
def test_rules_of_the_core_have_pages(rule: str) -> None:
    assert rule in explain(rule)


def test_a_prefix_lists_its_rules() -> None:
    assert "scope.norm.spectral" in explain("scope.norm")


def test_a_variant_falls_back_to_its_rule() -> None:
    assert "is a variant of" in explain("cotangent.chain_rule.unheard")


def test_unknown_names_have_a_hint() -> None:
    with pytest.raises(UsageError, match=r"did you mean 'cotangent\.fan_out'"):
        explain("cotangent.fanout")


def test_the_verb() -> None:
    runner = CliRunner()
    assert "LC004: " in runner.invoke(cli, ["explain", "LC004"]).stdout
    listing = runner.invoke(cli, ["explain"]).stdout
    assert len(listing.splitlines()) == len(all_keys())
    found = json.loads(runner.invoke(cli, ["explain", "--format", "json"]).stdout)
    assert found["keys"] == dict(all_keys())
    one = json.loads(runner.invoke(cli, ["explain", "loss.kr", "--format", "json"]).stdout)
    assert one["key"] == "loss.kr"
