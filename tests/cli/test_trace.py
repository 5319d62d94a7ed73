"""`lipcert trace`: answers, exit codes, formats."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.audit.trace.made import made
from tests.cli.issued import call


def test_verify(tmp_path: Path) -> None:
    folder = made(tmp_path / "t", 2)
    done = call("trace", "verify", folder)
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.splitlines()[1] == "intact"
    blob = next((folder / "blobs").iterdir())
    blob.write_bytes(blob.read_bytes()[:-1])
    done = call("trace", "verify", folder)
    assert done.exit_code == 1
    assert "is corrupt" in done.stdout
    found = json.loads(call("trace", "verify", folder, "--format", "json").stdout)
    assert found["schema"] == "lipcert.trace-verification/1"
    (fault,) = found["faults"]
    assert (found["intact"], fault["kind"], fault["file"]) == (False, "blob", "steps-0.jsonl")
    assert fault["line"] in {2, 3}
    lines = folder / "steps-0.jsonl"
    lines.write_bytes(lines.read_bytes()[:-10])
    kinds = [
        item["kind"]
        for item in json.loads(call("trace", "verify", folder, "--format", "json").stdout)["faults"]
    ]
    assert sorted(kinds) == ["blob", "torn"]


def test_no_trace_is_no_verdict(tmp_path: Path) -> None:
    done = call("trace", "verify", tmp_path)
    assert done.exit_code == 3
    assert "manifest.json" in done.stderr
    empty = made(tmp_path / "empty", 0)
    assert call("trace", "verify", empty).exit_code == 3
    assert call("trace", "redact", tmp_path, "-o", tmp_path / "o").exit_code == 3
    assert call("trace", "redact", empty, "-o", empty).exit_code == 2
    assert call("trace", "redact", empty).exit_code == 2


def test_a_broken_chain_is_named(tmp_path: Path) -> None:
    folder = made(tmp_path / "t", 2)
    lines = folder / "steps-0.jsonl"
    lines.write_bytes(lines.read_bytes().replace(b'"rate":0.05', b'"rate":0.04', 1))
    done = call("trace", "verify", folder)
    assert done.exit_code == 1
    assert "steps-0.jsonl, line 2" in done.stdout


def test_redact(tmp_path: Path) -> None:
    folder = made(tmp_path / "t", 2)
    done = call("trace", "redact", folder, "-o", tmp_path / "r")
    assert (done.exit_code, done.stderr) == (0, "")
    assert "2 steps without the data, intact" in " ".join(done.stdout.split())
    assert "2 of rank 0" in call("trace", "verify", tmp_path / "r").stdout
    done = call(
        *("trace", "redact", folder, "-o", tmp_path / "w", "--keep-weights", "--format", "json")
    )
    found = json.loads(done.stdout)
    verified = json.loads(call("trace", "verify", folder, "--format", "json").stdout)
    head = verified["ranks"][0]["head"]
    assert (found["schema"], found["keeps_weights"]) == ("lipcert.trace-redaction/1", True)
    assert found["original_heads"] == {"0": head}
    assert found["blobs"] == 4


def test_names_in_a_trace_are_made_safe(tmp_path: Path) -> None:
    folder = made(tmp_path / "t\x1b[31m::error::", 1)
    done = call("trace", "verify", folder)
    assert "\x1b" not in done.stdout
    assert not any(line.startswith("::") for line in done.stdout.splitlines())


def test_no_torch_is_loaded(tmp_path: Path) -> None:
    folder = made(tmp_path / "t", 1)
    code = (
        "import atexit, sys\n"
        "atexit.register(lambda: print('torch' in sys.modules, file=sys.stderr))\n"
        f"sys.argv = ['lipcert', 'trace', 'verify', {str(folder)!r}]\n"
        "from lipcert.__main__ import main\nmain()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.strip()) == (0, "False")
