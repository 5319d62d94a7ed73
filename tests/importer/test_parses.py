"""How often a file is parsed: once in the child that rehearses, once here, once by the checker."""

import re
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

import lipcert
from lipcert.cli.main import cli
from lipcert.core.reader import model
from tests.core.models import SHIPPED


@pytest.fixture
def parses(tmp_path, monkeypatch):
    """How many parses there were since, also in forked processes."""
    log, parse = tmp_path / "parses", model.check_single_model

    def counted(content):
        with log.open("ab") as file:
            file.write(b"x")
        parse(content)

    def count():
        found = len(log.read_bytes()) if log.exists() else 0
        log.unlink(missing_ok=True)
        return found

    monkeypatch.setattr(model, "check_single_model", counted)
    return count


def test_each_verb(tmp_path, parses):
    net = tmp_path / "net.onnx"
    shutil.copy(next(path for path in SHIPPED if path.stem == "digits_mlp"), net)
    bound = ["--loss", "cross-entropy", "--input-norm", "8"]
    for words, exit_code, expected in (
        (["analyze", str(net), *bound], 0, 2),
        (["certify", str(net), *bound, "-o", str(tmp_path / "net.cert")], 0, 3),
        (["check", str(tmp_path / "net.cert"), "--model", str(net)], 3, 1),  # conditional
    ):
        found = CliRunner().invoke(cli, words)
        assert found.exit_code == exit_code, found.output
        assert parses() == expected, words


def test_one_place_parses():
    package = Path(lipcert.__file__).parent
    found = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if re.search(r"ModelProto\.FromString|ParseFromString", path.read_text(encoding="utf-8"))
    }
    assert found == {"core/reader/model.py", "importer/bindings.py"}, "the second writes it anew"
