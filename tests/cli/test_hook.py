"""The hook before commits: which certificates it checks, and its exit code."""

import importlib.util
import re
import shlex
import shutil
from pathlib import Path

import pytest
import yaml

from lipcert.cli.hook import main, pairs
from tests.cli.issued import MODEL, OTHER, certificate_bytes, declared

ROOT = Path(__file__).resolve().parents[2]
(HOOK,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))


@pytest.fixture(name="folder")
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of two networks, one of them with a certificate."""
    shutil.copy(MODEL, tmp_path / "net.onnx")
    shutil.copy(OTHER, tmp_path / "other.onnx")
    (tmp_path / "net.lipcert.json").write_bytes(certificate_bytes())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_certificate_is_checked_where_it_or_its_network_changed(folder: Path) -> None:
    """Once, and a network that claims nothing is left alone."""
    expected = {Path("net.lipcert.json"): Path("net.onnx")}
    assert pairs(["net.lipcert.json"]) == expected
    assert pairs(["net.onnx", "other.onnx", "net.lipcert.json"]) == expected
    assert pairs(["other.onnx"]) == {}
    assert pairs(["gone.lipcert.json"]) == {Path("gone.lipcert.json"): Path("gone.onnx")}


def test_a_valid_one_is_a_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--accept-assumption", declared(), "net.onnx", "other.onnx"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == "net.lipcert.json:"
    assert second.startswith("LIPCERT-CHECK: VALID ")


@pytest.mark.nightly
def test_the_worst_decides(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["net.onnx"]) == 3
    assert "A-INPUT [declared]" in capsys.readouterr().out
    shutil.copy(folder / "net.lipcert.json", folder / "other.lipcert.json")
    assert main(["net.lipcert.json", "other.lipcert.json"]) == 1
    printed = capsys.readouterr().out
    assert re.findall(r"^LIPCERT-CHECK: (\w+)", printed, re.MULTILINE) == ["CONDITIONAL", "INVALID"]
    words = ["--accept-assumption", declared(), "--max-epsilon", "1e-9"]
    assert main([*words, "net.lipcert.json"]) == 1
    (folder / "other.onnx").unlink()
    assert main(["other.lipcert.json"]) == 3
    assert main(["--no-such-option", "net.lipcert.json"]) == 2
    assert main([]) == 0


def test_the_definition_names_what_is_there() -> None:
    """And asks for the files of which the module knows what to do."""
    python, flag, module = shlex.split(HOOK["entry"])
    assert (python, flag, HOOK["language"]) == ("python", "-m", "python")
    assert importlib.util.find_spec(module) is not None
    assert module == main.__module__
    for name, is_asked_for in (
        ("nets/a.lipcert.json", True),
        ("a.onnx", True),
        ("a.json", False),
        ("a.onnx.md", False),
    ):
        assert (re.search(HOOK["files"], name) is not None) == is_asked_for
