"""`lipcert inspect`: every format, and what a refusal prints."""

import json
from functools import partial
from pathlib import Path

import pytest
from onnx import helper

from lipcert.errors import ModelFileError, Refusal, UnsupportedModelError
from tests.cli.engine import install
from tests.cli.issued import MODEL, call
from tests.importer.models import model, saved

REFUSED = UnsupportedModelError((Refusal("LC004", "loop", "Loop", "a loop", "unroll it"),))


run = partial(call, "inspect")


@pytest.mark.sample(2)
@pytest.mark.parametrize(("output_format", "start"), [("text", str(MODEL)), ("json", "{")])
def test_every_format(output_format: str, start: str) -> None:
    result = run(str(MODEL), "--format", output_format)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith(start)
    assert "Gemm" in result.stdout


def test_the_batch_proof_is_shown() -> None:
    lines = [line.split() for line in run(str(MODEL)).stdout.splitlines()]
    starts = {line[0]: " ".join(line[1:]) for line in lines if line}
    assert starts["batch"].endswith("independent of each other: proved")
    assert starts["witness"]


@pytest.mark.parametrize("output_format", ["text", "json"])
def test_a_refusal_is_3_with_reason_and_remedy(
    monkeypatch: pytest.MonkeyPatch, output_format: str
) -> None:
    install(monkeypatch).failure = REFUSED
    result = run("m.onnx", "--format", output_format)
    assert result.exit_code == 3
    for word in ("LC004", "a loop", "unroll it"):
        assert word in result.stdout


def test_an_unreadable_file_is_an_error_object(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch).failure = ModelFileError("'m.onnx' is empty")
    result = run("m.onnx", "--format", "json")
    found = json.loads(result.stdout)
    assert (result.exit_code, found["exit"], found["code"]) == (3, 3, "LC001")
    assert [reason["code"] for reason in found["refusals"]] == ["LC001"]
    assert result.stderr == "lipcert: error: [LC001] 'm.onnx' is empty\n"


def test_what_was_understood_goes_into_a_file(tmp_path: Path) -> None:
    file = tmp_path / "model.json"
    assert run(str(MODEL), "-o", str(file)).stdout == ""
    assert file.read_text(encoding="utf-8").startswith("{")


def test_a_refused_file_is_outlined_with_all_reasons(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Round", ["x"], ["a"], "first"),
        helper.make_node("Tan", ["a"], ["y"], "second"),
    ]
    path = saved(model(nodes, ("N", 4)), tmp_path)
    result = run(str(path), "--format", "json")
    found = json.loads(result.stdout)
    assert result.exit_code == 3
    assert [item["node"] for item in found["unsupported"]] == ["first", "second"]
    assert found["outline"]["ops"] == {"Round": 1, "Tan": 1}
    assert found["outline"]["inputs"] == ["x [N, 4]"]
    assert "operators  Round 1, Tan 1" in run(str(path)).stdout
