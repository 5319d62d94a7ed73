"""Ctrl-C: one line, exit code 3, and no file half written."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from lipcert.__main__ import main
from tests.cli.engine import install
from tests.cli.issued import call

ROOT = Path(__file__).parents[2]
# A shell ignores the signal on behalf of jobs in the background: the program listens again.
WAITING = """
import os, pathlib, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)
import lipcert.{module} as module
def wait(*arguments, **options):
    pathlib.Path({ready!r}).write_text(str(os.getpid()))
    while True:
        time.sleep(0.01)
module.{function} = wait
from lipcert.__main__ import main
sys.argv = ["lipcert", "analyze", {model!r}, "-o", "out.json", "--report", "csv=out.csv"]
main()
"""
PATIENCE = 60.0


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("module", "function"),
    [
        ("importer.load", "stored_model"),
        ("analysis.bounded", "with_chains"),
        ("report.analysis", "analysis_csv"),
    ],
)
def test_an_interrupt_leaves_one_line_and_no_file(
    tmp_path: Path, module: str, function: str
) -> None:
    """Wherever it waits: in a child that reads the file, in the engine, or in a report."""
    folder, ready = tmp_path / "here", tmp_path / "ready"
    folder.mkdir()
    model = str(ROOT / "models" / "digits_mlp.onnx")
    code = WAITING.format(module=module, function=function, model=model, ready=str(ready))
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    waiting = process_in(ready, process)
    process.send_signal(signal.SIGINT)
    out, error = process.communicate(timeout=PATIENCE)
    assert process.returncode == 3
    assert (out, error) == (b"", b"lipcert: error: interrupted before there was a result\n")
    assert list(folder.iterdir()) == []
    with pytest.raises(ProcessLookupError):
        os.kill(waiting, 0)


def process_in(ready: Path, process: subprocess.Popen[bytes]) -> int:
    """The process that waits, as soon as it does."""
    deadline = time.monotonic() + PATIENCE
    while not (ready.exists() and ready.read_text()):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return int(ready.read_text())


def interrupted(*arguments: object) -> None:
    raise KeyboardInterrupt


def test_an_interrupt_of_the_start_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "lipcert.cli.main")
    monkeypatch.setattr(sys, "meta_path", [SimpleNamespace(find_spec=interrupted)])
    with pytest.raises(SystemExit, match="3"):
        main()
    assert capsys.readouterr().err == "lipcert: error: interrupted before there was a result\n"


@pytest.mark.parametrize("step", ["fsync", "chmod"])
def test_an_interrupt_while_writing_keeps_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    monkeypatch.chdir(tmp_path)
    install(monkeypatch)
    Path("out.txt").write_text("old")
    monkeypatch.setattr(os if step == "fsync" else Path, step, interrupted)
    result = call("analyze", "m.onnx", "-o", "out.txt")
    assert result.exit_code == 3
    assert [path.name for path in tmp_path.iterdir()] == ["out.txt"]
    assert Path("out.txt").read_text() == "old"
