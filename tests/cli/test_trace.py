"""`lipcert trace`: answers, exit codes, formats."""

import json
from pathlib import Path

from lipcert.audit.trace.records import Manifest
from tests.audit.trace.made import made, opened, step
from tests.cli.issued import call


def test_info(tmp_path: Path) -> None:
    folder = made(tmp_path / "t", 4)
    opened(folder).close()
    done = call("trace", "info", folder)
    assert (done.exit_code, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == str(folder)
    assert lines[1] == "4 steps recorded"
    for words in ("1 resume, 0 bytes cut", "poisson 4", "standard deviation 0.3", "16 numbers"):
        assert words in done.stdout
    found = json.loads(call("trace", "info", folder, "--format", "json").stdout)
    assert found["schema"] == "lipcert.trace-info/1"
    assert (found["steps"], found["steps_by_rank"], found["resumes"]) == (4, [4], 1)
    assert (found["examples"], found["batches_with_index"]) == (20, 4)
    assert found["samplers"] == {"poisson": 4}
    assert found["noise_std"] == {"all": [0.3, 0.3]}
    assert found["steps_with_reused_noise"] == 0
    assert found["declared"]["noise_multiplier"] == 1.5
    assert found["parameters"] == {"b": [4], "w": [4, 3]}
    assert found["blobs"] == 5 * 4
    blobs = sum(path.stat().st_size for path in (folder / "blobs").iterdir())
    assert found["blob_bytes"] == blobs
    assert found["redacted"] is False


def test_reused_noise_is_seen(tmp_path: Path) -> None:
    with opened(tmp_path / "t", Manifest({}, 2, {"w": (4, 3), "b": (4,)}, {"count": ()})) as first:
        first.append(step(first, 0, detail=False))
    second = opened(tmp_path / "t", Manifest({}, 2, {"w": (4, 3), "b": (4,)}, {"count": ()}), 1)
    second.append(step(second, 0, rank=1, detail=False))
    done = call("trace", "info", tmp_path / "t")
    assert "2 steps share the state of their noise generator" in done.stdout
    assert "1 not closed" in done.stdout
    second.close()


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
    for verb in ("info", "verify"):
        done = call("trace", verb, tmp_path)
        assert done.exit_code == 3
        assert "manifest.json" in done.stderr
        assert call("trace", verb, made(tmp_path / verb, 0)).exit_code == 3
    assert call("trace", "redact", tmp_path, "-o", tmp_path / "o").exit_code == 3
    assert call("trace", "redact", tmp_path / "info", "-o", tmp_path / "info").exit_code == 2
    assert call("trace", "redact", tmp_path / "info").exit_code == 2


def test_broken_chains_have_no_summary(tmp_path: Path) -> None:
    folder = made(tmp_path / "t", 2)
    lines = folder / "steps-0.jsonl"
    lines.write_bytes(lines.read_bytes().replace(b'"rate":0.05', b'"rate":0.04', 1))
    done = call("trace", "info", folder)
    assert done.exit_code == 3
    assert "steps-0.jsonl, line 2" in done.stderr
    assert call("trace", "verify", folder).exit_code == 1


def test_redact(tmp_path: Path) -> None:
    folder = made(tmp_path / "t", 2)
    done = call("trace", "redact", folder, "-o", tmp_path / "r")
    assert (done.exit_code, done.stderr) == (0, "")
    assert "2 steps without the data, intact" in " ".join(done.stdout.split())
    assert "2 steps recorded, redacted" in call("trace", "info", tmp_path / "r").stdout
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
    with opened(tmp_path / "t", Manifest({"x\x1b[31m": "::error::"}, 1, {"w": (1,)})):
        pass
    done = call("trace", "info", tmp_path / "t")
    assert "\x1b" not in done.stdout
    assert "\\x3a:error::" in done.stdout
