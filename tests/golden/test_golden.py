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
    accepted = {item.id for item in read_certificate(path.read_bytes()).assumptions}
    report = check(path.read_bytes(), model, Choices(engine, frozenset(accepted)))
    assert report.verdict is Verdict.VALID, report.reasons


@pytest.mark.parametrize("path", CERTIFICATES, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_a_certificate_has_one_spelling(path: Path) -> None:
    assert write_certificate(read_certificate(path.read_bytes())) == path.read_bytes()
