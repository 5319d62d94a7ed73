"""What is not there is said before the engine or torch is loaded, with what may be meant."""

import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result

from tests.cli.issued import MODEL, call

SLOW = ("torch", "lipcert.importer.load", "lipcert.core.check", "lipcert.audit.run")


@pytest.fixture(name="folder", autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one of each, where nothing slow can be imported."""
    for name in SLOW:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.onnx").write_bytes(MODEL.read_bytes())
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty.onnx").touch()
    (tmp_path / "net.json").write_text("{}", encoding="utf-8")
    np.savez(tmp_path / "data.npz", x=np.zeros((1, 1, 8, 8)), y=np.zeros(1, int))
    return tmp_path


def run(words: str) -> Result:
    return call(*words.split())


@pytest.mark.parametrize("verb", ["inspect", "analyze", "certify", "audit --data data.npz"])
@pytest.mark.parametrize(
    ("model", "why"),
    [
        ("nett.onnx", "'nett.onnx' does not exist; did you mean 'net.onnx'?"),
        ("net", "'net' does not exist; did you mean 'net."),
        ("other.onnx", "'other.onnx' does not exist\n"),
        ("folder", "'folder' is a folder"),
        ("empty.onnx", "'empty.onnx' is empty"),
        ("data.npz", "'data.npz' is not an ONNX model, but a zip archive, as torch.save writes"),
    ],
)
def test_a_model_that_is_none(verb: str, model: str, why: str) -> None:
    done = run(f"{verb} {model}")
    assert (done.exit_code, done.stdout) == (3, "")
    assert done.stderr.startswith("lipcert: error: [LC001] ")
    assert why in done.stderr


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("audit net.onnx --data date.npz", "'date.npz' does not exist; did you mean 'data.npz'?"),
        ("audit net.onnx --data folder", "'folder' is a folder"),
        ("audit net.onnx --data net.onnx", "net.onnx is not an .npz file of arrays x and y"),
        ("audit net.onnx --trace run", "'run' does not exist"),
        ("audit net.onnx --trace data.npz", "'data.npz' is not a folder"),
        ("audit net.onnx --trace folder", "folder is not a trace: it has no manifest.json"),
        ("audit c.json --model net.onnx --data data.npz", "'c.json' does not exist"),
        ("audit c.json --data data.npz", "'c.json' does not exist"),
        ("audit --merge work", "'work' does not exist"),
        ("check c.json --model net.onnx", "'c.json' does not exist"),
        ("trace info run", "'run' does not exist"),
        ("trace verify net.onnx", "'net.onnx' is not a folder"),
        ("trace redact run -o copy", "'run' does not exist"),
        ("report c.json", "'c.json' does not exist"),
        ("compare c.json net.json", "'c.json' does not exist"),
        ("privacy c.json --noise-multiplier 1 --steps 3", "'c.json' does not exist"),
    ],
)
def test_other_files_that_are_not_there(words: str, why: str) -> None:
    done = run(words)
    assert (done.exit_code, done.stdout) == (3, "")
    assert why in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [
        "inspect net.onnx",
        "analyze net.onnx",
        "certify net.onnx",
        "audit net.onnx --data data.npz",
        "report net.json",
        "compare net.json net.json",
        "privacy --noise-multiplier 1 --steps 3",
    ],
)
@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("nowhere/result", "cannot write nowhere/result: there is no folder nowhere"),
        ("folder", "cannot write folder: it is a folder"),
    ],
)
def test_results_that_cannot_be_written_are_not_computed(words: str, target: str, why: str) -> None:
    done = run(f"{words} -o {target}")
    assert (done.exit_code, done.stdout) == (3, "")
    assert why in done.stderr


def test_further_reports_that_cannot_be_written_are_not_computed() -> None:
    done = run("analyze net.onnx --report html=nowhere/page.html")
    assert (done.exit_code, done.stdout) == (3, "")
    assert "cannot write nowhere/page.html" in done.stderr


@pytest.mark.parametrize("verb", ["analyze", "suggest", "certify"])
def test_what_a_run_lacks_is_said_before_the_model_is_read(verb: str) -> None:
    done = run(f"{verb} net.onnx --target-epsilon 3")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "missing: give --dataset-size N" in done.stderr


def test_an_audit_of_nothing_is_a_wrong_request() -> None:
    assert run("audit").exit_code == run("audit net.onnx").exit_code == 2


@pytest.mark.parametrize(
    "words",
    [
        "analyze net.onnx -o net.onnx",
        "analyze net.onnx --report json=net.onnx",
        "inspect net.onnx -o ./folder/../net.onnx",
        "certify net.onnx -o net.onnx",
        "suggest net.onnx --apply net.onnx --force",
        "audit net.onnx --data data.npz -o net.onnx",
        "check net.json --model net.onnx -o net.onnx",
        "check net.json --model net.onnx -o net.json",
        "compare net.json net.json -o net.json",
        "report net.json -o net.json",
        "privacy net.json -o net.json",
    ],
)
def test_no_result_replaces_what_is_read(words: str, folder: Path) -> None:
    before = {name: (folder / name).read_bytes() for name in ("net.onnx", "net.json")}
    done = run(words)
    assert (done.exit_code, done.stdout) == (2, "")
    assert "it is an input of this command; name another file" in done.stderr
    assert before == {name: (folder / name).read_bytes() for name in before}
