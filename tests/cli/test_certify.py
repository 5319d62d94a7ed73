"""`lipcert certify`: what it writes, what it says, and its exit code."""

import json
from hashlib import sha256
from pathlib import Path

import pytest

from lipcert.core.certificate import read_certificate
from lipcert.text.certificate import write_certificate
from tests.cli.issued import MODEL, MODELS, WORDS, call, certificate_bytes


def test_a_certificate_is_canonical_and_about_the_file() -> None:
    data = certificate_bytes()
    certificate = read_certificate(data)
    assert write_certificate(certificate) == data
    assert certificate.model.sha256 == sha256(MODEL.read_bytes()).hexdigest()
    assert certificate.scope.kind == "constraint-set"
    assert certificate.privacy is not None
    assert certificate.privacy.status == "recomputed"


def test_certifying_twice_gives_the_same_bytes() -> None:
    assert certificate_bytes() == certificate_bytes("--no-progress")


def test_the_output_names_the_certificate_the_bounds_and_the_way_to_check(tmp_path: Path) -> None:
    file = tmp_path / "c.json"
    done = call("certify", MODEL, *WORDS, "-o", file)
    assert (done.exit_code, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == f"{file}: written, and accepted by the checker"
    assert lines[-1] == f"lipcert check {file} --model {MODEL}"
    assert "A-PROJ" in done.stdout
    assert "Not checked: that training followed the algorithm" in done.stdout


def test_json(tmp_path: Path) -> None:
    file = tmp_path / "c.json"
    done = call("certify", MODEL, *WORDS, "-o", file, "--format", "json", "--engine", "exact")
    found, data = json.loads(done.stdout), file.read_bytes()
    network = read_certificate(data).network
    assert done.exit_code == 0
    assert found["schema"] == "lipcert.certification/1"
    assert (found["certificate"], found["verdict"]) == (str(file), "conditional")
    assert found["sha256"] == sha256(data).hexdigest()
    assert found["network"]["grad_norm"] == network.grad_norm
    assert found["network"]["sensitivity"] == network.sensitivity
    assert "A-INPUT" in found["open_assumptions"]


def test_without_a_name_it_lies_beside_the_model(tmp_path: Path) -> None:
    model = tmp_path / "net.onnx"
    model.write_bytes(MODEL.read_bytes())
    assert call("certify", model, *WORDS).exit_code == 0
    assert sorted(file.name for file in tmp_path.iterdir()) == ["net.lipcert.json", "net.onnx"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--mechanism", "weight-clipping", "--bias-norm", "0.001"], "scale the weights down"),
        (["--mechanism", "weight-clipping", "--constraint", "spectral:1"], "constraint-set"),
    ],
)
def test_what_certificates_cannot_state_is_3_and_writes_nothing(
    tmp_path: Path, words: list[str], message: str
) -> None:
    file = tmp_path / "c.json"
    file.write_text("old")
    done = call("certify", MODELS / "digits_mlp.onnx", "--batch-size", "8", *words, "-o", file)
    assert (done.exit_code, done.stdout) == (3, "")
    assert done.stderr.startswith("lipcert: error: certify: ")
    assert done.stderr.count("\n") == 1
    assert message in done.stderr
    assert file.read_text() == "old"
