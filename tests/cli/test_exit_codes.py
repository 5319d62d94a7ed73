"""Every outcome has its documented exit code, whatever the format."""

import json

import pytest

from lipcert import errors
from tests.cli.engine import Engine, install
from tests.cli.issued import call

REFUSED = errors.UnsupportedModelError(
    (
        errors.Refusal("LC004", "loop[/]\n::error::x", "Loop", "a loop", "unroll it"),
        errors.Refusal("LC003", "n2", "Foo", "unknown", ""),
    )
)


@pytest.fixture(name="engine")
def _engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    return install(monkeypatch)


@pytest.mark.parametrize("output_format", ["text", "json", "markdown", "csv"])
def test_no_finite_sensitivity_is_3_after_the_report(engine: Engine, output_format: str) -> None:
    from dataclasses import replace

    network = replace(engine.result.network, grad_norm=None, sensitivity=None)
    engine.result = replace(engine.result, network=network)
    result = call("analyze", "m.onnx", "--format", output_format)
    assert result.exit_code == 3
    assert "conv1" in result.stdout


@pytest.mark.parametrize("words", [[], ["trace"], ["config"]])
def test_no_verb_at_all_is_answered_with_the_help(words: list[str]) -> None:
    result = call(*words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Usage: " in result.stderr
    assert "Commands:\n" in result.stderr
    assert "error" not in result.stderr.partition("Usage: ")[0]


def test_every_refusal_has_its_line(engine: Engine) -> None:
    engine.failure = REFUSED
    result = call("analyze", "m.onnx")
    assert result.exit_code == 3
    assert len(result.stderr.splitlines()) == 2
    assert "Remedy: unroll it" in result.stderr
    assert not any(line.startswith("::") for line in result.stderr.splitlines())


@pytest.mark.parametrize("words", [["--format", "json"], ["--format=json"]])
def test_json_errors_are_objects_on_stdout(engine: Engine, words: list[str]) -> None:
    engine.failure = REFUSED
    result = call("analyze", "m.onnx", *words)
    found = json.loads(result.stdout)
    assert (found["schema"], found["exit"]) == ("lipcert.error/1", 3)
    assert found["refusals"][0]["node"] == "loop[/]\n::error::x"


def test_json_usage_errors_are_objects_too(engine: Engine) -> None:
    result = call("analyze", "m.onnx", "--format", "json", "--nonsense")
    assert json.loads(result.stdout)["exit"] == 2


def test_an_unforeseen_exception_is_4(engine: Engine) -> None:
    engine.failure = RuntimeError("boom\n::error::x")
    result = call("analyze", "m.onnx")
    assert result.exit_code == 4
    assert len(result.stderr.splitlines()) == 1
    assert "RuntimeError: boom" in result.stderr
    assert "Traceback" not in result.stderr


def test_debug_shows_the_traceback(engine: Engine) -> None:
    engine.failure = RuntimeError("boom")
    assert "Traceback" in call("analyze", "m.onnx", LIPCERT_DEBUG="1").stderr
    assert "Traceback" in call("--debug", "analyze", "m.onnx").stderr
