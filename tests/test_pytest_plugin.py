"""The fixture `lipcert_audit`, in a run of pytest of its own that finds it as a project would."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from xml.etree.ElementTree import parse

import numpy as np
import pytest

from lipcert.audit import run
from lipcert.pytest_plugin import _completed
from lipcert.verbs import audit
from tests.cli.issued import certificate_bytes
from tests.models.shipped import path_of

ROOT = Path(__file__).resolve().parents[1]
TESTS = """
import lipcert
import numpy
import torch

MODEL = {model!r}

def test_green(lipcert_audit):
    report = lipcert_audit(MODEL, data="x.npz", input_norm=8.0, max_slack=1000.0)
    assert report.examples == 8
    assert report.assumptions["input"] == "norm at most 8"

def test_green_as_lipcert_toml_says(lipcert_audit):
    report = lipcert_audit(MODEL, data="x.npz", limit=2)
    assert report.assumptions["input"] == "norm at most 9"

def test_green_for_arrays(lipcert_audit):
    arrays = numpy.load("x.npz")
    report = lipcert_audit(MODEL, data=(arrays["x"], arrays["y"]), limit=2)
    assert report.modes.data == "arrays"

def test_green_for_a_module(lipcert_audit):
    module = torch.nn.Sequential(torch.nn.Linear(64, 4), torch.nn.BatchNorm1d(4))
    arrays = numpy.load("x.npz")
    report = lipcert_audit(module, torch.zeros(1, 64), data=(arrays["x"], arrays["y"] % 4))
    assert (report.model, report.assumptions["input"]) == ("Sequential", "norm at most 9")

def test_red_over_a_gate(lipcert_audit):
    lipcert_audit(MODEL, data="x.npz", max_grad_norm=0.01)

def test_red_where_nothing_is_settled(lipcert_audit):
    lipcert_audit(MODEL, data="x.npz", max_epsilon=1e6)

def test_red_where_inputs_lie_outside(lipcert_audit):
    lipcert_audit(MODEL, data="x.npz", settings=lipcert.Settings(input_norm=0.5))

def test_an_error(lipcert_audit):
    lipcert_audit(MODEL, data="none.npz")
"""


@pytest.mark.nightly
def test_green_and_red(tmp_path: Path) -> None:
    """A pass passes; nothing else does, and it says why."""
    rng = np.random.default_rng(0)
    x = rng.uniform(0.1, 0.9, (8, 64)).astype(np.float32)
    np.savez(tmp_path / "x.npz", x=x, y=np.arange(8) % 10)
    (tmp_path / "lipcert.toml").write_text("input-norm = 9.0\n")
    text = TESTS.format(model=str(path_of("digits_mlp")))
    (tmp_path / "test_audit.py").write_text(text)
    words = ["-p", "lipcert.pytest_plugin", "--junit-xml", "found.xml", "-q", "-rA"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words],
        cwd=tmp_path,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    outcomes = re.findall(r"^(\w+) test_audit.py::test_(\w+)", done.stdout, re.MULTILINE)
    green = {name for outcome, name in outcomes if outcome == "PASSED"}
    assert green == {name for _, name in outcomes if name.startswith("green")}, done.stdout
    assert len(outcomes) == TESTS.count("def test_"), done.stdout
    assert "over --max-grad-norm 0.01" in done.stdout
    assert "--dataset-size" in done.stdout
    assert "LC304" in done.stdout
    cases = {case.get("name"): case for case in parse(tmp_path / "found.xml").iter("testcase")}
    stated = {item.get("name"): item.get("value") for item in cases["test_green"].iter("property")}
    assert stated["lipcert_verdict"] == "pass"
    assert float(stated["lipcert_slack"] or 0.0) > 1.0
    red = cases["test_red_over_a_gate"]
    assert next(item.get("value") for item in red.iter("property")) == "exceeded"
    assert red.find("failure") is not None


def test_a_certificate_is_audited_with_the_network_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, certificate = tmp_path / "net.onnx", tmp_path / "net.lipcert.json"
    model.write_bytes(path_of("digits_mlp").read_bytes())
    certificate.write_bytes(certificate_bytes())
    done = []
    monkeypatch.setattr(run, "audit", lambda job, **_: done.append(job) or object())
    words = {"attack_steps": 1, "max_epsilon": 9.0, "data": tmp_path / "x.npz"}
    audit(certificate, **_completed(certificate, words))
    (job,) = done
    assert (job.model, job.certificate) == (str(model), str(certificate))
    assert (job.data, job.gates.max_epsilon) == (str(tmp_path / "x.npz"), 9.0)


def test_pytest_finds_it() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["entry-points"]["pytest11"] == {"lipcert": "lipcert.pytest_plugin"}
