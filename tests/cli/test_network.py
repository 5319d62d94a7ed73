"""Verbs on a network: options reach the engine, results files; refusals and pages."""

import inspect
import json
from functools import cache, partial
from pathlib import Path
from unittest.mock import patch

import pytest
from click.testing import CliRunner
from onnx import helper

from lipcert.cli.main import cli
from lipcert.core.coverage import rule_of
from lipcert.core.line import RULES
from lipcert.core.losses import KINDS
from lipcert.core.program import Activation, Dense
from lipcert.core.rules import FUNCTIONS, STEPS
from lipcert.core.rules.base import rule_class
from lipcert.diagnostics import CODES
from lipcert.errors import ModelFileError, Refusal, UnsupportedModelError, UsageError
from lipcert.explain import all_keys, code_pages, core_pages, explain
from tests.cli.engine import Engine, install
from tests.cli.issued import MODEL, call
from tests.importer.models import model, saved


@pytest.fixture(name="engine")
def _engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Engine:
    monkeypatch.chdir(tmp_path)
    return install(monkeypatch)


run = partial(call, "analyze", "m.onnx")


def test_every_option_reaches_the_engine(engine: Engine) -> None:
    plain = (
        "loss mse classes 10 temperature 2.0 label-smoothing 0.1 label-norm 3.0 margin 4.0 "
        "huber-delta 5.0 focal-gamma 2.0 hkr-weight 6.0 cosine-floor 7.0 output-reduction sum "
        "loss-clip 8.0 input-norm 9.0 scope constraint-set constraint frobenius:3 bias-norm 2.0 "
        "group parameter noise-multiplier 1.5 allocation optimal neighbours replace-one "
        "reduction mean batch-size 64 tier quick output logits"
    )
    names, texts = plain.split()[::2], plain.split()[1::2]
    given = dict(zip(names, texts, strict=True))
    more = "--half --as-exported --input-box -1 1 --trainable a* --trainable b --freeze c"
    words = [word for name, text in given.items() for word in (f"--{name}", text)]
    assert run(*words, *more.split()).exit_code == 0
    settings = engine.settings
    found = {name: str(getattr(settings, name.replace("-", "_"))) for name in given}
    assert found == given
    assert (settings.half, settings.as_exported, settings.input_box) == (True, True, (-1.0, 1.0))
    assert (settings.trainable, settings.freeze) == (("a*", "b"), ("c",))
    assert engine.loaded_under is engine.settings


def test_results_go_into_files(engine: Engine) -> None:
    result = run("--format", "json", "-o", "a.json", "--report", "csv=b.csv", "--report", "text=c")
    assert (result.exit_code, result.stdout) == (0, "")
    assert json.loads(Path("a.json").read_text())["network"]["grad_norm"] == 40.2
    assert Path("b.csv").read_text().startswith("parameter,")
    assert "Answer" in Path("c").read_text()
    assert sorted(path.name for path in Path().iterdir()) == ["a.json", "b.csv", "c"]


def test_an_old_file_survives_a_failure(engine: Engine) -> None:
    Path("a.json").write_text("old")
    engine.failure = RuntimeError("boom")
    assert run("--format", "json", "-o", "a.json").exit_code == 4
    assert Path("a.json").read_text() == "old"


def test_colour_only_where_asked_for(engine: Engine) -> None:
    assert "\x1b[" not in run().stdout
    assert "\x1b[" in run("--color", "always").stdout
    assert "\x1b[" in run(FORCE_COLOR="1").stdout
    assert "\x1b[" not in run(FORCE_COLOR="1", NO_COLOR="1").stdout
    assert "\x1b[" not in run("--format", "json", "--color", "always").stdout


def test_narrow_streams_do_not_crash(engine: Engine) -> None:
    runner = CliRunner(charset="ascii")
    result = runner.invoke(cli, ["analyze", "m.onnx"])
    assert result.exit_code == 0


REFUSED = UnsupportedModelError((Refusal("LC004", "loop", "Loop", "a loop", "unroll it"),))


run_of_inspect = partial(call, "inspect")


def test_the_batch_proof_is_shown() -> None:
    result = run_of_inspect(str(MODEL))
    assert (result.exit_code, result.stderr) == (0, "")
    assert "Gemm" in result.stdout
    lines = [line.split() for line in result.stdout.splitlines()]
    starts = {line[0]: " ".join(line[1:]) for line in lines if line}
    assert starts["batch"] == "status: proved"
    assert starts["witness:"]


@pytest.mark.parametrize("output_format", ["text", "json"])
def test_a_refusal_is_3_with_reason_and_remedy(
    monkeypatch: pytest.MonkeyPatch, output_format: str
) -> None:
    install(monkeypatch).failure = REFUSED
    result = run_of_inspect("m.onnx", "--format", output_format)
    assert result.exit_code == 3
    for word in ("LC004", "a loop", "unroll it"):
        assert word in result.stdout


def test_an_unreadable_file_is_an_error_object(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch).failure = ModelFileError("'m.onnx' is empty")
    result = run_of_inspect("m.onnx", "--format", "json")
    found = json.loads(result.stdout)
    assert (result.exit_code, found["exit"], found["code"]) == (3, 3, "LC001")
    assert [reason["code"] for reason in found["refusals"]] == ["LC001"]
    assert result.stderr == "lipcert: error: [LC001] 'm.onnx' is empty\n"


def test_a_refused_file_is_outlined_with_all_reasons(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Round", ["x"], ["a"], "first"),
        helper.make_node("Tan", ["a"], ["y"], "second"),
    ]
    path = saved(model(nodes, ("N", 4)), tmp_path)
    result = run_of_inspect(str(path), "--format", "json")
    found = json.loads(result.stdout)
    assert result.exit_code == 3
    assert [item["node"] for item in found["unsupported"]] == ["first", "second"]
    assert found["outline"]["ops"] == {"Round": 1, "Tan": 1}
    assert found["outline"]["inputs"] == ["x [N, 4]"]
    shown = " ".join(run_of_inspect(str(path)).stdout.split())
    assert "ops Round: 1 Tan: 1" in shown


@pytest.fixture(autouse=True, scope="module")
def _read_once():
    """The sources do not change in between."""
    with patch("lipcert.explain.core_pages", cache(core_pages)):
        yield


def test_every_code_has_a_page() -> None:
    assert code_pages().keys() == CODES.keys()
    for code in CODES:
        assert CODES[code] in explain(code)


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


def test_names_are_found_in_any_case_by_prefixes_and_else_with_a_hint() -> None:
    listing = explain("norm").splitlines()
    assert listing[0] == "norm: rules of this name"
    assert {"  norm.torus", "  norm.dense"} < set(listing)
    assert explain("conv") == explain("conv/1")
    assert explain("lc004") == explain("LC004")
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
