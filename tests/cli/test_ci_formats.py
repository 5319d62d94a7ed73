"""`--format sarif|junit|github` of several verbs."""

import json
import re
from xml.etree.ElementTree import fromstring

import numpy as np
import pytest

from tests.cli.issued import MODEL, OTHER, call, declared
from tests.models.shipped import digits, path_of


def test_an_analysis_in_every_format_at_once(tmp_path) -> None:
    xml, sarif = tmp_path / "a.xml", tmp_path / "a.sarif"
    reports = ("--report", f"junit={xml}", "--report", f"sarif={sarif}")
    done = call("analyze", MODEL, *reports, "--format", "github")
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.startswith("::warning file=")
    assert fromstring(xml.read_text(encoding="utf-8")).get("failures") == "0"
    (run,) = json.loads(sarif.read_text(encoding="utf-8"))["runs"]
    assert [result["ruleId"] for result in run["results"]] == ["LC104", "LC108", "LC109"]


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("words", "code", "of_slack"),
    [
        (("--max-slack", "1000"), 0, None),
        (("--max-slack", "2"), 1, "failure"),
        (("--max-slack", "2", "--max-noise-to-signal", "5"), 1, "failure"),
        (("--max-slack", "1000", "--max-noise-to-signal", "5"), 3, None),
        (("--max-slack", "1000", "--max-noise-to-signal", "5", "--batch-size", "999999"), 0, None),
    ],
)
def test_gates_of_an_analysis_in_every_format(tmp_path, words, code, of_slack) -> None:
    """Exceeded and not known are failures, whatever the format."""
    data, xml, sarif, text = (tmp_path / file for file in ("d.npz", "a.xml", "a.sarif", "a.txt"))
    split = digits((64,))
    np.savez(data, x=split.images.numpy()[:32], y=split.labels.numpy()[:32])
    reports = [
        part
        for name, file in (("junit", xml), ("sarif", sarif), ("text", text))
        for part in ("--report", f"{name}={file}")
    ]
    done = call(
        "analyze", path_of("digits_mlp"), "--data", data, *words, *reports, "--format", "json"
    )
    assert (done.exit_code, done.stderr) == (code, "")
    found = json.loads(done.stdout)
    assert found["usefulness"]["observed"]["is_private"]
    assert found["usefulness"]["observed"]["source"] == str(data)
    assert "LC410" in [item["code"] for item in found["diagnostics"]]
    gates = {item["gate"]: item for item in found["gates"]}
    assert gates["max-slack"]["found"] == found["usefulness"]["slack"]
    root = fromstring(xml.read_text(encoding="utf-8"))
    slack = root.findall(".//testcase[@name='max-slack']/failure")
    assert len(slack) == (of_slack is not None)
    (run,) = json.loads(sarif.read_text(encoding="utf-8"))["runs"]
    errors = {item["ruleId"] for item in run["results"] if item["level"] == "error"}
    is_unknown = "max-noise-to-signal" in gates and "--batch-size" not in words
    assert errors == {*(["LC110"] if of_slack else []), *(["LC111"] if is_unknown else [])}
    lines = text.read_text(encoding="utf-8")
    assert lines.startswith(found["usefulness"]["sentence"].split(";")[0][:60])
    assert ("over --max-slack" in lines) == (of_slack is not None)
    assert "observed" in lines


def test_an_open_assumption_is_an_error(file) -> None:
    done = call("check", file, "--model", MODEL, "--format", "junit")
    assert done.exit_code == 3
    root = fromstring(done.stdout)
    assert root.find(".//testcase[@name='A-INPUT']/failure") is not None
    assert root.find(".//testcase[@name='verdict']/failure") is not None


def test_a_valid_certificate_is_green(file) -> None:
    words = ("check", file, "--model", MODEL, "--accept-assumption", declared())
    root = fromstring(call(*words, "--format", "junit").stdout)
    assert [root.get(name) for name in ("tests", "failures", "skipped")] == ["1", "0", "0"]
    assert call(*words, "--format", "github").stdout.startswith("::notice file=")
    (run,) = json.loads(call(*words, "--format", "sarif").stdout)["runs"]
    assert run["results"] == []


def test_a_certificate_of_another_model_fails(file) -> None:
    words = ("check", file, "--model", OTHER)
    done = call(*words, "--format", "github")
    assert done.exit_code == 1
    assert re.match(r"::error file=[^:]*,title=LC201 ", done.stdout)
    root = fromstring(call(*words, "--format", "junit").stdout)
    assert root.find(".//testcase[@name='verdict']/failure") is not None
    (run,) = json.loads(call(*words, "--format", "sarif").stdout)["runs"]
    assert run["results"][0]["level"] == "error"
