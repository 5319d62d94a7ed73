"""Every code and every rule has a page."""

import importlib
import json
import pkgutil
from collections.abc import Iterator
from functools import cache
from unittest.mock import patch

import pytest
from click.testing import CliRunner

import lipcert.ops
from lipcert.cli.main import cli
from lipcert.diagnostics import CODES
from lipcert.errors import UsageError
from lipcert.explain import all_keys, explain
from lipcert.explain.codes import PAGES
from lipcert.explain.rules import rule_pages
from lipcert.ops.base import Op


@pytest.fixture(autouse=True, scope="module")
def _read_once() -> Iterator[None]:
    """The sources do not change in between."""
    with patch("lipcert.explain.rule_pages", cache(rule_pages)):
        yield


def concrete(cls: type[Op] = Op) -> list[type[Op]]:
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
