"""A certificate that each test may change."""

from pathlib import Path

import pytest

from tests.cli.issued import certificate_bytes


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "c.json"
    file.write_bytes(certificate_bytes())
    return file
