"""Certificates that were issued once are accepted for ever, by both engines."""

from pathlib import Path

import pytest

from lipcert.core.certificate import read_certificate
from lipcert.core.check import Choices, check
from lipcert.core.verdict import Verdict
from lipcert.text.certificate import write_certificate

HERE = Path(__file__).parent
MODELS = HERE.parents[1] / "models"
CERTIFICATES = sorted(HERE.glob("*/*.lipcert.json"))


def test_there_are_certificates() -> None:
    assert len(CERTIFICATES) >= 4


@pytest.mark.parametrize("engine", ["float", "exact"])
@pytest.mark.parametrize("path", CERTIFICATES, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_a_certificate_is_still_accepted(path: Path, engine: str) -> None:
    model = MODELS / f"{path.name.removesuffix('.lipcert.json')}.onnx"
    data = path.read_bytes()
    said = read_certificate(data)
    report = check(data, model, Choices(engine, frozenset(item.id for item in said.assumptions)))
    assert report.verdict is Verdict.VALID, report.reasons
    assert write_certificate(said) == data
