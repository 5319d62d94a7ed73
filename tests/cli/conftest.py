"""A certificate that each test may change."""

import pytest

from tests.cli.issued import certificate_bytes


@pytest.fixture
def file(tmp_path):
    file = tmp_path / "c.json"
    file.write_bytes(certificate_bytes())
    return file
