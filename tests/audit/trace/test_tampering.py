"""Changed and hostile traces: changes are noticed, nothing outside is read, nothing unpickled."""

import hashlib
import json
import os
import pickle
import random
import tempfile
from contextlib import closing
from pathlib import Path

import pytest

from lipcert.audit.trace.files import FaultKind, TraceError, sealed
from lipcert.audit.trace.reading import Verification, read_trace, verify
from tests.audit.trace.made import made, opened, step

SAMPLES = 150


@pytest.fixture(name="folder", scope="module")
def _folder():
    with tempfile.TemporaryDirectory() as name:
        yield made(Path(name) / "t", 3)


def found_in(folder: Path) -> list[FaultKind]:
    try:
        return [fault.kind for fault in verify(folder).faults]
    except TraceError as error:
        return [error.fault.kind]


def with_content(path: Path, content: bytes, look):
    """What is found while a file has another content."""
    original = path.read_bytes()
    try:
        path.write_bytes(content)
        return look()
    finally:
        path.write_bytes(original)


def test_an_intact_trace_is_intact(folder: Path) -> None:
    found = verify(folder)
    assert found.faults == ()
    assert (found.steps, found.orphans, found.ranks[0].closed) == (3, 0, True)


def test_every_changed_byte_is_noticed(folder: Path) -> None:
    rng = random.Random(1)
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    for _ in range(SAMPLES):
        path = rng.choice(paths if rng.random() < 0.5 else paths[-2:])
        content = bytearray(path.read_bytes())
        place = rng.randrange(len(content))
        content[place] ^= rng.randrange(1, 256)
        assert with_content(path, bytes(content), lambda: found_in(folder)), (path, place)


def test_every_cut_and_insertion_is_noticed(folder: Path) -> None:
    rng = random.Random(2)
    path = folder / "steps-0.jsonl"
    content = path.read_bytes()
    ends = {i + 1 for i, byte in enumerate(content) if byte == ord("\n")} | {0}
    for _ in range(50):
        place = rng.randrange(len(content))
        longer = content[:place] + bytes([rng.randrange(256)]) + content[place:]
        assert with_content(path, longer, lambda: found_in(folder))
        if place not in ends:
            assert with_content(path, content[:place], lambda: found_in(folder))


def test_moved_repeated_and_removed_lines_are_noticed(folder: Path) -> None:
    path = folder / "steps-0.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    for changed in (
        [lines[0], lines[2], lines[1], *lines[3:]],
        [*lines[:2], lines[1], *lines[2:]],
        [lines[0], *lines[2:]],
        lines[1:],
    ):
        content = b"".join(changed)
        kinds = with_content(path, content, lambda: found_in(folder))
        assert kinds == [FaultKind.CHAIN]


def test_a_cut_at_the_end_shows_as_not_closed(folder: Path) -> None:
    path = folder / "steps-0.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)

    def look() -> Verification:
        return verify(folder)

    assert not with_content(path, b"".join(lines[:-1]), look).ranks[0].closed


def rewritten(folder: Path, change, manifest=None) -> Path:
    """Change the first step, and recompute the chain as a forger would."""
    previous = hashlib.sha256((folder / "manifest.json").read_bytes()).hexdigest()
    lines = []
    for text in (folder / "steps-0.jsonl").read_bytes().splitlines():
        members = json.loads(text)
        del members["h"], members["prev"]
        if members.get("step") == 0:
            change(members)
        line, previous = sealed(members, previous)
        lines.append(line)
    (folder / "steps-0.jsonl").write_bytes(b"".join(lines))
    return folder


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.pop("time"), "line.time is missing"),
        (lambda m: m.update(extra=1), "line has the unknown member 'extra'"),
        (lambda m: m.update(step=1), "step 1 stands where step 0 belongs"),
        (lambda m: m.update(kind="stop"), "kind 'stop' is not known"),
        (lambda m: m.update(time="NaN"), "finite"),
        (lambda m: m.update(time=1), "not a number"),
        (lambda m: m.update(weights_before="../../etc/passwd"), "SHA-256"),
        (lambda m: m["batches"][0].update(index=[1, 2]), "not as many indices"),
        (lambda m: m["batches"][0].update(rate=0.0), "a divisor or a rate of 0"),
        (lambda m: m["batches"][0].update(sampler="fair"), "sampler is not 'poisson'"),
    ],
)
def test_forged_lines_are_named(tmp_path: Path, change, message: str) -> None:
    folder = rewritten(made(tmp_path / "t", 2), change)
    (fault,) = verify(folder).faults
    assert (fault.kind, fault.file, fault.line) == (FaultKind.CHAIN, "steps-0.jsonl", 2)
    assert message in fault.message
    with pytest.raises(TraceError, match=r"steps-0.jsonl, line 2: "):
        list(read_trace(folder).steps())


def exchanged(folder: Path, old: str, content: bytes) -> Path:
    """Put other content in place of a blob, under its right digest."""
    digest = hashlib.sha256(content).hexdigest()
    (folder / "blobs" / digest).write_bytes(content)
    return rewritten(folder, lambda m: m.update({old: digest}))


def tensor_file(header: object, body: bytes = b"", pad: bytes = b"") -> bytes:
    text = json.dumps(header, separators=(",", ":"), sort_keys=True).encode() + pad
    return text + b" " * (-(len(text) + 1) % 8) + b"\n" + body


class Armed:
    """What unpickling would run."""

    def __reduce__(self):
        return os.mkdir, ("pickles-were-read",)


ONE = {"dtype": "F32", "shape": [1]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (pickle.dumps(Armed()), "JSON"),
        (b"", "JSON"),
        (b"[" * 100_000 + b"\n", "JSON"),
        (b'{"w":{"dtype":"F32","shape":[1]}, "v":{}}\n', "spelling"),
        (b'{"w":{},"w":{}}\n', "given twice"),
        (tensor_file([]), "not an object"),
        (tensor_file({"w": ONE}, bytes(4), b" " * 8), "padded"),
        (tensor_file({"w": {**ONE, "more": 1}}, bytes(4)), "unknown member 'more'"),
        (tensor_file({"w": {**ONE, "dtype": "C64"}}, bytes(4)), "type 'C64'"),
        (tensor_file({"w": {**ONE, "shape": [1 << 40, 1 << 40]}}, bytes(4)), "not its tensors"),
        (tensor_file({"w": {**ONE, "shape": [-1]}}, bytes(4)), "whole number"),
        (tensor_file({"w": {**ONE, "shape": [0, 1 << 61]}}), "tensor"),
        (tensor_file({"w": {**ONE, "shape": [1 << 60] * 99}}), "99 axes"),
        (tensor_file({"w": ONE}, bytes(9)), "not its tensors"),
        (tensor_file({"w": {**ONE, "dtype": "BOOL"}}, b"\x02"), "boolean"),
        (tensor_file({"w": ONE}, bytes(4)), "shape"),
        (tensor_file({"v": ONE}, bytes(4)), "has no tensor"),
        (tensor_file({}), "missing"),
    ],
)
def test_hostile_tensors_are_refused(
    tmp_path: Path, monkeypatch, content: bytes, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = exchanged(made(tmp_path / "t", 2), "weights_before", content)
    (fault,) = verify(folder).faults
    assert (fault.kind, fault.line) == (FaultKind.BLOB, 2)
    assert message in fault.message
    assert not (tmp_path / "pickles-were-read").exists()


def test_links_are_not_followed(tmp_path: Path) -> None:
    folder = made(tmp_path / "t", 1)
    blob = next((folder / "blobs").iterdir())
    outside = blob.rename(tmp_path / blob.name)
    for placed, removed in (
        (lambda: blob.symlink_to(outside), blob.unlink),
        (lambda: os.mkfifo(blob), blob.unlink),  # a reader that waits for a writer would hang here
        (blob.mkdir, blob.rmdir),
    ):
        placed()
        assert set(found_in(folder)) == {FaultKind.BLOB}
        removed()
    outside.rename(blob)
    assert found_in(folder) == []
    for name in ("manifest.json", "steps-0.jsonl", "blobs"):
        moved = (folder / name).rename(tmp_path / name)
        (folder / name).symlink_to(moved)
        assert found_in(folder), name
        (folder / name).unlink()
        moved.rename(folder / name)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}\n",
        b'{"schema":"lipcert.trace/1"}\n',
        b'{"schema":"lipcert.trace/2","schema":"lipcert.trace/2"}\n',
        b'{"ranks":NaN,"schema":"lipcert.trace/2"}\n',
        b"[" * 100_000 + b"\n",
        '{"schema":"é"}\n'.encode(),
    ],
)
def test_hostile_manifests_are_refused(tmp_path: Path, content: bytes) -> None:
    folder = made(tmp_path / "t", 1)
    (folder / "manifest.json").write_bytes(content)
    assert found_in(folder) == [FaultKind.UNREADABLE]


@pytest.mark.parametrize("ranks", [0, 1 << 40])
def test_ranks_are_bounded(tmp_path: Path, ranks: int) -> None:
    folder = made(tmp_path / "t", 1)
    path = folder / "manifest.json"
    path.write_bytes(path.read_bytes().replace(b'"ranks":1', b'"ranks":%d' % ranks))
    assert found_in(folder) == [FaultKind.UNREADABLE]


def test_missing_and_strange_ranks_are_named(tmp_path: Path) -> None:
    folder = made(tmp_path / "t", 1)
    (folder / "steps-7.jsonl").write_bytes(b"")
    assert [fault.file for fault in verify(folder).faults] == ["steps-7.jsonl"]
    (folder / "steps-7.jsonl").unlink()
    (folder / "steps-0.jsonl").unlink()
    assert [fault.file for fault in verify(folder).faults] == ["steps-0.jsonl"]


def test_files_that_no_line_names_are_counted(tmp_path: Path) -> None:
    folder = made(tmp_path / "t", 1)
    with closing(opened(folder)) as writer:
        step(writer, 8)
    found = verify(folder)
    assert found.faults == ()
    assert found.orphans == 5


def test_wrong_sizes_of_a_batch_are_noticed(tmp_path: Path) -> None:
    def change(members: dict) -> None:
        members["batches"][0]["examples"] = 4
        del members["batches"][0]["index"]

    (fault,) = verify(rewritten(made(tmp_path / "t", 1), change)).faults
    assert "is not of 4 examples" in fault.message
