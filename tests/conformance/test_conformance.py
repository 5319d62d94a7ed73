"""The checker gives every certificate of this folder the verdict that is expected of it."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import pytest

from lipcert.core.main import EXIT_CODES, main

HERE = Path(__file__).parent
ENTRIES = json.loads((HERE / "expected.json").read_text(encoding="utf-8"))
FILES = defaultdict(list)
for entry in ENTRIES:
    FILES[entry["certificate"]].append(entry)


def patched(data: bytes, patch: list[dict[str, object]]) -> bytes:
    """JSON Patch (RFC 6902), and the canonical spelling of what comes of it."""
    said = json.loads(data)
    for edit in patch:
        *outer, last = [part for part in str(edit["path"]).split("/") if part]
        place = said
        for part in outer:
            place = place[int(part) if isinstance(place, list) else part]
        key = int(last) if isinstance(place, list) else last
        match edit["op"]:
            case "remove":
                del place[key]
            case "add" if isinstance(place, list):
                place.insert(key, edit["value"])
            case "replace" | "add":
                assert (key in place if isinstance(place, dict) else True) is (
                    edit["op"] == "replace"
                )
                place[key] = edit["value"]
    return json.dumps(said, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def judged(entry, folder, capsys, engine="float"):
    """The exit code and the report on one entry."""
    path = HERE / entry["certificate"]
    if "patch" in entry:
        path = folder / "patched.json"
        path.write_bytes(patched((HERE / entry["certificate"]).read_bytes(), entry["patch"]))
    accepted = [f"--accept-assumption={name}" for name in entry.get("accept", ())]
    model = HERE / entry["model"]
    options = [f"--model={model}", f"--engine={engine}", "--format=json", *accepted]
    code = main([str(path), *options])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("certificate", FILES)
def test_verdicts(certificate, tmp_path, capsys):
    wrong = []
    for entry in FILES[certificate]:
        code, report = judged(entry, tmp_path, capsys)
        reached = len(report["steps"]) - 1
        found = report["verdict"], code
        expected = entry["verdict"], EXIT_CODES[entry["verdict"]]
        if found != expected or entry["stage"] not in {None, reached}:
            wrong.append((entry["name"], found, reached, report["reasons"]))
    assert not wrong


@pytest.mark.parametrize(
    "entry", [e for e in ENTRIES if e["verdict"] == "valid"], ids=lambda e: e["name"]
)
def test_integers_prove_the_same(entry, tmp_path, capsys):
    assert judged(entry, tmp_path, capsys, "exact")[0] == 0


def test_every_kind_is_there():
    assert {entry["verdict"] for entry in ENTRIES} == set(EXIT_CODES)
    stages = {entry["stage"] for entry in ENTRIES if entry["verdict"] == "invalid"}
    assert stages >= set(range(9))
    size = sum(path.stat().st_size for path in HERE.rglob("*") if path.is_file())
    assert size < 1 << 20
